//! Validation of job requests before anything is stored, and the dedup key of a request with its defaults filled in.

use super::{BudgetLimits, Result, ServiceError, ServiceSettings};
use crate::domain::candidate::is_approximate;
use crate::domain::catalog::family::Parameter;
use crate::domain::{
    Candidate, Clock, Device, DeviceKind, Fixed, JobRequest, L2Policy, Matrix, Problem, Search,
    SearchStrategy, TokenLimits, fixed,
};
use crate::ops::admission::Footprint;
use crate::ops::{self, admission};
use crate::sparse::canonical;
use crate::sparse::read::Pool;
use std::collections::HashSet;
use std::fmt::Display;
use std::path::Path;

/// The request with every absent field of its search filled in, so that the job is fully specified, for a device of this kind and a
/// matrix with so many entries.
pub(super) fn fill(
    request: &JobRequest,
    settings: &ServiceSettings,
    limits: &TokenLimits,
    kind: DeviceKind,
    nnz: u64,
) -> Result<JobRequest> {
    let ServiceSettings { search: defaults, budget, l2_policy, .. } = settings;
    let budget = BudgetLimits {
        seconds: limits.job_seconds.map_or(budget.seconds, |most| most.min(budget.seconds)),
        trials: limits.job_trials.map_or(budget.trials, |most| most.min(budget.trials)),
    };
    let search = &request.search;
    if search.measure && search.strategy != SearchStrategy::Predicted {
        let message = "only the strategy predicted can be followed by a measuring job";
        return Err(ServiceError::invalid("/search/measure", message));
    }
    // Both triangles are two searches, each of which gets half.
    let searches = match kind {
        DeviceKind::Cuda => request.problem.parts().map_or(1, |parts| parts.len()),
        DeviceKind::Cpu => 1,
    };
    let seconds = searches as f64 * defaults.seconds_of(search.strategy, kind, nnz);
    let filled = Search {
        strategy: search.strategy,
        top_k: Some(search.top_k.unwrap_or(defaults.top_k)),
        seconds: Some(search.seconds.unwrap_or(seconds.min(budget.seconds))),
        trials: Some(
            search.trials.unwrap_or(defaults.trials_of(search.strategy).min(budget.trials)),
        ),
        seed: Some(search.seed.unwrap_or(defaults.seed)),
        measure: search.measure,
        families: search.families.clone(),
        fixed: search.fixed.clone(),
        exact: search.exact,
        clock: Some(clock(search.clock, defaults.clock, *l2_policy)?),
        then: search.then,
    };
    if filled.exact && filled.families.len() != 1 {
        let message = "a candidate is of one family: `families` must name it, and no other";
        return Err(ServiceError::invalid("/search/exact", message));
    }
    if filled.seconds.is_some_and(|seconds| seconds.is_nan() || seconds <= 0.0) {
        return Err(ServiceError::invalid("/search/seconds", "must be above 0"));
    }
    if let Some(seconds) = filled.seconds.filter(|seconds| *seconds > budget.seconds) {
        return Err(beyond("seconds", seconds, budget.seconds));
    }
    if let Some(trials) = filled.trials.filter(|trials| *trials > budget.trials) {
        return Err(beyond("trials", trials, budget.trials));
    }
    let most = BudgetLimits::MOST.trials;
    for (pointer, count) in [("/search/trials", filled.trials), ("/search/top_k", filled.top_k)] {
        if count.is_some_and(|count| !(1..=most).contains(&count)) {
            return Err(ServiceError::invalid(pointer, format!("must be 1 to {most}")));
        }
    }
    if request.expected_calls == Some(0) {
        let message = "must be at least 1, or absent";
        return Err(ServiceError::invalid("/expected_calls", message));
    }
    Ok(JobRequest { search: filled, ..request.clone() })
}

/// A filled request as the one job that is queued for it. Of a problem with both triangles the job tunes the first, and names the second
/// for the job that follows it; each has half of the seconds and trials, and measures `top_k` candidates of its own.
pub(super) fn first_part(filled: JobRequest) -> Result<JobRequest> {
    let Some([first, second]) = filled.problem.parts() else { return Ok(filled) };
    if filled.search.measure {
        let message = "both triangles are two jobs already: ask for them again with another strategy to have them measured";
        return Err(ServiceError::invalid("/search/measure", message));
    }
    if filled.search.trials.is_some_and(|trials| trials < 2) {
        let message =
            "must be 2 or more: both triangles are two jobs, and each has half of the trials";
        return Err(ServiceError::invalid("/search/trials", message));
    }
    let search = Search {
        seconds: filled.search.seconds.map(|seconds| seconds / 2.0),
        trials: filled.search.trials.map(|trials| trials / 2),
        then: Some(second),
        ..filled.search.clone()
    };
    Ok(JobRequest { problem: first, search, ..filled })
}

