//! Writes the arrays of a recipe to files for its plan: little-endian, without a header, one file each.

use crate::domain::protocol::ExportedArray;
use crate::domain::recipe::Array;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
#[error("array `{name}` cannot be written to {}: {error}", path.display())]
pub(super) struct ArrayError {
    name: String,
    path: PathBuf,
    error: io::Error,
}

/// Lists the arrays in the recipe's order. If a folder is given, array `I` is written there as `array-I`, and `begin`
/// is called before each; `reach` tells where this process finds the folder, whose files are listed as the pool names them.
pub(super) fn export(
    arrays: &[Array],
    folder: Option<&Path>,
    reach: impl Fn(&Path) -> PathBuf,
    mut begin: impl FnMut() -> io::Result<()>,
) -> Result<Vec<ExportedArray>, ArrayError> {
    let exported = arrays.iter().enumerate().map(|(index, array)| {
        let file = folder.map(|folder| folder.join(format!("array-{index}")));
        if let Some(path) = &file {
            let write = || std::fs::write(reach(path), array.data.bytes());
            begin().and_then(|()| write()).map_err(|error| {
                let (name, path) = (array.name.clone(), path.clone());
                ArrayError { name, path, error }
            })?;
        }
        let element = array.data.element().name().to_owned();
        let (name, length) = (array.name.clone(), array.data.len() as u64);
        Ok(ExportedArray { name, element, length, file })
    });
    exported.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::recipe::ArrayData;

    fn arrays() -> Vec<Array> {
        let array = |name: &str, data| Array { name: name.to_owned(), data };
        vec![
            array("local", ArrayData::U16([1, 0x203].into())),
            array("order", ArrayData::U32([7].into())),
            array("none", ArrayData::F32([].into())),
            array("packed", ArrayData::F64([1.5, -0.25, 3.0].into())),
        ]
    }

    #[test]
    fn each_array_is_written_to_its_own_file() {
        let folder = tempfile::tempdir().unwrap();
        let exported = export(&arrays(), Some(folder.path()), Path::to_owned, || Ok(())).unwrap();
        let shapes: Vec<_> =
            exported.iter().map(|array| (array.element.as_str(), array.length)).collect();
        assert_eq!(shapes, [("u16", 2), ("u32", 1), ("f32", 0), ("f64", 3)]);
        assert_eq!(exported[3].name, "packed");
        let files: Vec<Vec<u8>> = exported
            .iter()
            .map(|array| std::fs::read(array.file.as_ref().unwrap()).unwrap())
            .collect();
        assert_eq!(files[0], [1, 0, 3, 2]);
        assert_eq!(files[1], [7, 0, 0, 0]);
        assert!(files[2].is_empty());
        assert_eq!(files[3][8..16], (-0.25f64).to_le_bytes());
        assert!(folder.path().join("array-3").exists());
    }

    #[test]
    fn without_a_folder_arrays_are_only_listed() {
        let exported = export(&arrays(), None, Path::to_owned, || Ok(())).unwrap();
        assert!(exported.len() == 4 && exported.iter().all(|array| array.file.is_none()));
    }

    #[test]
    fn a_missing_folder_is_named_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = export(&arrays(), Some(&folder.path().join("gone")), Path::to_owned, || Ok(()))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("array `local` cannot be written to "), "{error}");
    }
}
