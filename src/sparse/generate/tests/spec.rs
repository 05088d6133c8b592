//! Specifications: text and JSON, and what is said of wrong ones.

use crate::sparse::generate::{Spec, SpecError};

#[test]
fn reads_text_and_json_alike() {
    let spec = Spec::Poisson3d { nx: 64, ny: 32, nz: 1000, seed: 1 };
    assert_eq!(Spec::parse("poisson3d:nx=64, ny=32,nz=1e3,seed=1"), Ok(spec.clone()));
    let json = r#"{"kind":"poisson3d","nx":64,"ny":32,"nz":1000,"seed":1}"#;
    assert_eq!(serde_json::from_str::<Spec>(json).unwrap(), spec);
    assert_eq!(serde_json::to_string(&spec).unwrap(), json);
    let Ok(Spec::Rmat { a, d, edge_factor, .. }) = Spec::parse("rmat:scale=10,edge_factor=4")
    else {
        panic!("not an RMAT specification");
    };
    assert_eq!((a, d, edge_factor), (0.57, 0.05, 4));
}

#[test]
fn says_what_is_wrong() {
    let fit = |text: &str| match Spec::parse(text) {
        Err(SpecError::Fit(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(fit("poisson4d:nx=2").contains("unknown variant `poisson4d`, expected one of"));
    assert!(fit("poisson2d:nx=2").contains("missing field `ny`"));
    assert!(fit("poisson2d:nx=2,ny=2,nz=2").contains("unknown field `nz`"));
    assert!(fit("poisson2d:nx=2.5,ny=2").contains("expected u64"));
    assert!(fit("poisson2d:nx=-2,ny=2").contains("expected u64"));
    assert_eq!(Spec::parse("poisson2d:nx"), Err(SpecError::Pair("nx".to_owned())));
    let twice = SpecError::Twice { name: "nx".to_owned() };
    assert_eq!(Spec::parse("poisson2d:nx=1,nx=2,ny=3"), Err(twice));
    let number = Spec::parse("poisson2d:nx=many,ny=3").unwrap_err();
    assert_eq!(number.to_string(), "`nx=many`: the value must be a number");
}
