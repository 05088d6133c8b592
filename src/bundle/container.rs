//! The file around the members: a ZIP archive whose members are stored without compression, in the order of their paths, each
//! at a multiple of 64 bytes, without times. Equal members give equal files, and a member is addressed by offset and length.

use super::directory;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{Cursor, Seek, Write};
use std::ops::Range;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

/// Every member begins at a multiple of this many bytes.
pub const ALIGNMENT: u16 = 64;

/// Most members of a bundle.
pub(super) const MOST_MEMBERS: usize = 64;
/// Longest path of a member in bytes.
pub(super) const LONGEST_PATH: usize = 100;
/// Files of this size and above need the archive's 64-bit fields.
const LARGE: u64 = u32::MAX as u64;

/// Members by path.
pub type Members<'a> = BTreeMap<String, Cow<'a, [u8]>>;

/// Why a file is not such an archive.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    #[error("the file is not a ZIP archive: {0}")]
    Archive(#[from] zip::result::ZipError),
    #[error("the file is not a ZIP archive that ends with a list of members as a bundle's does")]
    List,
    #[error("the archive has {0} members; a bundle has at most {MOST_MEMBERS}")]
    TooMany(u64),
    #[error("the archive's member number {0} has a path that no bundle has")]
    Path(usize),
    #[error("the archive has the member `{0}` twice")]
    Twice(String),
    #[error("member `{0}` is compressed or encrypted; a bundle's members are stored as they are")]
    NotStored(String),
    #[error("member `{0}` does not begin at a multiple of {ALIGNMENT} bytes")]
    Unaligned(String),
    #[error("member `{0}` reaches beyond the end of the file")]
    Beyond(String),
    #[error("the members `{0}` and `{1}` overlap")]
    Overlap(String, String),
}

/// Writes the archive.
///
/// # Errors
/// The output cannot be written.
pub fn write(out: impl Write + Seek, members: &Members<'_>) -> Result<(), ContainerError> {
    let mut archive = ZipWriter::new(out);
    for (path, bytes) in members {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .unix_permissions(0o644)
            .large_file(bytes.len() as u64 >= LARGE)
            .with_alignment(ALIGNMENT);
        archive.start_file(path, options)?;
        archive.write_all(bytes).map_err(zip::result::ZipError::Io)?;
    }
    archive.finish()?;
    Ok(())
}

/// Where each member lies in the file. Nothing is unpacked, so an archive can claim nothing that the file does not hold.
///
/// # Errors
/// The file is not an archive as [`write`] makes it.
pub fn read(file: &[u8]) -> Result<BTreeMap<String, Range<usize>>, ContainerError> {
    let listed = directory::check(file)?;
    let mut archive = ZipArchive::new(Cursor::new(file))?;
    // What is read is the list that was looked at.
    if archive.len() != listed {
        return Err(ContainerError::List);
    }
    let mut members = BTreeMap::new();
    for index in 0..archive.len() {
        let member = archive.by_index_raw(index)?;
        let Ok(path) = member.name().map(std::borrow::Cow::into_owned) else {
            return Err(ContainerError::Path(index));
        };
        if !is_plain(&path) {
            return Err(ContainerError::Path(index));
        }
        let stored = member.compression() == CompressionMethod::Stored
            && member.compressed_size() == member.size()
            && !member.encrypted();
        if !stored {
            return Err(ContainerError::NotStored(path));
        }
        let range = member.data_start().and_then(|start| {
            let start = usize::try_from(start).ok()?;
            let end = start.checked_add(usize::try_from(member.size()).ok()?)?;
            (end <= file.len()).then_some(start..end)
        });
        let Some(range) = range else { return Err(ContainerError::Beyond(path)) };
        if !range.start.is_multiple_of(usize::from(ALIGNMENT)) {
            return Err(ContainerError::Unaligned(path));
        }
        members.insert(path, range);
    }
    let mut by_place: Vec<(&String, &Range<usize>)> = members.iter().collect();
    by_place.sort_by_key(|(_, range)| (range.start, range.end));
    for pair in by_place.windows(2) {
        if pair[0].1.end > pair[1].1.start {
            return Err(ContainerError::Overlap(pair[0].0.clone(), pair[1].0.clone()));
        }
    }
    Ok(members)
}

/// A relative path of plain names: nothing that could leave a folder, on any system.
fn is_plain(path: &str) -> bool {
    let name = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        !name.is_empty() && !name.starts_with('.') && name.bytes().all(plain)
    };
    path.len() <= LONGEST_PATH && path.split('/').all(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(members: &[(&str, &[u8])]) -> Vec<u8> {
        let members = members.iter().map(|&(path, bytes)| (path.to_owned(), bytes.into()));
        let mut file = Cursor::new(Vec::new());
        write(&mut file, &members.collect()).unwrap();
        file.into_inner()
    }

    #[test]
    fn members_are_aligned_and_equal_members_give_equal_files() {
        let members: [(&str, &[u8]); 3] = [("b.json", b"{}"), ("a/x.cubin", b""), ("c", b"123")];
        let file = written(&members);
        assert_eq!(file, written(&[members[2], members[0], members[1]]));
        let places = read(&file).unwrap();
        assert_eq!(places.keys().collect::<Vec<_>>(), ["a/x.cubin", "b.json", "c"]);
        for (path, bytes) in members {
            let place = places[path].clone();
            assert_eq!((place.start % 64, &file[place]), (0, bytes));
        }
    }

    fn foreign(path: &str, options: SimpleFileOptions) -> Vec<u8> {
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        archive.start_file(path, options).unwrap();
        archive.write_all(&[7; 100]).unwrap();
        archive.finish().unwrap().into_inner()
    }

    #[test]
    fn foreign_archives_are_refused() {
        let stored = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .with_alignment(64);
        for path in
            ["../etc", "/etc", "a/../b", "a\\b", ".hidden", "a//b", "C:x", "a\n", &"x".repeat(101)]
        {
            let refused = read(&foreign(path, stored)).unwrap_err();
            assert!(matches!(refused, ContainerError::Path(0)), "{path}: {refused}");
        }
        let packed = stored.compression_method(CompressionMethod::Deflated);
        assert!(matches!(read(&foreign("a", packed)), Err(ContainerError::NotStored(_))));
        let odd = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        assert!(matches!(read(&foreign("a", odd)), Err(ContainerError::Unaligned(_))));
        assert!(matches!(read(b"PK"), Err(ContainerError::List)));
        let names: Vec<String> = (0..65).map(|i| format!("m{i}")).collect();
        let many: Vec<(&str, &[u8])> =
            names.iter().map(|name| (name.as_str(), &b"x"[..])).collect();
        assert!(matches!(read(&written(&many)), Err(ContainerError::TooMany(65))));
    }

    #[test]
    fn a_damaged_archive_is_an_error_and_never_a_panic() {
        let file = written(&[("a", b"123"), ("b", &[5; 300])]);
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 0x55;
            let _ = read(&damaged);
            let _ = read(&file[..at]);
        }
    }
}
