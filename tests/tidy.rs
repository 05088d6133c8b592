//! Keeps the house in order: which room may import which, file headers, file lengths, and what must not be committed.

mod tidy {
    pub mod forwarding;
    pub mod rooms;
    pub mod tokens;
}

use std::path::{Path, PathBuf};
use tidy::rooms;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `folder` (relative to the repository) with one of the extensions, as (relative path, text).
fn files(folder: &str, extensions: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(folder) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            // The core's package links to the sources of the whole, which are read once.
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                open.push(path);
            } else if path
                .extension()
                .is_some_and(|e| extensions.iter().any(|wanted| e == std::ffi::OsStr::new(wanted)))
            {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(root()).unwrap().to_owned(), text));
            }
        }
    }
    found.sort();
    found
}

fn sources() -> Vec<(PathBuf, String)> {
    let sources = files("src", &["rs"]);
    assert!(sources.len() > 20, "the walk found only {} source files", sources.len());
    sources
}

/// Fails with every fault at once: one run tells all that is to be mended.
fn report(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn rooms_import_only_what_the_table_allows() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let module = rooms::module_of(&path);
        for room in rooms::imported(&module, &text) {
            if let Some(fault) = rooms::fault(&module, &room) {
                faults.push(format!("{}: {fault}", path.display()));
            }
        }
    }
    report(&faults);
}

#[test]
fn every_room_is_in_the_table() {
    let mut unknown = Vec::new();
    for library in ["src/lib.rs", "src/core.rs"] {
        let text = std::fs::read_to_string(root().join(library)).unwrap();
        let declared =
            text.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
        for room in declared.filter(|room| rooms::allowed(room).is_none()) {
            unknown.push(format!("{library} declares `{room}`, which has no line in the table"));
        }
    }
    report(&unknown);
}

#[test]
fn the_architecture_shows_the_same_table() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut faults = Vec::new();
    for (room, allowed) in rooms::TABLE {
        let row = text.lines().find(|line| line.starts_with(&format!("| `{room}` |")));
        let Some(row) = row else {
            faults.push(format!("ARCHITECTURE.md has no row for `{room}`"));
            continue;
        };
        let said = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
        let meant = if allowed.is_empty() { "–".to_owned() } else { allowed.join(", ") };
        if said != meant {
            faults
                .push(format!("ARCHITECTURE.md lets `{room}` import `{said}`, the test `{meant}`"));
        }
    }
    report(&faults);
}

/// The other rooms make spans with `tracing` alone.
const OPENTELEMETRY: &[&str] = &[
    "opentelemetry",
    "opentelemetry_http",
    "opentelemetry_otlp",
    "opentelemetry_sdk",
    "tracing_opentelemetry",
    "tracing_subscriber",
];

/// Transport, SQL, the driver and the terminal each have one home.
#[test]
fn libraries_stay_in_their_rooms() {
    let homes: [(&[&str], &str); 9] = [
        (&["axum", "axum_extra", "axum_prometheus", "tower", "tower_http"], "src/http"),
        (&["sqlx"], "src/store"),
        (&["object_store"], "src/store/blobs/s3"),
        (&["hyper_rustls", "rustls"], "src/store"),
        (&["cudarc"], "src/engine/cuda"),
        (&["libloading"], "src/engine/libraries"),
        (&["clap", "indicatif", "comfy_table", "reqwest", "toml"], "src/cli"),
        (OPENTELEMETRY, "src/cli"),
        (&["anyhow"], "src/cli"),
    ];
    let mut faults = Vec::new();
    for (path, text) in sources() {
        for name in tidy::tokens::path_heads(&text) {
            for (_, home) in homes.iter().filter(|(names, _)| names.contains(&name.as_str())) {
                // main.rs is the end of the command line: it parses and reports. Addresses of webhooks alone are read by the service.
                let also = match name.as_str() {
                    "reqwest" => "src/service/webhooks/send.rs",
                    _ => "src/main.rs",
                };
                let at_home =
                    path.starts_with(home) || (*home == "src/cli" && path == Path::new(also));
                if !at_home {
                    faults.push(format!("{}: `{name}` belongs in {home}", path.display()));
                }
            }
        }
    }
    report(&faults);
}

