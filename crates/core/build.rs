//! Tells the library which compiler built it: on a CPU that is part of what a measurement depends on.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Embedded at compile time: the macro knows the files that it saw, not those that came later.
    println!("cargo:rerun-if-changed=kernels");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = Command::new(rustc).arg("--version").output();
    let version = version.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    println!("cargo:rustc-env=SPARSETUNE_RUSTC={}", version.as_deref().unwrap_or("rustc").trim());
}