/// The search of the second solve of a pair, whose first has this candidate. Where both consent to be approximate, they are to make a
/// symmetric map of b if their factors do: the second has the same sweeps, or the same power and steps of an approximate inverse, which
/// the first was chosen among for sufficing for both, or is exact as the first is.
pub(super) fn second_search(
    search: &Search,
    problem: &Problem,
    first: &Candidate,
    kind: DeviceKind,
) -> Search {
    let mut search = Search { then: None, ..search.clone() };
    let names = ops::family_names(problem.op(), kind);
    if !problem.is_approximate() || !names.iter().any(|name| is_approximate(name)) {
        return search;
    }
    if first.is_approximate() {
        let family = &first.family;
        search.families = vec![family.clone()];
        for name in first.map_parameters() {
            if let Some(value) = first.params.get(*name) {
                search.fixed.0.insert(format!("{family}.{name}"), value.clone());
            }
        }
    } else {
        let exact = names.into_iter().filter(|&name| !is_approximate(name) && search.admits(name));
        search.families = exact.map(str::to_owned).collect();
    }
    search
}

/// A budget that is larger than this server permits.
fn beyond(what: &str, asked: impl Display, most: impl Display) -> ServiceError {
    let message = format!(
        "{asked} {what} are asked for, and a job may have at most {most} on this server with this token (limits.job_{what})"
    );
    ServiceError::invalid(&format!("/search/{what}"), message)
}

/// The clock that was asked for, which must be one that can be read here; else the default as far as it can be.
fn clock(asked: Option<Clock>, default: Clock, l2_policy: L2Policy) -> Result<Clock> {
    let Some(asked) = asked else { return Ok(default.under(l2_policy)) };
    if asked.under(l2_policy) != asked {
        let message = format!(
            "the clock {asked} cannot be read here: with the L2 policy {l2_policy} the cache is swept before each call, so calls \
             do not follow each other; there is {}",
            asked.under(l2_policy)
        );
        return Err(ServiceError::invalid("/search/clock", message));
    }
    Ok(asked)
}

/// Checks that the problem can be tuned for the matrix, and that its operands fit on the device and this host.
pub(super) fn check(
    matrix: &Matrix,
    problem: &Problem,
    device: &Device,
    max_host_bytes: u64,
) -> Result<()> {
    if let Some((field, why)) = problem.out_of_tuned_range() {
        return Err(ServiceError::invalid(&format!("/problem/{}", field.name), why));
    }
    if let Some(limit) = problem.limit(None).or_else(|| problem.limit(Some(device.kind))) {
        return Err(ServiceError::Unsupported {
            pointer: Some(format!("/problem/{}", limit.field)),
            message: limit.why.to_owned(),
        });
    }
    let unfit = |pointer: &str| {
        let pointer = Some(pointer.to_owned());
        move |unfit: ops::Unsupported| ServiceError::Unsupported {
            pointer,
            message: unfit.to_string(),
        }
    };
    ops::check(matrix, problem).map_err(unfit("/problem"))?;
    // What is left of that is types that the device is too old for.
    ops::check_device(problem, device).map_err(unfit("/problem/dtype"))?;
    let Footprint { host, gpu } = Footprint::of(matrix, problem);
    if host > u128::from(max_host_bytes) {
        let message = format!(
            "the operands and what the result is checked with take {host} bytes of a host's memory, at most \
             {max_host_bytes} are granted here"
        );
        return Err(ServiceError::TooLarge { message });
    }
    let held = match device.kind {
        DeviceKind::Cpu => host,
        DeviceKind::Cuda => gpu,
    };
    if held > u128::from(device.memory_bytes) {
        let Device { id, memory_bytes, .. } = device;
        let message =
            format!("the operands take {held} bytes on device {id}, which has {memory_bytes}");
        return Err(ServiceError::TooLarge { message });
    }
    Ok(())
}

