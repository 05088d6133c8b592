//! The typed configuration: defaults < file < environment < flags, refused at start with every mistake named by its key.

use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The built-in file: every key, and what it means.
pub const DEFAULTS: &str = include_str!("../../config/default.toml");

const SQLITE: &str = "sqlite://";
const ENV_PREFIX: &str = "SPARSETUNE_";
const ENV_FILE: &str = "SPARSETUNE_CONFIG";

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub server: Server,
    pub data: Data,
    pub devices: Devices,
    pub search: Search,
    pub worker: Worker,
    pub evaluator: Evaluator,
    pub log: Log,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    pub listen: SocketAddr,
    pub tokens: Vec<Token>,
    pub insecure: bool,
    pub max_upload_bytes: usize,
    pub max_json_bytes: usize,
    pub uploads_at_once: usize,
    pub max_connections: usize,
    pub headers_s: f64,
    pub answer_s: f64,
    pub upload_s: f64,
    pub sse_keep_alive_s: f64,
    pub shutdown_s: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    pub dir: PathBuf,
    store: String,
    blobs: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Devices {
    pub r#use: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    pub top_k: u32,
    pub seconds: f64,
    pub trials: u32,
    pub seed: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    name: String,
    pub lease_ms: i64,
    pub poll_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluator {
    pub open_s: f64,
    pub load_s: f64,
    pub compile_s: f64,
    pub measure_s: f64,
    cuda: String,
    nvrtc: String,
    cusparse: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    pub format: LogFormat,
    pub filter: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    Json,
}

/// An API token as configured; never shown.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    const HASHED: &'static str = "blake3:";
    const SHORTEST: usize = 16;

    /// What the server keeps of it; `None` when it is neither a hash nor long enough to be a secret.
    pub fn hash(&self) -> Option<blake3::Hash> {
        match self.0.strip_prefix(Self::HASHED) {
            Some(hex) => blake3::Hash::from_hex(hex).ok(),
            None if self.0.len() < Self::SHORTEST => None,
            None => Some(blake3::hash(self.0.as_bytes())),
        }
    }
}

impl Worker {
    /// What the store knows this process by.
    pub fn name(&self) -> String {
        if !self.name.is_empty() {
            return self.name.clone();
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        match host.trim() {
            "" => "local".to_owned(),
            host => host.to_owned(),
        }
    }
}

impl Data {
    /// The SQLite file.
    pub fn store(&self) -> PathBuf {
        match self.store.strip_prefix(SQLITE) {
            Some(path) => PathBuf::from(path),
            None => self.dir.join("sparsetune.db"),
        }
    }

    /// Where uploads wait to be read.
    pub fn uploads(&self) -> PathBuf {
        self.dir.join("uploads")
    }

    pub fn blobs(&self) -> PathBuf {
        match self.blobs.as_str() {
            "" => self.dir.join("blobs"),
            path => PathBuf::from(path),
        }
    }
}

impl Evaluator {
    pub fn cuda(&self) -> Option<&Path> {
        chosen(&self.cuda)
    }

    pub fn nvrtc(&self) -> Option<&Path> {
        chosen(&self.nvrtc)
    }

    pub fn cusparse(&self) -> Option<&Path> {
        chosen(&self.cusparse)
    }
}

fn chosen(path: &str) -> Option<&Path> {
    (!path.is_empty()).then(|| Path::new(path))
}

/// Every mistake of a configuration, one a line, each with its key.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("the configuration is refused:{}", .0.iter().map(|mistake| format!("\n  {mistake}")).collect::<String>())]
pub struct ConfigError(pub Vec<String>);

impl Config {
    /// Reads all layers. `flags` are the settings given on the command line, by key (`server.listen`).
    pub fn load(file: Option<&Path>, flags: &[(&str, Value)]) -> Result<Self, ConfigError> {
        let variables = std::env::vars_os();
        let text = |name: OsString| name.to_string_lossy().into_owned();
        Self::layered(file, variables.map(|(name, value)| (text(name), text(value))), flags)
    }

