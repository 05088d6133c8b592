//! What of a data folder others than its owner may read: told by `doctor`, and at every start of a server.

use super::config::Config;
use crate::store::private::{self, Exposed};
use std::path::{Path, PathBuf};

/// The folders and files that are to be private, as far as they are there, and are not.
pub fn of(config: &Config) -> Vec<Exposed> {
    let data = &config.data;
    let store = data.beside_store();
    let beside = |ending: &str| {
        let mut name = store.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let places = [
        data.dir.clone(),
        data.dir.join(super::session_key::NAME),
        data.uploads(),
        config.blobs().folder().to_owned(),
        beside("-wal"),
        beside("-shm"),
        store.clone(),
    ];
    let found: Vec<Exposed> = places.iter().filter_map(|place| private::exposed(place)).collect();
    // Who cannot enter the data folder reads nothing in it.
    let closed = data.dir.is_dir() && private::exposed(&data.dir).is_none();
    found.into_iter().filter(|one| !(closed && one.path.starts_with(&data.dir))).collect()
}

/// What is wrong and what to do, in a line.
pub fn told(found: &Exposed) -> String {
    format!(
        "{} may be used by others than its owner (mode {:o}): chmod {:o} {0}",
        found.path.display(),
        found.mode,
        found.remedy()
    )
}

/// Warns if others may read a file with a token.
pub fn warn_of_token(file: &Path) {
    if let Some(found) = private::exposed(file) {
        tracing::warn!("the token file {}", told(&found));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_open_data_folder_is_told_with_the_remedy() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("data");
        let config = Config::load(None, &[("data.dir", dir.to_str().unwrap().into())]).unwrap();
        assert_eq!(of(&config), []);
        private::folder(&dir).unwrap();
        std::fs::write(config.data.beside_store(), "").unwrap();
        let chmod = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        chmod(&config.data.beside_store(), 0o644);
        assert_eq!(of(&config), [], "nobody reaches it");
        chmod(&dir, 0o755);
        let told: Vec<String> = of(&config).iter().map(told).collect();
        assert!(told.len() == 2 && told[0].contains("mode 755): chmod 700"), "{told:?}");
        assert!(told[1].contains("chmod 600"), "{told:?}");
    }
}
