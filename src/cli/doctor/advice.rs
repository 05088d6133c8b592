//! What `doctor` advises on libraries that are installed: where a newer cuSPARSE could be had.

use crate::engine::cuda::probe::{LibraryReport, Probe};
use crate::engine::libraries::Library;

/// The cuSPARSE whose routines speed-ups are to be stated over: its products are faster than all before it.
const WANTED: [u32; 2] = [12, 9];

/// One sentence where a newer cuSPARSE could be had; `None` if the opened one is new enough, or there is none.
pub(super) fn newer(probe: &Probe) -> Option<String> {
    let report = probe.libraries.iter().find(|report| report.library == Library::Cusparse)?;
    let facts = report.found.as_ref().ok()?;
    let version = numbers(&facts.version);
    if version.as_slice() >= WANTED.as_slice() {
        return None;
    }
    let newer = facts.named.then(|| installed_newer(report, &version)).flatten();
    if let Some(sentence) = newer {
        return Some(sentence);
    }
    let why = format!("version {} is older than 12.9, whose products are faster", facts.version);
    let place = if facts.named {
        "a folder of Python's packages that is named in evaluator.cusparse in place of the present one"
    } else {
        "the active virtual environment, the system's Python, or a place named in evaluator.cusparse"
    };
    Some(match probe.cuda_major {
        // The packages for CUDA 12 end with 12.5.
        Some(major) if major < 13 => format!(
            "{why}, but 12.9 is of CUDA 13: with a driver of release 580 or later, which runs CUDA 13 (this one runs CUDA \
             {major}), `pip install --upgrade nvidia-cusparse` brings it, and it is found in {place}."
        ),
        _ => format!(
            "{why}: `pip install --upgrade nvidia-cusparse`, the package for CUDA 13, brings a newer one, which is found in \
             {place}."
        ),
    })
}

/// That a newer copy is here, which the configuration keeps from being opened.
fn installed_newer(report: &LibraryReport, version: &[u32]) -> Option<String> {
    let passed = report.passed_over.iter().find(|passed| {
        let other = passed.version.as_deref().map(numbers).unwrap_or_default();
        other.as_slice() > version && passed.barred
    })?;
    Some(format!(
        "version {} is installed as {}, but the configuration names an older one; name this file in evaluator.cusparse, or \
         none, to compare with the newer.",
        passed.version.as_deref().unwrap_or_default(),
        passed.file.display()
    ))
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cuda::probe::LibraryFacts;
    use crate::engine::libraries::installed::PassedOver;

    fn opened(version: &str, named: bool, cuda_major: u32) -> Probe {
        let facts =
            LibraryFacts { path: "libcusparse.so.12".into(), version: version.to_owned(), named };
        let library = Library::Cusparse;
        let report = LibraryReport { library, found: Ok(facts), passed_over: Vec::new() };
        let cuda_major = Some(cuda_major);
        Probe { libraries: vec![report], devices: Vec::new(), cuda_major, device_problem: None }
    }

    #[test]
    fn an_old_library_has_advice_that_the_driver_can_follow() {
        let sentence = newer(&opened("12.6.3.3", false, 13)).unwrap();
        assert!(sentence.starts_with("version 12.6.3.3 is older than 12.9"), "{sentence}");
        assert!(
            sentence.contains("`pip install --upgrade nvidia-cusparse`, the package for CUDA 13")
        );
        let sentence = newer(&opened("12.5.10.65", false, 12)).unwrap();
        assert!(
            sentence.contains("580 or later") && sentence.contains("runs CUDA 12"),
            "{sentence}"
        );
        for new in ["12.9.4", "12.10.0.1", "13.0.0"] {
            assert_eq!(newer(&opened(new, false, 13)), None, "{new}");
        }
    }

    #[test]
    fn a_newer_copy_that_the_configuration_bars_is_named_in_place_of_a_package() {
        let mut probe = opened("12.6.3.3", true, 13);
        assert!(newer(&probe).unwrap().contains("in place of the present one"));
        probe.libraries[0].passed_over.push(PassedOver {
            file: "/somewhere/libcusparse.so.12".into(),
            version: Some("12.9.4.2".to_owned()),
            reason: "is newer, but the configuration names the one opened".to_owned(),
            barred: true,
        });
        let sentence = newer(&probe).unwrap();
        assert!(sentence.starts_with("version 12.9.4.2 is installed as /somewhere/"), "{sentence}");
    }
}