    fn layered(
        file: Option<&Path>,
        variables: impl Iterator<Item = (String, String)>,
        flags: &[(&str, Value)],
    ) -> Result<Self, ConfigError> {
        let variables: BTreeMap<String, String> = variables.collect();
        let file = file.or_else(|| variables.get(ENV_FILE).map(Path::new));
        let mut layers = Figment::from(Toml::string(DEFAULTS));
        if let Some(path) = file {
            if !path.is_file() {
                return Err(ConfigError(vec![format!(
                    "{}: there is no such file",
                    path.display()
                )]));
            }
            layers = layers.merge(Toml::file_exact(path));
        }
        for (name, text) in &variables {
            // Only names with a section are keys; SPARSETUNE_CONFIG and whatever else has the prefix are not.
            let key = name.strip_prefix(ENV_PREFIX).filter(|key| key.contains("__"));
            if let Some(key) = key {
                let key = key.to_lowercase().replace("__", ".");
                let value = text.parse().unwrap_or_else(|never: Infallible| match never {});
                layers = layers.merge(Setting { from: name.clone(), key, value });
            }
        }
        for (key, value) in flags {
            let (key, value) = ((*key).to_owned(), value.clone());
            layers = layers.merge(Setting { from: "command line".to_owned(), key, value });
        }
        Self::of(&layers)
    }

    fn of(layers: &Figment) -> Result<Self, ConfigError> {
        let refuse = |mistakes: Vec<String>| Err(ConfigError(mistakes));
        let mistakes = misshapen(layers);
        if !mistakes.is_empty() {
            return refuse(mistakes);
        }
        let config: Self = match layers.extract() {
            Ok(config) => config,
            Err(errors) => {
                return refuse(errors.into_iter().map(|error| error.to_string()).collect());
            }
        };
        let mistakes = config.mistakes();
        if mistakes.is_empty() { Ok(config) } else { refuse(mistakes) }
    }

    /// Values of the right type that make no sense.
    fn mistakes(&self) -> Vec<String> {
        let mut found = Mistakes(Vec::new());
        self.check_server(&mut found);
        let Self { devices, search, worker, evaluator, log, .. } = self;
        for name in &devices.r#use {
            found.unless(
                is_device(name),
                "devices.use",
                format_args!("{name:?} is not \"auto\", \"cpu\" or \"cuda:<number>\""),
            );
        }
        let auto = devices.r#use.iter().any(|name| name == "auto");
        found.unless(!auto || devices.r#use.len() == 1, "devices.use", "\"auto\" stands alone");
        found.at_least_one("search.top_k", search.top_k.into());
        found.at_least_one("search.trials", search.trials.into());
        found.seconds("search.seconds", search.seconds);
        found.unless(search.seconds <= 86_400.0, "search.seconds", "must be at most a day");
        found.unless(worker.lease_ms >= 1000, "worker.lease_ms", "must be at least 1000");
        found.at_least_one("worker.poll_ms", worker.poll_ms);
        found.seconds("evaluator.open_s", evaluator.open_s);
        found.seconds("evaluator.load_s", evaluator.load_s);
        found.seconds("evaluator.compile_s", evaluator.compile_s);
        found.seconds("evaluator.measure_s", evaluator.measure_s);
        let libraries = [
            ("evaluator.cuda", evaluator.cuda()),
            ("evaluator.nvrtc", evaluator.nvrtc()),
            ("evaluator.cusparse", evaluator.cusparse()),
        ];
        for (key, path) in libraries {
            let there = path.is_none_or(Path::is_file);
            found.unless(there, key, "there is no such file");
        }
        if let Err(error) = tracing_subscriber::EnvFilter::builder().parse(&log.filter) {
            found.0.push(format!("log.filter: {error}"));
        }
        found.0
    }

