//! `sparsetune export` and `import`, by the real binary: folders, a server, and the formats of other tuners.

#[path = "fixture/claimed.rs"]
mod claimed;
#[path = "fixture/device.rs"]
mod device;
#[path = "fixture/measured.rs"]
mod measured;
#[path = "fixture/plan.rs"]
mod plan;

use serde_json::{Value, json};
use sparsetune::cli::config::Config;
use sparsetune::cli::serve::start;
use sparsetune::service::{Service, ServiceSettings};
use sparsetune::store::{LocalBlobs, SqliteStore, Upkeep as _};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

const GROUPS: usize = 3;

fn sparsetune(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sparsetune")).args(args).output().unwrap()
}

fn done(args: &[&str]) -> String {
    let output = sparsetune(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

async fn recorded(data: &Path) {
    std::fs::create_dir_all(data.join("uploads")).unwrap();
    let store = SqliteStore::open(&data.join("sparsetune.db")).await.unwrap();
    let blobs = LocalBlobs::open(&data.join("blobs")).unwrap();
    let settings = ServiceSettings { temp_dir: data.join("uploads"), ..ServiceSettings::default() };
    let service = Service::new(Arc::new(store.clone()), Arc::new(blobs), settings);
    measured::measured(&service, &device::processor(), GROUPS).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exports_go_through_folders_and_servers() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    recorded(&folder.path().join("a")).await;
    let (a, b, file, again) = (path("a"), path("b"), path("all.stexport"), path("again.stexport"));
    assert!(done(&["export", &file, "--data", &a, "--matrices"]).contains("bytes"));
    let would = done(&["import", &file, "--data", &b, "--dry-run"]);
    assert!(would.contains("nothing was stored") && would.contains("trials"), "{would}");
    let report: Value =
        serde_json::from_str(&done(&["import", &file, "--data", &b, "--json"])).unwrap();
    assert_eq!(report["plans"], json!({ "new": GROUPS, "known": 0, "left_out": 0 }));

    // The same through a server, in both directions.
    let flags: Vec<(&str, toml::Value)> = vec![
        ("server.listen", "127.0.0.1:0".into()),
        ("data.dir", path("c").as_str().into()),
        ("devices.use", toml::Value::Array(Vec::new())),
        ("learning.shipped", false.into()),
    ];
    let shutdown = CancellationToken::new();
    let config = Config::load(None, &flags).unwrap();
    let running = start(&config, shutdown.clone(), |_, _| Vec::new()).await.unwrap();
    let server = format!("http://{}", running.address);
    let report = done(&["import", &file, "--server", &server, "--json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["matrices"], json!({ "new": GROUPS, "known": 0, "left_out": 0 }));
    done(&["export", &again, "--server", &server, "--matrices"]);
    let report: Value =
        serde_json::from_str(&done(&["import", &again, "--data", &a, "--json"])).unwrap();
    for kind in ["plans", "jobs", "trials", "matrices"] {
        assert_eq!(
            (&report[kind]["new"], &report[kind]["left_out"]),
            (&json!(0), &json!(0)),
            "{report}"
        );
    }
    // What the server refuses, it refuses by the record.
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(&again, bytes).unwrap();
    let refused = sparsetune(&["import", &again, "--server", &server]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("the export"), "{why}");
    shutdown.cancel();
    running.finished().await;
    assert!(std::fs::read_dir(folder.path()).unwrap().count() == 5, "a temporary file was left");
}

/// What Kernel Tuner 1.5.0 says of its caches (`process_cache` and `read_cache` in `util.py`), as a schema.
fn cache_schema() -> Value {
    json!({
        "type": "object",
        "required": ["device_name", "kernel_name", "problem_size", "tune_params_keys", "tune_params", "objective", "cache"],
        "properties": {
            "device_name": { "type": "string" },
            "kernel_name": { "type": "string" },
            "problem_size": { "type": "array", "items": { "type": "integer" }, "minItems": 1, "maxItems": 3 },
            "tune_params_keys": { "type": "array", "items": { "type": "string" } },
            "tune_params": { "type": "object", "additionalProperties": { "type": "array", "minItems": 1 } },
            "objective": { "type": "string" },
            "cache": { "type": "object", "minProperties": 1, "additionalProperties": {
                "type": "object", "required": ["time"],
                "properties": {
                    "time": { "anyOf": [
                        { "type": "number", "exclusiveMinimum": 0 },
                        { "enum": ["ErrorConfig", "InvalidConfig", "CompilationFailedConfig", "RuntimeFailedConfig"] }
                    ] },
                    "times": { "type": "array", "items": { "type": "number" } }
                }
            } }
        }
    })
}

fn fits(schema: &Value, file: &Value) {
    let validator = jsonschema::validator_for(schema).unwrap();
    let faults: Vec<String> = validator.iter_errors(file).map(|error| error.to_string()).collect();
    assert!(faults.is_empty(), "{faults:?}");
}

fn files(folder: &Path) -> Vec<(String, Value)> {
    let mut files: Vec<(String, Value)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let text = std::fs::read_to_string(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), serde_json::from_str(&text).unwrap())
        })
        .collect();
    files.sort_by(|a, b| a.0.cmp(&b.0));
    files
}

#[tokio::test]
async fn other_tuners_read_what_is_written_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    recorded(&folder.path().join("a")).await;
    let (a, t4, cache) = (path("a"), path("t4"), path("kt"));
    done(&["export", &t4, "--data", &a, "--format", "t4"]);
    let schema = |name: &str| -> Value {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture/t4").join(name);
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
    };
    let mut results = 0;
    for (name, file) in files(Path::new(&t4)) {
        if name == "metadata.json" {
            fits(&schema("metadata-schema.json"), &file);
            continue;
        }
        assert!(name.starts_with("spmm-"), "{name}");
        fits(&schema("results-schema.json"), &file);
        for result in file["results"].as_array().unwrap() {
            results += 1;
            let time = &result["measurements"][0];
            let median = result["times"]["runtimes"][1].as_f64().unwrap();
            assert_eq!((&time["name"], time["value"].as_f64().unwrap()), (&json!("time"), median));
            assert_eq!(
                (&result["invalidity"], &result["correctness"]),
                (&json!("correct"), &json!(1))
            );
            assert_eq!(result["configuration"]["family"], "row_split");
        }
    }
    assert_eq!(results, GROUPS * measured::ROWS as usize);

    done(&["export", &cache, "--data", &a, "--format", "kernel-tuner"]);
    let caches = files(Path::new(&cache));
    assert_eq!(caches.len(), GROUPS);
    for (_, file) in caches {
        fits(&cache_schema(), &file);
        let keys: Vec<&str> = file["tune_params_keys"]
            .as_array()
            .unwrap()
            .iter()
            .map(|key| key.as_str().unwrap())
            .collect();
        assert_eq!(keys, ["family", "lanes"]);
        for (key, entry) in file["cache"].as_object().unwrap() {
            let values = keys.iter().map(|name| match &entry[*name] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            assert_eq!(*key, values.collect::<Vec<_>>().join(","));
            for name in &keys {
                assert!(file["tune_params"][*name].as_array().unwrap().contains(&entry[*name]));
            }
        }
    }
    // A folder that is in use is not written to.
    assert!(!sparsetune(&["export", &cache, "--data", &a, "--format", "t4"]).status.success());
}