/// The families that a search names, each once and in the order of the catalogue; all must exist for the operation on this
/// kind of device.
pub(super) fn families(
    asked: &[String],
    problem: &Problem,
    device: &Device,
) -> Result<Vec<String>> {
    let names = ops::family_names(problem.op(), device.kind);
    if let Some(unknown) = asked.iter().find(|name| !names.contains(&name.as_str())) {
        let message = format!(
            "there is no kernel family `{unknown}` of {} on device {}; there are {}",
            problem.op(),
            device.id,
            names.join(", ")
        );
        return Err(ServiceError::invalid("/search/families", message));
    }
    let named = names.iter().filter(|name| asked.iter().any(|asked| asked == *name));
    Ok(named.map(|&name| name.to_owned()).collect())
}

/// The parameter values that a search fixes; each must be a value of a family of the operation on this kind of device.
pub(super) fn fixed(asked: &Fixed, problem: &Problem, device: &Device) -> Result<Fixed> {
    for (name, value) in &asked.0 {
        let refuse = |message| Err(ServiceError::invalid("/search/fixed", message));
        let (family, parameter) = fixed::parts(name);
        if family == Some("") || parameter.is_empty() {
            let lacks =
                if parameter.is_empty() { "no parameter" } else { "no family before the point" };
            return refuse(format!(
                "`{name}` names {lacks}: it may be PARAMETER, for all families that have it, or FAMILY.PARAMETER"
            ));
        }
        let of = ops::catalog().of(problem.op()).filter(|known| known.device == device.kind);
        let of = of.filter(|known| family.is_none_or(|family| known.family() == family));
        let known: Vec<&Parameter> = of.flat_map(|known| &known.parameters).collect();
        let mut values = Vec::new();
        for own in known.iter().filter(|own| own.name == parameter) {
            values.extend(own.values.said());
            if own.values.contains_alike(value) {
                values.clear();
                break;
            }
        }
        let named = known.iter().any(|own| own.name == parameter);
        if !named {
            let mut names: Vec<&str> = known.iter().map(|own| own.name).collect();
            names.sort_unstable();
            names.dedup();
            let whose = family.map_or_else(|| problem.op().to_string(), str::to_owned);
            return refuse(match names.is_empty() {
                true => format!("`{name}`: {whose} has no parameters on device {}", device.id),
                false => format!(
                    "there is no parameter `{parameter}` of {whose} on device {}; there are {}",
                    device.id,
                    names.join(", ")
                ),
            });
        }
        if !values.is_empty() {
            let mut said = HashSet::new();
            values.retain(|value| said.insert(value.clone()));
            let message = format!("{name} is never `{value}`; it may be {}", values.join(", "));
            return refuse(message);
        }
    }
    Ok(asked.clone())
}

/// Checks that the values of the matrix suit the problem. Reads the matrix, so it blocks.
pub(super) fn check_values(path: &Path, problem: &Problem, memory: &Pool) -> Result<()> {
    let (csr, _, _held) = canonical::open_in(path, memory)?;
    admission::check_values(&csr, problem).map_err(|unfit| match unfit.field {
        Some(field) => ServiceError::invalid(&format!("/problem/{field}"), unfit.why),
        None => {
            ServiceError::Unsupported { pointer: Some("/problem".to_owned()), message: unfit.why }
        }
    })
}