    fn check_server(&self, found: &mut Mistakes) {
        let server = &self.server;
        for (i, token) in server.tokens.iter().enumerate() {
            let why = "a token needs 16 characters, or \"blake3:\" and 64 hex digits";
            found.unless(
                token.hash().is_some(),
                "server.tokens",
                format_args!("number {}: {why}", i + 1),
            );
        }
        let open = !server.listen.ip().is_loopback() && server.tokens.is_empty();
        found.unless(
            !open || server.insecure,
            "server.listen",
            format_args!(
                "{} is reachable from other machines: set server.tokens, or say --insecure",
                server.listen
            ),
        );
        found.at_least_one("server.max_upload_bytes", server.max_upload_bytes as u64);
        found.at_least_one("server.max_json_bytes", server.max_json_bytes as u64);
        found.at_least_one("server.uploads_at_once", server.uploads_at_once as u64);
        found.at_least_one("server.max_connections", server.max_connections as u64);
        found.seconds("server.headers_s", server.headers_s);
        found.seconds("server.answer_s", server.answer_s);
        found.seconds("server.upload_s", server.upload_s);
        found.seconds("server.sse_keep_alive_s", server.sse_keep_alive_s);
        found.seconds("server.shutdown_s", server.shutdown_s);
        let data = &self.data;
        found.unless(!data.dir.as_os_str().is_empty(), "data.dir", "names no folder");
        let known = data.store.is_empty()
            || data.store.strip_prefix(SQLITE).is_some_and(|path| !path.is_empty());
        found.unless(known, "data.store", "must be empty or sqlite:// and a path");
    }
}

/// One setting that comes from no file.
struct Setting {
    from: String,
    key: String,
    value: Value,
}

impl Provider for Setting {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.from.clone())
    }

    fn data(&self) -> figment::Result<figment::value::Map<Profile, Dict>> {
        Serialized::default(&self.key, &self.value).data()
    }
}

struct Mistakes(Vec<String>);

impl Mistakes {
    fn unless(&mut self, holds: bool, key: &str, why: impl fmt::Display) {
        if !holds {
            self.0.push(format!("{key}: {why}"));
        }
    }

    fn at_least_one(&mut self, key: &str, value: u64) {
        self.unless(value >= 1, key, "must be at least 1");
    }

    /// A year is as good as for ever, and fits every clock.
    fn seconds(&mut self, key: &str, value: f64) {
        let sane = value > 0.0 && value <= 366.0 * 86_400.0;
        self.unless(sane, key, "must be seconds above 0 and within a year");
    }
}

