//! What of a data folder others than its owner may read: told by `doctor`, and at every start of a server.

use super::config::Config;
use crate::fence;
use crate::store::private::{self, Exposed};
use std::path::{Path, PathBuf};

/// The folders and files that are to be private, as far as they are there, and are not.
fn of(config: &Config) -> Vec<Exposed> {
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

/// All of it in lines: what others may read, and what lies where evaluators read the system's libraries. `file` is the configuration's.
pub fn sentences(config: &Config, file: Option<&Path>) -> Vec<String> {
    let data =
        [config.data.dir.clone(), config.data.beside_store(), config.blobs().folder().into()];
    let mut within: Vec<(PathBuf, &Path)> = data
        .into_iter()
        .chain(file.map(Path::to_owned))
        .filter_map(|place| fence::readable_with(&place).map(|folder| (place, folder)))
        .collect();
    within.dedup_by(|a, b| a.0.starts_with(&b.0));
    let within = within.iter().map(|(place, folder)| {
        format!(
            "{} lies in {}, which the fence lets evaluators read for the system's libraries: move it, to /var/lib or /etc for instance",
            place.display(),
            folder.display()
        )
    });
    of(config).iter().map(told).chain(within).collect()
}

/// What is wrong and what to do, in a line.
fn told(found: &Exposed) -> String {
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
    fn data_among_the_systems_libraries_is_told() {
        let config = Config::load(None, &[("data.dir", "/opt/sparsetune".into())]).unwrap();
        let told = sentences(&config, Some(Path::new("/usr/etc/sparsetune.toml")));
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("/opt/sparsetune lies in /opt"), "{told:?}");
        assert!(told[1].contains("sparsetune.toml lies in /usr"), "{told:?}");
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("data");
        private::folder(&dir).unwrap();
        let config = Config::load(None, &[("data.dir", dir.to_str().unwrap().into())]);
        assert_eq!(sentences(&config.unwrap(), None), [""; 0]);
    }

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
