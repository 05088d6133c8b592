//! What of the fence can be tried within a test's own process; the rest is tried on a child (`tests/pool/fence.rs`).

use super::*;

#[test]
fn every_extent_has_a_name_of_its_own() {
    for fence in Fence::ALL {
        assert_eq!(fence.name().parse(), Ok(fence));
        assert_eq!(serde_json::from_str::<Fence>(&format!("\"{}\"", fence.name())).unwrap(), fence);
    }
    assert!("partly".parse::<Fence>().unwrap_err().contains("auto, required, without_files, off"));
}

#[test]
fn a_missing_wall_is_an_error_only_where_all_are_required() {
    let walls = || {
        let standing = Wall { name: "limits", state: Ok("low".to_owned()) };
        vec![standing, Wall { name: "files", state: Err("no Landlock".to_owned()) }]
    };
    assert_eq!(checked(Fence::Auto, walls()).unwrap(), walls());
    let error = checked(Fence::Required, walls()).unwrap_err().to_string();
    assert!(error.contains("files: missing, no Landlock"), "{error}");
}

/// CUDA's driver does not open a device if it cannot name its threads so. The wall is around the thread that makes it, and its children.
#[cfg(target_os = "linux")]
#[test]
fn threads_are_named_within_the_wall_around_files() {
    use std::io::Write;
    for extent in [files::Extent::All, files::Extent::Writes] {
        let within = std::thread::spawn(move || {
            limits::no_new_privileges().state.unwrap();
            let folders = Folders::default();
            let wall = files::restrict(extent, &Needs::Device { readable: &[], folders: &folders });
            let name = |thread: i32| {
                let path = format!("/proc/self/task/{thread}/comm");
                let mut options = std::fs::OpenOptions::new();
                options.write(true).create(true).truncate(true).open(path)?.write_all(b"named")
            };
            let (tell, told) = std::sync::mpsc::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let other = std::thread::spawn(move || {
                tell.send(nix::unistd::gettid().as_raw()).unwrap();
                ended.recv().unwrap_err();
            });
            name(nix::unistd::gettid().as_raw()).unwrap();
            name(told.recv().unwrap()).unwrap();
            let own = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
            let adjusted = std::fs::OpenOptions::new().write(true).open("/proc/self/oom_score_adj");
            drop(end);
            other.join().unwrap();
            (own, wall.state.map(|_| adjusted.is_err()))
        });
        let (own, refused) = within.join().unwrap();
        assert_eq!(own.trim(), "named");
        // A kernel without Landlock has no wall, and refuses nothing.
        assert!(refused.unwrap_or(true), "{extent:?} permits more of /proc than the threads");
    }
}

#[test]
fn what_lies_among_the_systems_libraries_is_told() {
    for (path, folder) in
        [("/opt/sparsetune/data", "/opt"), ("/usr", "/usr"), ("/usr/local/etc/x.toml", "/usr")]
    {
        assert_eq!(super::readable_with(Path::new(path)), Some(Path::new(folder)), "{path}");
    }
    for path in ["/var/lib/sparsetune", "/optional", "/etc/sparsetune/config.toml", "/", "data"] {
        assert_eq!(super::readable_with(Path::new(path)), None, "{path}");
    }
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("data");
    std::os::unix::fs::symlink("/usr/share", &link).unwrap();
    assert_eq!(super::readable_with(&link.join("new")), Some(Path::new("/usr")));
}