fn is_device(name: &str) -> bool {
    let number = name.strip_prefix("cuda:");
    matches!(name, "auto" | "cpu")
        || number
            .is_some_and(|n| n.len() <= 3 && !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Keys that the built-in file does not have, and values of another type than there. serde would stop at the first.
fn misshapen(layers: &Figment) -> Vec<String> {
    let dict = |data: figment::Result<figment::value::Map<Profile, Dict>>| {
        data.map(|mut profiles| profiles.remove(&Profile::Default).unwrap_or_default())
    };
    match (dict(Toml::string(DEFAULTS).data()), dict(layers.data())) {
        (Ok(known), Ok(given)) => {
            let mut mistakes = Vec::new();
            compare(&known, &given, "", layers, &mut mistakes);
            mistakes
        }
        (Err(errors), _) | (_, Err(errors)) => {
            errors.into_iter().map(|error| error.to_string()).collect()
        }
    }
}

fn compare(known: &Dict, given: &Dict, at: &str, layers: &Figment, mistakes: &mut Vec<String>) {
    for (name, value) in given {
        let key = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        let source = || match layers.get_metadata(value.tag()) {
            Some(metadata) => format!(" ({})", metadata.name),
            None => String::new(),
        };
        match (known.get(name), value) {
            (None, _) => mistakes.push(format!("{key}: there is no such key{}", source())),
            (Some(Value::Dict(_, known)), Value::Dict(_, given)) => {
                compare(known, given, &key, layers, mistakes);
            }
            (Some(wanted), value) if shape(wanted) != shape(value) => mistakes.push(format!(
                "{key}: must be {}, not {}{}",
                shape(wanted),
                shape(value),
                source()
            )),
            _ => {}
        }
    }
}

fn shape(value: &Value) -> &'static str {
    match value {
        Value::String(..) | Value::Char(..) => "a string",
        Value::Bool(..) => "true or false",
        Value::Num(..) => "a number",
        Value::Dict(..) => "a section",
        Value::Array(..) => "a list",
        Value::Empty(..) => "nothing",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(toml: &str) -> Result<Config, ConfigError> {
        Config::of(&Figment::from(Toml::string(DEFAULTS)).merge(Toml::string(toml)))
    }

    #[test]
    fn the_built_in_file_is_valid_and_every_key_is_explained() {
        let config = with("").unwrap();
        assert_eq!(config.server.listen.port(), 8080);
        assert_eq!(config.data.store(), Path::new("sparsetune-data/sparsetune.db"));
        let mut explained = false;
        for line in DEFAULTS.lines() {
            assert!(!line.contains(" = ") || line.starts_with('#') || explained, "{line}");
            explained =
                line.starts_with('#') || (explained && !line.is_empty() && !line.starts_with('['));
        }
    }

    #[test]
    fn all_mistakes_come_at_once_with_their_keys() {
        let ConfigError(mistakes) =
            with("[server]\nlisten = 3\nport = 1\n[sever]\nx = 1\n[log]\nfilter = []").unwrap_err();
        for key in ["server.listen:", "server.port:", "sever:", "log.filter:"] {
            assert_eq!(mistakes.iter().filter(|line| line.starts_with(key)).count(), 1, "{key}");
        }
        let ConfigError(mistakes) = with(
            "[server]\ntokens = ['short']\nanswer_s = 0\n[search]\ntop_k = 0\n[devices]\nuse = ['gpu']\n[log]\nfilter = 'a=b=c'",
        )
        .unwrap_err();
        for key in
            ["server.tokens:", "server.answer_s:", "search.top_k:", "devices.use:", "log.filter:"]
        {
            assert!(mistakes.iter().any(|line| line.starts_with(key)), "{key} in {mistakes:?}");
        }
        assert!(!format!("{mistakes:?}").contains("short"), "a token is never shown");
    }

    #[test]
    fn beyond_loopback_tokens_are_needed_or_the_operators_word() {
        assert!(with("[server]\nlisten = '0.0.0.0:80'").is_err());
        assert!(with("[server]\nlisten = '0.0.0.0:80'\ninsecure = true").is_ok());
        assert!(with("[server]\nlisten = '[::]:80'\ntokens = ['0123456789abcdef']").is_ok());
        assert!(with("[server]\nlisten = '[::1]:80'").is_ok());
    }

    #[test]
    fn later_layers_win() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("my.toml");
        std::fs::write(&file, "[search]\ntop_k = 2\ntrials = 3\nseed = 4\n").unwrap();
        let variables = |more: &[(&str, &str)]| {
            let own = [("SPARSETUNE_CONFIG", file.to_str().unwrap()), ("SPARSETUNE_OTHER", "1")];
            let all = own.iter().chain(more).map(|(name, value)| ((*name).into(), (*value).into()));
            all.collect::<Vec<(String, String)>>().into_iter()
        };
        let given = [
            ("SPARSETUNE_SEARCH__TRIALS", "30"),
            ("SPARSETUNE_SEARCH__SEED", "40"),
            ("SPARSETUNE_DEVICES__USE", "[\"cpu\"]"),
        ];
        let flags = [("search.seed", 400.into())];
        let config = Config::layered(None, variables(&given), &flags).unwrap();
        let search = config.search;
        assert_eq!((search.top_k, search.trials, search.seed, search.seconds), (2, 30, 400, 60.0));
        assert_eq!(config.devices.r#use, ["cpu"]);
        let wrong = [("SPARSETUNE_SEARCH__TOPK", "1"), ("SPARSETUNE_SERVER__INSECURE", "maybe")];
        let refused = Config::layered(None, variables(&wrong), &[]).unwrap_err().to_string();
        assert!(
            refused.contains("search.topk: there is no such key (SPARSETUNE_SEARCH__TOPK)"),
            "{refused}"
        );
        assert!(refused.contains("server.insecure: must be true or false"), "{refused}");
        assert!(Config::layered(Some(Path::new("/no/such")), variables(&[]), &[]).is_err());
    }

    #[test]
    fn a_hashed_token_is_the_token() {
        let plain = Token("0123456789abcdef".to_owned());
        let hashed = Token(format!("blake3:{}", blake3::hash(b"0123456789abcdef")));
        assert_eq!(plain.hash(), hashed.hash());
        assert!(plain.hash().is_some() && Token("blake3:12".to_owned()).hash().is_none());
    }
}
