//! What is opened for which library, in made-up folders.

use super::*;

#[test]
fn a_broken_library_is_named_and_a_missing_one_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("libfoo.so");
    std::fs::write(&file, "not a library").unwrap();
    assert!(matches!(
        load(Library::Cusparse, &file),
        Err(LibraryError::Unloadable { path, .. }) if path.ends_with("libfoo.so")
    ));
    let search = Search::new(&[root.path().to_owned()]);
    let error = search.absent(Library::Nvml, &search.names(Library::Nvml)).to_string();
    assert!(error.starts_with("NVML is not installed: no libnvidia-ml.so.1,"), "{error}");
}

#[test]
fn a_place_that_is_named_for_one_library_serves_no_other() {
    let root = tempfile::tempdir().unwrap();
    for file in ["libcusparse.so.12", "libcublas.so.13", "libnvidia-ml.so.1"] {
        std::fs::write(root.path().join(file), "not a library").unwrap();
    }
    let folder = root.path().display().to_string();
    let broken = |place: &str, library| {
        let search = Search::new(&[PathBuf::from(place)]);
        let own = search.places(library).collect::<Vec<_>>() == [root.path()];
        let tried = match search.open(library) {
            Err(LibraryError::Unloadable { path, .. }) => path.starts_with(&folder),
            _ => false,
        };
        // An installed copy elsewhere may open all the same.
        assert!(own || !tried, "{place}");
        own
    };
    let libraries = [Library::Cusparse, Library::Cublas, Library::Nvml, Library::Nvrtc];
    let served = |place: &str| libraries.map(|library| broken(place, library));
    assert_eq!(served(&format!("cusparse={folder}")), [true, false, false, false]);
    assert_eq!(served(&format!("cublas={folder}")), [false, true, false, false]);
    assert_eq!(served(&format!("cuda={folder}")), [false, false, true, false]);
    assert_eq!(served(&format!("nvrtc={folder}")), [false, false, false, true]);
    assert_eq!(served(&folder), [true; 4]);
    // A path with the sign in it.
    let place = Place::of(Path::new("/opt/x=y"));
    assert!(place.library.is_none() && place.path == Path::new("/opt/x=y"));
}

#[test]
fn an_older_driver_is_not_given_a_newer_compiler() {
    let search = Search { cuda_major: Some(12), ..Search::default() };
    let names = search.names(Library::Nvrtc);
    assert_eq!(names, ["libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"]);
    let names = search.names(Library::Cublas);
    assert_eq!(names, ["libcublas.so.12", "libcublas.so.11", "libcublas.so"]);
}
