//! The list at the end of an archive, walked before the library that reads archives makes anything of it: a small file may list any
//! number of members, each of which takes memory there before it can be refused.

use super::container::{ContainerError, LONGEST_PATH, MOST_MEMBERS};
use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes of the record at the end, without a comment.
const END: usize = 22;
/// Bytes of the 64-bit record before it, and of what says where that is.
const END64: usize = 56;
const LOCATOR: usize = 20;
/// Bytes of a member's record, without its name.
const RECORD: usize = 46;
/// Most bytes of a record's other fields: its 64-bit lengths and what alignment leaves there.
const MOST_EXTRA: u64 = 256;

/// A number of some bytes, which are a file's and so may be missing.
fn number(file: &[u8], at: Range<usize>) -> Option<u64> {
    let bytes = file.get(at)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Where the list is, and how many members it has.
fn list(file: &[u8]) -> Option<(Range<u64>, u64)> {
    let end = file.len().checked_sub(END)?;
    let field = |from: usize, bytes: usize| number(file, end + from..end + from + bytes);
    let single = field(4, 4)? == 0 && field(20, 2)? == 0;
    if !file[end..].starts_with(b"PK\x05\x06") || !single {
        return None;
    }
    let (here, count, bytes, start) = (field(8, 2)?, field(10, 2)?, field(12, 4)?, field(16, 4)?);
    let narrow = u64::from(u32::MAX);
    if count != u64::from(u16::MAX) && bytes != narrow && start != narrow {
        let whole = here == count && start.checked_add(bytes)? == end as u64;
        return whole.then_some((start..end as u64, count));
    }
    let end = end.checked_sub(END64 + LOCATOR)?;
    let field = |from: usize, bytes: usize| number(file, end + from..end + from + bytes);
    // All in one part: of an archive in several the library would look for another list further up.
    let record = file[end..].starts_with(b"PK\x06\x06")
        && field(4, 8)? == END64 as u64 - 12
        && field(16, 8)? == 0;
    let locator = &file[end + END64..];
    let located = locator.starts_with(b"PK\x06\x07")
        && number(locator, 4..8)? == 0
        && number(locator, 8..16)? == end as u64
        && number(locator, 16..20)? == 1;
    let (here, count, bytes, start) = (field(24, 8)?, field(32, 8)?, field(40, 8)?, field(48, 8)?);
    let whole = here == count && start.checked_add(bytes)? == end as u64;
    (record && located && whole).then_some((start..end as u64, count))
}

/// Refuses an archive whose list is not as our own is: right before the end of the file, of few members with short names that
/// differ, and of nothing else. Returns how many there are.
pub(super) fn check(file: &[u8]) -> Result<usize, ContainerError> {
    let (place, count) = list(file).ok_or(ContainerError::List)?;
    if count > MOST_MEMBERS as u64 {
        return Err(ContainerError::TooMany(count));
    }
    let mut names = BTreeSet::new();
    let mut at = place.start as usize;
    for index in 0..count as usize {
        let record = file.get(at..).unwrap_or_default();
        let length = |from: usize| number(record, from..from + 2).ok_or(ContainerError::List);
        let (name, extra, comment) = (length(28)?, length(30)?, length(32)?);
        if !record.starts_with(b"PK\x01\x02") || extra > MOST_EXTRA || comment > 0 {
            return Err(ContainerError::List);
        }
        if name > LONGEST_PATH as u64 {
            return Err(ContainerError::Path(index));
        }
        let name = record.get(RECORD..RECORD + name as usize).ok_or(ContainerError::List)?;
        if !names.insert(name) {
            let name = String::from_utf8_lossy(name).escape_debug().to_string();
            return Err(ContainerError::Twice(name));
        }
        at += RECORD + name.len() + extra as usize;
    }
    if at as u64 == place.end { Ok(count as usize) } else { Err(ContainerError::List) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive that lists the same member many times, and has it nowhere.
    fn listing(records: usize, told: u16, long: Option<u64>) -> Vec<u8> {
        let mut file = Vec::new();
        for _ in 0..records {
            file.extend_from_slice(b"PK\x01\x02");
            file.extend_from_slice(&[0; RECORD - 4]);
        }
        let bytes = file.len() as u64;
        if let Some(count) = long {
            file.extend_from_slice(b"PK\x06\x06");
            file.extend_from_slice(&44u64.to_le_bytes());
            file.extend_from_slice(&[0; 12]);
            for field in [count, count, bytes, 0] {
                file.extend_from_slice(&field.to_le_bytes());
            }
            file.extend_from_slice(b"PK\x06\x07\0\0\0\0");
            file.extend_from_slice(&bytes.to_le_bytes());
            file.extend_from_slice(&1u32.to_le_bytes());
        }
        file.extend_from_slice(b"PK\x05\x06\0\0\0\0");
        file.extend_from_slice(&told.to_le_bytes());
        file.extend_from_slice(&told.to_le_bytes());
        let bytes = if long.is_some() { u32::MAX } else { bytes as u32 };
        file.extend_from_slice(&bytes.to_le_bytes());
        file.extend_from_slice(&[0; 6]);
        file
    }

    #[test]
    fn a_list_is_refused_by_what_it_says_and_by_what_it_holds() {
        // What it says is looked at first, and nothing of the list itself.
        let many = check(&listing(100_000, 65_000, None));
        assert!(matches!(many, Err(ContainerError::TooMany(65_000))), "{many:?}");
        let more = check(&listing(100_000, u16::MAX, Some(100_000)));
        assert!(matches!(more, Err(ContainerError::TooMany(100_000))), "{more:?}");
        // A number that is lower than that of the records does not hide them.
        for long in [None, Some(3)] {
            let hidden = check(&listing(100_000, 3, long));
            assert!(matches!(hidden, Err(ContainerError::Twice(_) | ContainerError::List)));
        }
        assert!(check(&listing(0, 0, None)).is_ok() && check(&listing(1, 1, None)).is_ok());
        assert!(check(&listing(1, u16::MAX, Some(1))).is_ok());
        let hidden = check(&listing(2, 1, None));
        assert!(matches!(hidden, Err(ContainerError::List)), "{hidden:?}");
        // Nor is it an archive in several parts, of which the library would not take this end for the right one.
        let whole = listing(1, u16::MAX, Some(1));
        let record = whole.len() - END - LOCATOR - END64;
        for at in [record + 16, record + 20, record + END64 + 4, record + END64 + 16] {
            let mut parted = whole.clone();
            parted[at] ^= 2;
            assert!(matches!(check(&parted), Err(ContainerError::List)), "{at}");
        }
        // Behind the end there is nothing: no comment, in which another end might stand.
        let mut commented = listing(1, 1, None);
        let end = commented.len();
        commented[end - 2] = 1;
        commented.push(b'x');
        assert!(matches!(check(&commented), Err(ContainerError::List)));
    }

    #[test]
    fn any_file_is_answered() {
        let file = listing(2, u16::MAX, Some(2));
        for at in 0..file.len() {
            for change in [0xff, 0x01, 0x80] {
                let mut damaged = file.clone();
                damaged[at] ^= change;
                let _ = check(&damaged);
            }
            let _ = check(&file[at..]);
        }
    }
}
