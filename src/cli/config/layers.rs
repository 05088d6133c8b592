//! Combines the layers into one configuration: reads them, overlays them, and compares them with the built-in file.

use super::{Config, ConfigError, DEFAULTS, blobs};
use crate::environment;
use std::collections::BTreeMap;
use std::path::Path;
use toml::{Table, Value};

const ENV_PREFIX: &str = "SPARSETUNE_";
const ENV_FILE: &str = "SPARSETUNE_CONFIG";

impl Config {
    /// Reads all layers. `flags` are the settings given on the command line, by key (`server.listen`).
    pub fn load(file: Option<&Path>, flags: &[(&str, Value)]) -> Result<Self, ConfigError> {
        Self::layered(file, environment::variables(), flags)
    }

    pub(super) fn layered(
        file: Option<&Path>,
        variables: impl Iterator<Item = (String, String)>,
        flags: &[(&str, Value)],
    ) -> Result<Self, ConfigError> {
        let variables: BTreeMap<String, String> = variables.collect();
        let file = file.or_else(|| variables.get(ENV_FILE).map(Path::new));
        let mut layers = Layers::built_in()?;
        if let Some(path) = file {
            let name = path.display().to_string();
            if !path.is_file() {
                return Err(ConfigError(vec![format!("{name}: no such file")]));
            }
            let text = std::fs::read_to_string(path)
                .map_err(|error| ConfigError(vec![format!("{name}: {error}")]))?;
            layers.add(&name, parse(&text, &name)?);
        }
        for (name, text) in &variables {
            // Only names with a section are keys; SPARSETUNE_CONFIG and other variables with the prefix are not.
            let key = name.strip_prefix(ENV_PREFIX).filter(|key| key.contains("__"));
            if let Some(key) = key {
                layers.add(name, nested(&key.to_lowercase().replace("__", "."), value(text)));
            }
        }
        for (key, value) in flags {
            layers.add("command line", nested(key, value.clone()));
        }
        let mut config = Self::of(layers)?;
        config.aws = blobs::of_environment(variables);
        Ok(config)
    }

    fn of(layers: Layers) -> Result<Self, ConfigError> {
        let mistakes = layers.misshapen()?;
        if !mistakes.is_empty() {
            return Err(ConfigError(mistakes));
        }
        let Layers { settings, sources } = layers;
        let config: Self = serde_path_to_error::deserialize(settings).map_err(|error| {
            let key = error.path().to_string();
            let source = source(&sources, &key);
            ConfigError(vec![format!("{key}: {}{source}", error.inner().message())])
        })?;
        let mistakes = config.mistakes();
        if mistakes.is_empty() { Ok(config) } else { Err(ConfigError(mistakes)) }
    }
}

/// All settings so far, and the layer of each setting that is not from the built-in file.
struct Layers {
    settings: Table,
    sources: BTreeMap<String, String>,
}

impl Layers {
    fn built_in() -> Result<Self, ConfigError> {
        Ok(Self { settings: parse(DEFAULTS, "config/default.toml")?, sources: BTreeMap::new() })
    }

    /// A layer's settings replace those of earlier layers; all others are kept.
    fn add(&mut self, from: &str, layer: Table) {
        merge(&mut self.settings, layer, "", &mut |key| {
            self.sources.insert(key, from.to_owned());
        });
    }

    /// Reports keys that the built-in file does not have, and values of another type than there. serde would stop at the
    /// first mistake.
    fn misshapen(&self) -> Result<Vec<String>, ConfigError> {
        let mut mistakes = Vec::new();
        let known = Self::built_in()?.settings;
        compare(&known, &self.settings, "", &mut |key, fault| {
            mistakes.push(format!("{key}: {fault}{}", source(&self.sources, key)));
        });
        Ok(mistakes)
    }
}

fn source(sources: &BTreeMap<String, String>, key: &str) -> String {
    sources.get(key).map(|from| format!(" ({from})")).unwrap_or_default()
}

fn parse(text: &str, from: &str) -> Result<Table, ConfigError> {
    toml::from_str(text).map_err(|error| ConfigError(vec![format!("{from}: {error}")]))
}

/// One setting as a table, as it would be in a file.
fn nested(key: &str, value: Value) -> Table {
    let (first, value) = match key.split_once('.') {
        Some((first, rest)) => (first, Value::Table(nested(rest, value))),
        None => (key, value),
    };
    Table::from_iter([(first.to_owned(), value)])
}

/// The value of an environment variable: written as in a file, but strings need no quotes, not even within a list.
fn value(text: &str) -> Value {
    // Files of variables often leave blanks behind.
    let text = text.trim();
    let written = toml::from_str::<Table>(&format!("value = {text}"));
    if let Ok(mut table) = written
        && table.len() == 1
        && let Some(value) = table.remove("value")
        && !value.is_datetime()
    {
        return value;
    }
    match text.strip_prefix('[').and_then(|list| list.strip_suffix(']')) {
        Some(list) => Value::Array(list.split(',').map(|element| value(element.trim())).collect()),
        None => Value::String(text.to_owned()),
    }
}

