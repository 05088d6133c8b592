//! Formatting for display, beyond that of numbers, which explanations share.

pub use crate::explain::numbers::{correlation, count, digits, micros, percent, seconds, times};

use crate::domain::catalog::vendor::Library;
use crate::domain::{Candidate, Digest, JobState, Problem, Timestamp};

/// A round time without trailing zeros: `50 µs`, `0.1 µs`.
pub fn round_micros(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 1e3 => (us, "µs"),
        us if us < 1e6 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    // As many digits as the tick needs: a label that rounds would be at another place than it says.
    let text = format!("{value:.6}");
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// What a kernel's family is called on pages: of a library's routine the library, with the one thread that a speed-up over it has to
/// mention.
pub fn family(candidate: &Candidate) -> String {
    candidate.routine().map_or_else(|| candidate.family.clone(), |routine| library(routine.library))
}

/// `MKL`, `plain CSR product`, `plain substitution, one thread`.
pub fn library(library: Library) -> String {
    let threads = if library.is_single_threaded() { ", one thread" } else { "" };
    format!("{}{threads}", library.name())
}

/// Powers of 1024: `3.00 MiB`.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if value < 1024 {
        return format!("{value} B");
    }
    let mut size = value as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{} {}", digits(size), UNITS[unit])
}

/// How long ago: `12 s ago`.
pub fn ago(then: Timestamp) -> String {
    let past = (Timestamp::now().0 - then.0).max(0) as f64 / 1e3;
    if past < 1.0 { "now".to_owned() } else { format!("{} ago", seconds(past.floor())) }
}

/// The first digits of a digest, enough to tell matrices apart.
pub fn short(digest: &Digest) -> String {
    digest.to_string()[..10].to_owned()
}

/// A problem in a few words: `SpMM N=128 f32 row`, `SpTRSV lower unit f64`. Defaults are omitted.
pub fn problem_words(problem: &Problem) -> String {
    let operation = problem.op().descriptor();
    format!("{} {}", operation.title, problem.say(operation.brief).join(" "))
}

/// CSS class of a state's badge.
pub fn tone(state: JobState) -> &'static str {
    match state {
        JobState::Queued => "idle",
        JobState::Running => "live",
        JobState::Succeeded => "good",
        JobState::Failed => "bad",
        JobState::Cancelled => "warn",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!(micros(96.84), "96.8 µs");
        assert_eq!(micros(1240.0), "1.24 ms");
        assert_eq!(micros(2.5e6), "2.50 s");
        assert_eq!(micros(0.0), "0.00 µs");
        assert_eq!(times(2.512), "2.51×");
        assert_eq!(digits(f64::INFINITY), "–");
        assert_eq!(digits(12_345.6), "12346");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3 << 20), "3.00 MiB");
        assert_eq!(percent(0.826), "83 %");
        assert_eq!(percent(0.0826), "8.3 %");
    }

    #[test]
    fn routines_are_named_after_their_library_and_never_after_a_vendor_that_there_is_not() {
        let of = |algorithm| family(&Candidate::new("vendor").with_text("algorithm", algorithm));
        let told = ["csr_alg2", "mkl_mm", "plain_csr", "plain_solve", "of another version"].map(of);
        let plain = "plain substitution, one thread";
        assert_eq!(told, ["cuSPARSE", "MKL", "plain CSR product", plain, "vendor"]);
        assert_eq!(family(&Candidate::new("row_split")), "row_split");
    }

    #[test]
    fn round_times_are_short() {
        assert_eq!([1005.0, 12.25, 0.0].map(round_micros), ["1.005 ms", "12.25 µs", "0 µs"]);
        let round = [50.0, 0.1, 2000.0, 100.0].map(round_micros);
        assert_eq!(round, ["50 µs", "0.1 µs", "2 ms", "100 µs"]);
    }

    #[test]
    fn correlations_have_a_typographic_minus() {
        assert_eq!([0.624, -0.43, -0.001].map(correlation), ["0.62", "\u{2212}0.43", "0.00"]);
    }

    #[test]
    fn problem_names_omit_defaults() {
        for (json, words) in [
            (r#"{"op":"spmm","n":128}"#, "SpMM N=128 f32 row"),
            (
                r#"{"op":"spmm","n":8,"dtype":"f16","layout":"col","accumulate":true,"tf32":true}"#,
                "SpMM N=8 f16 col accumulate tf32",
            ),
            (
                r#"{"op":"sptrsv","rhs":1,"dtype":"f64","triangle":"lower","diagonal":"unit"}"#,
                "SpTRSV lower unit f64",
            ),
            (
                r#"{"op":"sptrsv","rhs":4,"triangle":"upper","diagonal":"non-unit","transpose":true}"#,
                "SpTRSV upper non-unit f32 rhs=4 transposed",
            ),
        ] {
            assert_eq!(problem_words(&serde_json::from_str(json).unwrap()), words);
        }
    }

    #[test]
    fn thousands_are_separated() {
        for (value, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (5_054_400, "5,054,400")] {
            assert_eq!(count(value), text);
        }
    }

    #[test]
    fn ages_use_a_suitable_unit() {
        assert_eq!(seconds(3.21), "3.2 s");
        assert_eq!(seconds(119.0), "119 s");
        assert_eq!(seconds(600.0), "10 min");
        assert_eq!(seconds(86_400.0), "24 h");
        assert_eq!(seconds(864_000.0), "10 d");
        assert_eq!(ago(Timestamp::now()), "now");
    }
}
