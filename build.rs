//! Has the crate compiled again when a file that it embeds is added: the macros know only those that they saw.

fn main() {
    for path in ["build.rs", "config/models", "migrations", "web"] {
        println!("cargo:rerun-if-changed={path}");
    }
}