#[test]
fn the_environment_is_read_in_one_place() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        if path != Path::new("src/environment.rs") && text.contains("env::var") {
            faults.push(format!("{}: variables are read in src/environment.rs", path.display()));
        }
    }
    report(&faults);
}

/// A wrapper that repeats every method of what it wraps grows with it; a generic adapter or `Deref` does not.
#[test]
fn wrappers_forward_few_methods_by_hand() {
    const MOST: usize = 3;
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let forwarded = tidy::forwarding::forwarded(&text);
        if forwarded.len() > MOST {
            faults.push(format!("{} forwards by hand: {}", path.display(), forwarded.join(", ")));
        }
    }
    report(&faults);
}

/// Operations are described in `domain` and known in `ops`; engine and evaluator run them. Elsewhere they are data: these
/// files are the exceptions, and a new one wants a reason.
#[test]
fn operations_are_named_where_they_are_known() {
    let homes = ["domain", "ops", "engine", "evaluator"];
    let exceptions = [
        // Suites and drawn matrices are written for an operation.
        "src/cli/bench/subject.rs",
        "src/cli/bench/suite.rs",
        "src/cli/corpus/draw.rs",
        "src/cli/quickstart.rs",
        // Which learners rank the candidates of which operation.
        "src/service/training/lesson.rs",
        // Operands, checks and host kernels of the plans of the two.
        "src/bundle/check.rs",
        "src/bundle/host.rs",
        "src/bundle/operand.rs",
        // The mathematics of the two.
        "src/sparse/oracle.rs",
        "src/sparse/tolerance.rs",
        "src/sparse/triangle.rs",
    ];
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let module = rooms::module_of(&path);
        let at_home = module.first().is_some_and(|room| homes.contains(&room.as_str()));
        let test = path.to_string_lossy().contains("test");
        if at_home || test {
            continue;
        }
        let excepted = exceptions.iter().any(|known| path == Path::new(known));
        let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let code = shipped.lines().filter(|line| !line.trim_start().starts_with("//"));
        let named = code
            .flat_map(|line| line.split(|c: char| !c.is_alphanumeric()))
            .find(|word| matches!(*word, "Spmm" | "Sptrsv" | "spmm" | "sptrsv"));
        match (named, excepted) {
            (Some(name), false) => {
                faults.push(format!("{}: names the operation `{name}`", path.display()));
            }
            (None, true) => {
                faults.push(format!("{}: is an exception without need", path.display()));
            }
            _ => {}
        }
    }
    report(&faults);
}

#[test]
fn source_files_open_with_a_sentence() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let first = text.lines().next().unwrap_or_default();
        if !first.starts_with("//! ") {
            faults.push(format!("{}: opens with `{first}`, not `//! ...`", path.display()));
        }
    }
    for (path, text) in files("kernels", &["cuh", "cu"]) {
        let first = text.lines().next().unwrap_or_default();
        if !first.starts_with("// ") {
            faults.push(format!("{}: opens with `{first}`, not `// ...`", path.display()));
        }
    }
    report(&faults);
}

/// A family's header is one that has a config struct; it says how it maps, what is tuned, what it needs and refuses.
#[test]
fn kernel_families_state_their_contract() {
    let families: Vec<_> = ["kernels/spmm", "kernels/sptrsv"]
        .iter()
        .flat_map(|folder| files(folder, &["cuh"]))
        .filter(|(_, text)| text.contains("Config : "))
        .collect();
    assert!(families.len() >= 8, "only {} families found", families.len());
    let mut faults = Vec::new();
    for (path, text) in families {
        for line in ["// maps:", "// tune:", "// needs:", "// refuses:"] {
            if !text.lines().take(12).any(|have| have.starts_with(line)) {
                faults.push(format!("{}: no `{line}` line in its header", path.display()));
            }
        }
        if !text.contains("static_assert(") {
            faults.push(format!("{}: its config asserts nothing", path.display()));
        }
    }
    report(&faults);
}

/// One spelling of what every kernel needs: it is in `device.cuh`.
#[test]
fn kernels_speak_one_dialect() {
    let elsewhere =
        ["template <class", "unsigned long long", "size_t", "%globaltimer", "__threadfence"];
    let mut faults = Vec::new();
    for (path, text) in files("kernels", &["cuh"]) {
        let foreign = elsewhere.iter().filter(|word| text.contains(**word));
        if !path.ends_with("device.cuh") {
            faults.extend(foreign.map(|word| format!("{}: `{word}`", path.display())));
        }
    }
    report(&faults);
}

