//! Points in time as stored: whole milliseconds since the Unix epoch, UTC.

use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The current time by the system clock; a clock set before 1970 reads as the epoch.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(since.as_millis() as i64)
    }

    /// This time plus `millis` (negative for earlier), saturating.
    pub fn plus_millis(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// RFC 3339 in UTC with milliseconds, as in the API: `2026-11-21T02:14:44.123Z`.
    pub fn to_rfc3339(self) -> String {
        let (days, ms) = (self.0.div_euclid(86_400_000), self.0.rem_euclid(86_400_000));
        let (y, m, d) = civil_from_days(days);
        let (h, min, s) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
        format!("{y:04}-{m:02}-{d:02}T{h:02}:{min:02}:{s:02}.{:03}Z", ms % 1000)
    }
}

impl std::str::FromStr for Timestamp {
    type Err = String;

    /// Parses the output of [`Timestamp::to_rfc3339`]; other forms of RFC 3339 are refused.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |from: usize, to: usize| {
            let digits = text.get(from..to)?;
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<i64>().ok())?
        };
        let read = || {
            let days = days_from_civil(number(0, 4)?, number(5, 7)?, number(8, 10)?);
            let seconds = (number(11, 13)? * 60 + number(14, 16)?) * 60 + number(17, 19)?;
            Some(Self(days * 86_400_000 + seconds * 1000 + number(20, 23)?))
        };
        // Comparing with the formatted result also checks the separators and that the day exists.
        read()
            .filter(|read| read.to_rfc3339() == text)
            .ok_or_else(|| format!("`{text}` is not a time such as 2026-11-21T02:14:44.123Z"))
    }
}

/// The inverse of [`civil_from_days`].
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, yoe) = (year.div_euclid(400), year.rem_euclid(400));
    let doy = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

/// Days since 1970-01-01 to (year, month, day) in the proleptic Gregorian calendar.
/// Eras of 400 years start in March, so that the leap day is the last of its year.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    (year, month, doy - (153 * mp + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::Timestamp;

    #[test]
    fn parses_only_its_own_format() {
        for ms in [0, 951_782_400_000, 1_795_227_284_123, -1, 68_169_600_000] {
            assert_eq!(Timestamp(ms).to_rfc3339().parse(), Ok(Timestamp(ms)));
        }
        for odd in
            ["", "2026-02-30T00:00:00.000Z", "2026-11-21T02:14:44Z", "2026-11-21 02:14:44.123Z"]
        {
            assert!(odd.parse::<Timestamp>().is_err(), "{odd}");
        }
    }

    #[test]
    fn formats_known_times() {
        assert_eq!(Timestamp(0).to_rfc3339(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp(951_782_400_000).to_rfc3339(), "2000-02-29T00:00:00.000Z");
        assert_eq!(Timestamp(1_795_227_284_123).to_rfc3339(), "2026-11-21T02:14:44.123Z");
        assert_eq!(Timestamp(-1).to_rfc3339(), "1969-12-31T23:59:59.999Z");
    }
}
