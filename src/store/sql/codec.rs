//! Conversion between rows and domain types: versioned JSON, digests, enum names, and the opaque cursors of lists.

use crate::domain::{
    Candidate, Device, Digest, EventKind, JobRequest, LearnedModel, Matrix, Namespace, Plan,
    TrainRequest, Trial,
    learned::MODEL_VERSION,
    plan::{OLDEST_VERSION, PLAN_VERSION},
    training::TRAINING_VERSION,
};
use crate::store::{Result, StoreError};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A type that is stored as JSON. A change of shape that older readers would misread raises the version.
pub(super) trait Stored: Serialize + DeserializeOwned {
    const WHAT: &'static str;
    /// The version that is written.
    const VERSION: i64;
    /// The oldest version that can still be read.
    const OLDEST: i64 = Self::VERSION;

    fn read(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }
}

macro_rules! stored {
    ($($type:ty, $what:literal, $version:expr $(, since $oldest:expr)? $(, by $read:path)?;)*) => {$(
        impl Stored for $type {
            const WHAT: &'static str = $what;
            const VERSION: i64 = $version;
            $(const OLDEST: i64 = $oldest;)?
            $(fn read(text: &str) -> serde_json::Result<Self> { $read(text) })?
        }
    )*};
}
stored! {
    Matrix, "matrix facts", 1;
    JobRequest, "job request", 1;
    Trial, "trial", 1;
    EventKind, "event", 1;
    Plan, "plan", PLAN_VERSION as i64, since OLDEST_VERSION as i64, by Plan::from_json;
    Device, "device", 1;
    Candidate, "candidate", 1;
    LearnedModel, "model", MODEL_VERSION as i64;
    TrainRequest, "training request", TRAINING_VERSION as i64;
}

pub(super) fn encode<T: Stored>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| corrupt(T::WHAT, error))
}

pub(super) fn decode<T: Stored>(version: i64, text: &str) -> Result<T> {
    if !(T::OLDEST..=T::VERSION).contains(&version) {
        let why = format!("it has version {version}, but this program knows {}", T::VERSION);
        return Err(corrupt(T::WHAT, why));
    }
    T::read(text).map_err(|error| corrupt(T::WHAT, error))
}

/// JSON in a column of a row that has its own version.
pub(super) fn decode_part<T: DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| corrupt(what, error))
}

pub(super) fn encode_part<T: Serialize>(what: &str, value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| corrupt(what, error))
}

/// The wire name of a unit variant, as stored in columns.
pub(super) fn name<T: Serialize>(what: &str, value: &T) -> Result<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => Ok(name),
        Ok(other) => Err(corrupt(what, format!("{other} is not a name"))),
        Err(error) => Err(corrupt(what, error)),
    }
}

pub(super) fn named<T: DeserializeOwned>(what: &str, name: String) -> Result<T> {
    serde_json::from_value(serde_json::Value::String(name)).map_err(|error| corrupt(what, error))
}

pub(super) fn digest(what: &str, bytes: &[u8]) -> Result<Digest> {
    <[u8; 32]>::try_from(bytes)
        .map(Digest::from_bytes)
        .map_err(|_| corrupt(what, format!("a digest of {} bytes", bytes.len())))
}

pub(super) fn namespace(text: String) -> Result<Namespace> {
    Namespace::try_from(text).map_err(|error| corrupt("namespace", error))
}

/// Counts are never negative in a valid file.
pub(super) fn count<T: TryFrom<i64>>(what: &str, value: i64) -> Result<T> {
    T::try_from(value).map_err(|_| corrupt(what, format!("{value} is out of range")))
}

