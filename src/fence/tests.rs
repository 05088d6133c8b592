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
