//! The choice among made-up files: links, several versions and majors, files that are broken or that nobody may read.

use super::*;
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;

/// A folder with these files, which only look like libraries.
fn folder(files: &[&str]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in files {
        let file = root.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, file.to_str().unwrap()).unwrap();
    }
    root
}

fn files(root: &Path, names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| root.join(name)).collect()
}

/// Opens nothing, and takes every copy whose name does not contain one of these words.
fn opens(copies: &[Installed], cuda_major: Option<u32>, refused: &[&str]) -> Choice<PathBuf> {
    choose(Library::Cusparse, copies, cuda_major, |copy| {
        let path = copy.file.display().to_string();
        match refused.iter().any(|word| path.contains(word)) {
            true => Err(LibraryError::Unloadable { path, reason: "too short".to_owned() }),
            false => Ok(copy.file.clone()),
        }
    })
}

fn usual(files: Vec<PathBuf>) -> (Vec<Installed>, Vec<PassedOver>) {
    installed(Library::Cusparse, vec![(Origin::Usual, files)])
}

fn versions(copies: &[Installed]) -> Vec<String> {
    copies.iter().map(|copy| dotted(&copy.version).unwrap_or_default()).collect()
}

#[test]
fn links_lead_to_one_copy_and_the_newest_is_first() {
    let root = folder(&["old/libcusparse.so.12.6.3.3", "new/libcusparse.so.12.10.0.1"]);
    let at = |name: &str| root.path().join(name);
    symlink("libcusparse.so.12.6.3.3", at("old/libcusparse.so.12")).unwrap();
    symlink(at("old/libcusparse.so.12"), at("old/libcusparse.so")).unwrap();
    symlink(at("new/libcusparse.so.12.10.0.1"), at("new/libcusparse.so.12")).unwrap();
    let names = [
        "old/libcusparse.so",
        "old/libcusparse.so.12",
        "old/libcusparse.so.12.6.3.3",
        "new/libcusparse.so.12",
    ];
    let (copies, broken) = usual(files(root.path(), &names));
    // As numbers, not as text: 10 is after 6.
    assert_eq!(versions(&copies), ["12.10.0.1", "12.6.3.3"]);
    assert_eq!(broken, []);
    let Choice { opened, passed_over } = opens(&copies, Some(13), &[]);
    assert_eq!(opened, Some(Ok(at("new/libcusparse.so.12"))));
    assert_eq!(passed_over.len(), 1);
    assert_eq!(passed_over[0].version.as_deref(), Some("12.6.3.3"));
    assert_eq!(passed_over[0].reason, "is older than the one opened");
}

#[test]
fn a_package_of_python_tells_the_version_that_the_file_does_not() {
    let lib = "nvidia/cu13/lib/libcusparse.so.12";
    let old = "nvidia/cusparse/lib/libcusparse.so.12";
    let root = folder(&[lib, old]);
    let packages = [
        ("nvidia_cusparse-12.9.4.2", lib),
        ("nvidia_cusparse_cu12-12.5.8.93", old),
        // A neighbour whose name begins alike and that brings another file.
        ("nvidia_cusparselt_cu13-0.8.0", "nvidia/cusparselt/lib/libcusparseLt.so.0"),
        // Not a version; it lists the file all the same.
        ("nvidia_odd-next", lib),
    ];
    for (package, brings) in packages {
        let info = root.path().join(format!("{package}.dist-info"));
        std::fs::create_dir(&info).unwrap();
        std::fs::write(info.join("RECORD"), format!("x.py,,\n{brings},sha256=a,1\n")).unwrap();
    }
    let unknown = folder(&["libcusparse.so.12"]);
    let mut all = files(unknown.path(), &["libcusparse.so.12"]);
    all.extend(files(root.path(), &[old, lib]));
    let (copies, _) = usual(all);
    assert_eq!(versions(&copies), ["12.9.4.2", "12.5.8.93", "12"]);
    let passed = opens(&copies, None, &[]).passed_over;
    assert_eq!(passed[1].reason, "does not tell its version by its name or its package");
}