/// Features as stored: little-endian f32 on every machine.
pub(super) fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// [`floats`] in hexadecimal digits, for rows that are passed as JSON.
pub(super) fn floats_hex(values: &[f32]) -> String {
    use std::fmt::Write;
    floats(values).iter().fold(String::with_capacity(values.len() * 8), |mut hex, byte| {
        // Writing to a string never fails.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

pub(super) fn read_floats(what: &str, bytes: &[u8]) -> Result<Vec<f32>> {
    let (words, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(corrupt(
            what,
            format!("{} bytes are not a whole number of f32 values", bytes.len()),
        ));
    }
    Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
}

pub(super) fn corrupt(what: &str, why: impl ToString) -> StoreError {
    StoreError::Corrupt { what: what.to_owned(), why: why.to_string() }
}

/// A position in a list: the sort key of the last row shown. The list's name prevents the use of cursors of other lists.
pub(super) fn cursor(list: &str, at: i64, id: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("{list}|{at}|{id}"))
}

pub(super) fn read_cursor(list: &str, text: &str) -> Result<(i64, String)> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| StoreError::BadCursor)?;
    let plain = String::from_utf8(bytes).map_err(|_| StoreError::BadCursor)?;
    let mut parts = plain.splitn(3, '|');
    match (parts.next(), parts.next().map(str::parse), parts.next()) {
        (Some(name), Some(Ok(at)), Some(id)) if name == list => Ok((at, id.to_owned())),
        _ => Err(StoreError::BadCursor),
    }
}

/// Removes the one row that was read beyond the page: its presence means that there is a next page.
pub(super) fn cut<T>(
    mut items: Vec<T>,
    limit: i64,
    key: impl Fn(&T) -> String,
) -> crate::store::Page<T> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = items.len() > limit;
    items.truncate(limit);
    let next = if more { items.last().map(key) } else { None };
    crate::store::Page { items, next }
}

/// A page holds at least one row, so that reading a list always ends.
pub(super) fn page_limit(limit: u32) -> i64 {
    limit.max(1).into()
}

/// Decodes rows of version and body, as most tables have them.
pub(super) fn decode_all<T: Stored>(rows: Vec<(i64, String)>) -> Result<Vec<T>> {
    rows.into_iter().map(|(version, body)| decode(version, &body)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::JobState;

    #[test]
    fn cursors_keep_to_their_list() {
        let text = cursor("jobs", -5, "a|b");
        assert_eq!(read_cursor("jobs", &text).unwrap(), (-5, "a|b".to_owned()));
        for (list, text) in
            [("trials", text.as_str()), ("jobs", "%%"), ("jobs", ""), ("jobs", "YQ")]
        {
            assert!(matches!(read_cursor(list, text), Err(StoreError::BadCursor)));
        }
    }

    #[test]
    fn names_and_versions_are_checked() {
        assert_eq!(name("state", &JobState::Queued).unwrap(), "queued");
        assert_eq!(named::<JobState>("state", "failed".to_owned()).unwrap(), JobState::Failed);
        assert!(matches!(
            named::<JobState>("state", "odd".to_owned()),
            Err(StoreError::Corrupt { .. })
        ));
        let candidate = Candidate::new("row_split").with("lanes", 8);
        let text = encode(&candidate).unwrap();
        assert_eq!(decode::<Candidate>(1, &text).unwrap(), candidate);
        assert!(matches!(decode::<Candidate>(2, &text), Err(StoreError::Corrupt { .. })));
        assert!(matches!(digest("x", &[0; 31]), Err(StoreError::Corrupt { .. })));
        assert!(matches!(count::<u32>("x", -1), Err(StoreError::Corrupt { .. })));
    }

    #[test]
    fn floats_come_back_bit_by_bit() {
        let values = [0.0, -0.0, 1.5, f32::MIN_POSITIVE, f32::MAX, f32::NAN, f32::NEG_INFINITY];
        let bytes = floats(&values);
        assert_eq!(bytes[8..12], [0, 0, 0xc0, 0x3f]);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(floats_hex(&values), hex);
        let back = read_floats("features", &bytes).unwrap();
        assert!(back.iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert_eq!(back.len(), values.len());
        assert!(matches!(read_floats("x", &bytes[1..]), Err(StoreError::Corrupt { .. })));
    }

    #[test]
    fn a_page_names_the_next_only_where_there_is_one() {
        let key = |n: &i32| n.to_string();
        assert_eq!(cut(vec![1, 2, 3], 2, key).next, Some("2".to_owned()));
        assert_eq!(cut(vec![1, 2], 2, key).next, None);
    }
}