/// The key of the question that a request asks: while one request with a key is queued or running, others with the same key
/// wait for the same answer.
pub(super) fn dedup_key(filled: &JobRequest, queue: &str, l2_policy: L2Policy) -> String {
    let Search {
        strategy,
        top_k,
        seconds,
        trials,
        seed,
        measure,
        families,
        fixed,
        exact,
        clock,
        then,
    } = &filled.search;
    let measured = if *measure { ";measure" } else { "" };
    let among = match families.is_empty() {
        true => String::new(),
        false => format!(";families={}", families.join(",")),
    };
    let with = match fixed.is_empty() {
        true => String::new(),
        false => format!(";fixed={fixed}"),
    };
    let alone = if *exact { ";exact" } else { "" };
    let by = clock.map_or_else(String::new, |clock| format!(";clock={clock}"));
    let then = then.map_or_else(String::new, |then| format!(";then={then}"));
    format!(
        "{};{};{queue};l2={l2_policy};{strategy:?};{top_k:?};{seconds:?};{trials:?};{seed:?};{:?}{measured}{among}{with}{alone}{by}{then}",
        filled.matrix, filled.problem, filled.expected_calls
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Digest, Param, Sptrsv, problem::Triangle};

    #[test]
    fn usual_searches_on_a_gpu_are_short_unless_asked_otherwise() {
        let settings = ServiceSettings::default();
        let seconds_of = |strategy, triangle, asked: Option<f64>, kind, nnz| {
            let problem = Problem::Sptrsv(Sptrsv { triangle, ..Sptrsv::PLAIN });
            let request = serde_json::json!({
                "matrix": Digest::of(b"a matrix"), "problem": problem, "device": "auto",
                "search": { "strategy": strategy, "seconds": asked },
            });
            let request: JobRequest = serde_json::from_value(request).expect("a request");
            let filled = fill(&request, &settings, &TokenLimits::default(), kind, nnz);
            filled.expect("a valid request").search.seconds
        };
        use DeviceKind::{Cpu, Cuda};
        use SearchStrategy::{Exhaustive, Halving, Ranked};
        let (one, both) = (Triangle::Lower, Triangle::Both);
        let seconds = |strategy, triangle, asked, kind| {
            seconds_of(strategy, triangle, asked, kind, 5_000_000)
        };
        assert_eq!(seconds(Halving, one, None, Cuda), Some(4.5));
        assert_eq!(seconds(Ranked, one, None, Cuda), Some(4.5));
        assert_eq!(seconds(Halving, both, None, Cuda), Some(9.0));
        // Preparing more entries takes longer.
        assert_eq!(seconds_of(Halving, one, None, Cuda, 0), Some(4.5));
        assert_eq!(seconds_of(Halving, one, None, Cuda, 7_500_000), Some(6.75));
        assert_eq!(
            seconds_of(Halving, one, None, Cuda, u64::MAX),
            Some(4.5 * crate::service::SearchDefaults::GPU_MOST)
        );
        assert_eq!(seconds_of(Halving, one, None, Cpu, u64::MAX), Some(60.0));
        assert_eq!(seconds(Exhaustive, one, None, Cuda), Some(60.0));
        assert_eq!(seconds(Halving, both, None, Cpu), Some(60.0));
        assert_eq!(seconds(Halving, both, Some(33.0), Cuda), Some(33.0));
    }

    #[test]
    fn the_second_of_a_pair_is_solved_as_the_first() {
        let second = |approximate, first: &Candidate, search: &Search, kind| {
            let problem = Problem::Sptrsv(Sptrsv { approximate, ..Sptrsv::PLAIN });
            second_search(search, &problem, first, kind)
        };
        let swept = |inner| {
            let candidate = Candidate::new("sweeps").with("sweeps", 6).with("inner", inner);
            candidate.with("rows", 256).with("lanes", 4)
        };
        let (plain, slices) = (Search::default(), Candidate::new("slices"));
        let gpu = DeviceKind::Cuda;
        let alike = second(true, &swept(1), &plain, gpu);
        assert_eq!(alike.families, ["sweeps"]);
        assert_eq!(alike.fixed.to_string(), "sweeps.inner=1, sweeps.sweeps=6");
        assert!(alike.fixed.admits(&swept(1)) && !alike.fixed.admits(&swept(2)));
        assert!(alike.fixed.admits(&swept(1).with("rows", 64)));
        let blocks = second(true, &swept(2), &plain, gpu);
        assert!(!blocks.fixed.admits(&swept(2).with("rows", 64)));
        let exact = second(true, &slices, &plain, gpu).families;
        assert_eq!(exact, ["slices", "overlapped", "chains", "streamed", "ag", "vendor"]);
        let asked =
            Search { families: vec!["sweeps".to_owned(), "ag".to_owned()], ..Search::default() };
        assert_eq!(second(true, &slices, &asked, gpu).families, ["ag"]);
        let fixed = Fixed([("lanes".to_owned(), Param::Int(4))].into());
        let asked = Search { fixed, ..Search::default() };
        assert_eq!(second(true, &swept(1), &asked, gpu).fixed.0.len(), 3);
        let inverse = Candidate::new("inverse").with("power", 3).with("steps", 2).with("lanes", 4);
        let alike = second(true, &inverse, &plain, gpu);
        assert_eq!(alike.families, ["inverse"]);
        assert_eq!(alike.fixed.to_string(), "inverse.power=3, inverse.steps=2");
        assert!(alike.fixed.admits(&inverse.clone().with("lanes", 8)));
        // Exact problems, and processors, have nothing to agree on.
        assert_eq!(second(false, &slices, &plain, gpu), plain);
        assert_eq!(second(true, &slices, &plain, DeviceKind::Cpu), plain);
    }
}
