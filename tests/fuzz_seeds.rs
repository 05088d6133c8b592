//! Every fuzz target over its seed corpus, and over damaged copies of it: the part of fuzzing that needs no nightly toolchain.

#[path = "../fuzz/src/lib.rs"]
mod targets;

use std::path::Path;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

#[test]
fn every_target_takes_its_seeds_and_their_ruins() {
    for (name, run) in targets::TARGETS {
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for seed in seeds {
            run(&seed);
            for part in 1..8 {
                run(&seed[..seed.len() * part / 8]);
            }
            // A step that is prime to most strides, so that every field is hit in some seed.
            for at in (0..seed.len()).step_by(1 + seed.len() / 61) {
                let mut damaged = seed.clone();
                damaged[at] ^= 1 << (at % 8);
                run(&damaged);
            }
        }
    }
}

#[test]
fn every_folder_of_seeds_is_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(targets::TARGETS.iter().any(|(known, _)| *known == name), "{name:?}");
    }
}
