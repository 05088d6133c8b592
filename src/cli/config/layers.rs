//! How the layers become one configuration: read, laid over each other, compared with the built-in file.

use super::{Config, ConfigError, DEFAULTS};
use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Value};
use figment::{Figment, Metadata, Profile, Provider};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::path::Path;

const ENV_PREFIX: &str = "SPARSETUNE_";
const ENV_FILE: &str = "SPARSETUNE_CONFIG";

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

/// Keys that the built-in file does not have, and values of another type than there. serde would stop at the first.
fn misshapen(layers: &Figment) -> Vec<String> {
    let mut mistakes = Vec::new();
    let mut dict = |provider: &dyn Provider| match provider.data() {
        Ok(mut profiles) => profiles.remove(&Profile::Default).unwrap_or_default(),
        Err(errors) => {
            mistakes.extend(errors.into_iter().map(|error| error.to_string()));
            Dict::new()
        }
    };
    let (known, given) = (dict(&Toml::string(DEFAULTS)), dict(layers));
    compare(&known, &given, "", layers, &mut mistakes);
    mistakes
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
    use crate::cli::config::Token;

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