#[test]
fn no_file_is_too_long() {
    const LINES: usize = 450;
    let mut faults = Vec::new();
    let folders = ["src", "tests", "benches", "crates", "kernels", "scripts", "python"];
    let extensions = ["rs", "cuh", "cu", "sh", "py", "c", "h"];
    for (path, text) in folders.iter().flat_map(|folder| files(folder, &extensions)) {
        let lines = text.lines().count();
        if lines > LINES {
            faults.push(format!("{}: {lines} lines, above {LINES}", path.display()));
        }
    }
    report(&faults);
}

#[test]
fn nothing_is_left_unfinished() {
    let words = ["todo", "unimplemented", "dbg"].map(|word| format!("{word}!("));
    let marks =
        ["FIX", "X"].map(|half| if half == "X" { "XXX".to_owned() } else { format!("{half}ME") });
    let mut faults = Vec::new();
    for (path, text) in sources().into_iter().chain(files("kernels", &["cuh"])) {
        for (number, line) in text.lines().enumerate() {
            if words.iter().chain(&marks).any(|word| line.contains(word.as_str())) {
                faults.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    report(&faults);
}

#[test]
fn names_say_something() {
    let empty = ["util", "utils", "helper", "helpers", "manager", "common", "misc"];
    let mut faults = Vec::new();
    for (path, _) in sources() {
        for part in path.with_extension("").components() {
            let part = part.as_os_str().to_string_lossy().into_owned();
            if empty.contains(&part.as_str()) {
                faults.push(format!("{}: `{part}` names nothing", path.display()));
            }
        }
    }
    report(&faults);
}

#[test]
fn the_top_level_is_complete() {
    let needed = [
        "Cargo.toml",
        "Cargo.lock",
        "openapi.yaml",
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "LICENSE",
        "justfile",
        "config/default.toml",
        "docs/SUMMARY.md",
        ".ci/run",
        "docker/Dockerfile.cuda",
        "docker/Dockerfile.cpu",
        "docker/compose.yaml",
        "data/README.md",
    ];
    let missing: Vec<String> = needed
        .iter()
        .filter(|name| !root().join(name).is_file())
        .map(|name| format!("{name} is missing"))
        .collect();
    report(&missing);
}

/// The README opens with two commands, and the continuous integration runs the second.
#[test]
fn the_readme_opens_with_the_two_commands() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let block = readme.split("```").nth(1).unwrap_or_default();
    let commands: Vec<&str> = block
        .lines()
        .skip(1)
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .collect();
    assert_eq!(commands.len(), 2, "the first block holds exactly two commands: {commands:?}");
    assert!(commands[0].ends_with("quickstart"), "{}", commands[0]);
    let ci = std::fs::read_to_string(root().join(".ci/run")).unwrap();
    assert!(
        ci.lines().any(|line| line.ends_with(commands[1])),
        "{} is not in .ci/run",
        commands[1]
    );
}

/// Package clients find their registry by their own configuration; no file of ours names one.
#[test]
fn no_registry_is_named() {
    let hosts = [
        concat!("pypi", ".org"),
        concat!("python", "hosted.org"),
        concat!("crates", ".io/"),
        concat!("index.", "crates"),
        concat!("npmjs", ".org"),
        concat!("deb.", "debian.org"),
        concat!("index", "-url"),
        concat!("extra-", "index"),
    ];
    let folders = [
        "src",
        "tests",
        "crates",
        "docker",
        "scripts",
        ".ci",
        "config",
        "kernels",
        "data",
        "python",
        "docs",
        "packaging",
        ".github",
    ];
    let extensions = ["rs", "sh", "py", "toml", "yaml", "yml", "md", "cuh", "cuda", "cpu", "txt"];
    let mut faults = Vec::new();
    for (path, text) in folders.iter().flat_map(|folder| files(folder, &extensions)) {
        for host in hosts.iter().filter(|host| text.contains(**host)) {
            faults.push(format!("{} names {host}", path.display()));
        }
    }
    for line in include_str!("../Cargo.lock").lines().filter(|line| line.starts_with("source = ")) {
        if !line.contains("github.com/rust-lang/") {
            faults.push(format!("Cargo.lock: {line}"));
        }
    }
    report(&faults);
}