#[test]
fn a_library_of_a_later_cuda_is_left_to_later_drivers() {
    let names =
        ["a/libcusparse.so.12.9.4.2", "b/libcusparse.so.12.5.10.65", "c/libcusparse.so.11.7.5.86"];
    let root = folder(&names);
    let (copies, _) = usual(files(root.path(), &names));
    let of = |cuda_major| opens(&copies, cuda_major, &[]);
    assert_eq!(of(Some(13)).opened, Some(Ok(root.path().join(names[0]))));
    assert_eq!(of(None).opened, Some(Ok(root.path().join(names[0]))));
    let twelve = of(Some(12));
    assert_eq!(twelve.opened, Some(Ok(root.path().join(names[1]))));
    let reason = "is of CUDA 13, and the driver runs libraries up to CUDA 12";
    assert_eq!(twelve.passed_over[0].reason, reason);
    assert_eq!(of(Some(11)).opened, Some(Ok(root.path().join(names[2]))));
    let ten = of(Some(10));
    assert!(ten.opened.is_none() && ten.passed_over.len() == 3);
    // cuBLAS counts as CUDA does.
    assert_eq!(needs_cuda(Library::Cublas, &[12, 9, 1, 4]), Some(12));
    assert_eq!(needs_cuda(Library::Cublas, &[13, 1]), Some(13));
}

#[test]
fn what_does_not_open_is_passed_over_with_its_reason() {
    let names = ["broken/libcusparse.so.12.9.4.2", "good/libcusparse.so.12.6.3.3"];
    let root = folder(&names);
    let dangling = root.path().join("libcusparse.so.12");
    symlink("nothing", &dangling).unwrap();
    let mut all = files(root.path(), &names);
    all.push(dangling.clone());
    let (copies, broken) = usual(all);
    assert_eq!((broken.len(), &broken[0].file), (1, &dangling));
    assert!(broken[0].reason.starts_with("leads to no file"), "{}", broken[0].reason);
    let choice = opens(&copies, Some(13), &["broken"]);
    assert_eq!(choice.opened, Some(Ok(root.path().join(names[1]))));
    assert_eq!(choice.passed_over[0].reason, "cannot be loaded: too short");
    // The first reason is told where none opens.
    let none = opens(&copies, Some(13), &["libcusparse"]);
    let error = none.opened.unwrap().unwrap_err().to_string();
    assert!(error.contains("broken") && none.passed_over.len() == 2, "{error}");
}

#[test]
fn what_the_configuration_names_precedes_newer_ones() {
    let names =
        ["usual/libcusparse.so.12.9.4.2", "a/libcusparse.so.12.2.0.1", "a/libcusparse.so.12.4.0.1"];
    let root = folder(&names);
    let [newest, older, newer] = names.map(|name| root.path().join(name));
    let places = |origin, named| vec![(origin, named), (Origin::Usual, vec![newest.clone()])];
    let named = places(Origin::NamedPlace, vec![older.clone(), newer.clone()]);
    let (copies, _) = installed(Library::Cusparse, named);
    let choice = opens(&copies, Some(13), &[]);
    assert_eq!(choice.opened, Some(Ok(newer)));
    let reasons: Vec<&str> = choice.passed_over.iter().map(|p| p.reason.as_str()).collect();
    assert_eq!(
        reasons,
        [
            "is not needed: the configuration names the one opened",
            "is newer, but the configuration names the one opened"
        ]
    );
    // A file by name is opened whatever the driver runs; a file in a folder is not.
    let (copies, _) = installed(Library::Cusparse, vec![(Origin::NamedFile, vec![newest.clone()])]);
    assert_eq!(opens(&copies, Some(12), &[]).opened, Some(Ok(newest.clone())));
    let (copies, _) =
        installed(Library::Cusparse, vec![(Origin::NamedPlace, vec![newest.clone()])]);
    assert!(opens(&copies, Some(12), &[]).opened.is_none());
    // Named and found again: one copy.
    let (copies, _) = installed(Library::Cusparse, places(Origin::NamedFile, vec![newest.clone()]));
    assert_eq!((copies.len(), copies[0].origin), (1, Origin::NamedFile));
}

#[test]
fn names_that_only_begin_alike_are_other_libraries() {
    let version = |name: &str| Library::Cusparse.version_in_name(Path::new(name));
    assert_eq!(version("/x/libcusparse.so.12.6.3.3"), Some(vec![12, 6, 3, 3]));
    assert_eq!(version("libcusparse.so"), Some(Vec::new()));
    for other in [
        "libcusparseLt.so.0",
        "libcusparse.so.12.thin",
        "libcusparse.so.",
        "libcusparse_static.a",
        "",
    ] {
        assert_eq!(version(other), None, "{other}");
    }
}