fn merge(under: &mut Table, over: Table, at: &str, replaced: &mut impl FnMut(String)) {
    for (name, value) in over {
        let key = join(at, &name);
        match (under.get_mut(&name), value) {
            (Some(Value::Table(under)), Value::Table(over)) => merge(under, over, &key, replaced),
            (_, value) => {
                under.insert(name, value);
                replaced(key);
            }
        }
    }
}

fn compare(known: &Table, given: &Table, at: &str, fault: &mut impl FnMut(&str, String)) {
    for (name, value) in given {
        let key = join(at, name);
        match (known.get(name), value) {
            (None, _) => fault(&key, "unknown key".to_owned()),
            (Some(Value::Table(known)), Value::Table(given)) => compare(known, given, &key, fault),
            (Some(wanted), value) if shape(wanted) != shape(value) => {
                fault(&key, format!("must be {}, not {}", shape(wanted), shape(value)));
            }
            _ => {}
        }
    }
}

fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

fn shape(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a string",
        Value::Boolean(_) => "true or false",
        Value::Integer(_) | Value::Float(_) => "a number",
        Value::Table(_) => "a section",
        Value::Array(_) => "a list",
        Value::Datetime(_) => "a date",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::config::Token;

    fn with(toml: &str) -> Result<Config, ConfigError> {
        let mut layers = Layers::built_in()?;
        layers.add("test", parse(toml, "test")?);
        Config::of(layers)
    }

    #[test]
    fn the_built_in_file_is_valid_and_every_key_is_explained() {
        let config = with("").unwrap();
        assert_eq!(config.server.listen.port(), 8080);
        assert_eq!(config.data.store().file(), Some(Path::new("sparsetune-data/sparsetune.db")));
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
            "[server]\ntokens = ['short']\nanswer_s = 0\n[search]\ntop_k = 0\n[limits]\njob_seconds = 86401\njob_trials = 0\n[devices]\nuse = ['gpu']\n[log]\nfilter = 'a=b=c'",
        )
        .unwrap_err();
        for key in [
            "server.tokens:",
            "server.answer_s:",
            "search.top_k:",
            "devices.use:",
            "log.filter:",
            "limits.job_seconds:",
            "limits.job_trials:",
        ] {
            assert!(mistakes.iter().any(|line| line.starts_with(key)), "{key} in {mistakes:?}");
        }
        assert!(!format!("{mistakes:?}").contains("short"), "a token is never shown");
    }

    #[test]
    fn a_recording_may_stand_in_for_a_device() {
        let given = with("[devices]\nuse = ['replay:a.jsonl', 'cpu']").unwrap();
        assert_eq!(given.devices.r#use, ["replay:a.jsonl", "cpu"]);
        let refused = with("[devices]\nuse = ['replay:']").unwrap_err().to_string();
        assert!(refused.contains("devices.use:"), "{refused}");
    }

    #[test]
    fn spans_go_nowhere_where_the_binary_cannot_send_them() {
        let given = with("[telemetry]\notlp_endpoint = 'http://127.0.0.1:4318'");
        if cfg!(feature = "otel") {
            assert_eq!(given.unwrap().telemetry.otlp_endpoint(), Some("http://127.0.0.1:4318"));
        } else {
            let refused = given.unwrap_err().to_string();
            assert!(refused.contains("telemetry.otlp_endpoint:"), "{refused}");
            assert!(refused.contains("--features otel"), "{refused}");
        }
        for bad in ["otlp_endpoint = 'https://a:1'", "otlp_endpoint = 'a:1'", "sample = 1.5"] {
            assert!(with(&format!("[telemetry]\n{bad}")).is_err(), "{bad}");
        }
        assert_eq!(with("").unwrap().telemetry.otlp_endpoint(), None);
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
            refused.contains("search.topk: unknown key (SPARSETUNE_SEARCH__TOPK)"),
            "{refused}"
        );
        assert!(refused.contains("server.insecure: must be true or false"), "{refused}");
        assert!(Config::layered(Some(Path::new("/no/such")), variables(&[]), &[]).is_err());
    }

    #[test]
    fn environment_values_are_written_as_in_a_file_or_bare() {
        let list = |names: [&str; 2]| Value::Array(names.map(Value::from).to_vec());
        assert_eq!(value("30"), Value::Integer(30));
        assert_eq!(value("true"), Value::Boolean(true));
        assert_eq!(value("[\"cpu\", 'cuda:0']"), list(["cpu", "cuda:0"]));
        assert_eq!(value("[cpu, cuda:0]"), list(["cpu", "cuda:0"]));
        for text in ["info,hyper=warn", "127.0.0.1:80", "2026-01-01", "", "1\nother = 2"] {
            assert_eq!(value(text), Value::from(text));
        }
    }

    #[test]
    fn a_hashed_token_is_the_token() {
        let plain = Token("0123456789abcdef".to_owned());
        let hashed = Token(format!("blake3:{}", blake3::hash(b"0123456789abcdef")));
        assert_eq!(plain.hash(), hashed.hash());
        assert!(plain.hash().is_some() && Token("blake3:12".to_owned()).hash().is_none());
    }
}
