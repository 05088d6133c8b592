//! Where blobs are kept: a folder, or a bucket of an S3 store and how it is reached.

use super::sanity::Mistakes;
use super::{Config, chosen};
use crate::store::{BlobPlace, BucketSettings, Secret};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const SCHEME: &str = "s3://";
/// Begins the variables of the environment that programs for S3 stores have in common.
const COMMON: &str = "AWS_";
/// What the configuration alone decides: whether anyone on the way may read, and that conditions hold.
const OURS: [&str; 7] = [
    "aws_allow_http",
    "aws_allow_invalid_certificates",
    "aws_bucket",
    "aws_bucket_name",
    "aws_conditional_put",
    "aws_copy_if_not_exists",
    "aws_skip_signature",
];

/// How an S3 store is reached.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct S3 {
    endpoint: String,
    region: String,
    access_key_id: String,
    secret_access_key: Secret,
    session_token: Secret,
    virtual_hosted: bool,
    allow_http: bool,
    ca_file: String,
    timeout_s: f64,
    retry_s: f64,
}

/// Those variables of the environment that say how S3 stores are reached.
pub(super) fn of_environment(variables: BTreeMap<String, String>) -> Vec<(String, Secret)> {
    let common = variables.into_iter().filter(|(name, _)| name.starts_with(COMMON));
    let named = common.map(|(name, value)| (name.to_lowercase(), Secret(value)));
    named.filter(|(name, value)| !OURS.contains(&name.as_str()) && !value.0.is_empty()).collect()
}

impl Config {
    /// Where blobs are kept.
    pub fn blobs(&self) -> BlobPlace {
        let data = &self.data;
        match data.blobs.as_str() {
            "" => BlobPlace::Folder(data.dir.join("blobs")),
            // What cannot be read was refused with the configuration.
            address => match bucket(address) {
                Some(Ok((bucket, prefix))) => {
                    BlobPlace::Bucket(Box::new(self.bucket(bucket, prefix)))
                }
                _ => BlobPlace::Folder(PathBuf::from(address)),
            },
        }
    }

    fn bucket(&self, bucket: &str, prefix: &str) -> BucketSettings {
        let S3 { allow_http, virtual_hosted, timeout_s, retry_s, .. } = self.s3;
        let mut options = self.aws.clone();
        let named = [
            // What is named for the service would come before what is named for all.
            ("aws_endpoint_url", &self.s3.endpoint),
            ("aws_endpoint_url_s3", &self.s3.endpoint),
            ("aws_region", &self.s3.region),
            ("aws_access_key_id", &self.s3.access_key_id),
            ("aws_secret_access_key", &self.s3.secret_access_key.0),
            ("aws_session_token", &self.s3.session_token.0),
        ];
        if !self.s3.access_key_id.is_empty() {
            // A token of the environment is not of this key.
            options.retain(|(name, _)| name != "aws_session_token");
        }
        let given = named.into_iter().filter(|(_, value)| !value.is_empty());
        options.extend(given.map(|(name, value)| (name.to_owned(), Secret(value.clone()))));
        if virtual_hosted {
            let hosted = ("aws_virtual_hosted_style_request".to_owned(), Secret("true".to_owned()));
            options.push(hosted);
        }
        BucketSettings {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            options,
            allow_http,
            ca_file: chosen(&self.s3.ca_file).map(PathBuf::from),
            timeout: Duration::from_secs_f64(timeout_s),
            retry: Duration::from_secs_f64(retry_s),
            presign: self.data.presign,
            cache: match chosen(&self.data.blob_cache) {
                Some(folder) => folder.to_owned(),
                None => self.data.dir.join("blob-cache"),
            },
            cache_most: self.data.blob_cache_max,
        }
    }

    pub(super) fn check_blobs(&self, found: &mut Mistakes) {
        let address = &self.data.blobs;
        if let Some(Err(why)) = bucket(address) {
            found.unless(false, "data.blobs", why);
        } else if let Some((scheme, _)) = address.split_once("://")
            && scheme != "s3"
        {
            found.unless(
                false,
                "data.blobs",
                "must be a folder, or s3:// with a bucket and a prefix",
            );
        }
        found.at_least_one("data.blob_cache_max", self.data.blob_cache_max);
        found.seconds("s3.timeout_s", self.s3.timeout_s);
        found.seconds("s3.retry_s", self.s3.retry_s);
        let repeated = self.s3.retry_s > self.s3.timeout_s;
        found.unless(repeated, "s3.retry_s", "must be more than s3.timeout_s");
        let endpoint = self.s3.endpoint.as_str();
        let (https, http) = (endpoint.starts_with("https://"), endpoint.starts_with("http://"));
        let known = endpoint.is_empty() || https || http;
        found.unless(known, "s3.endpoint", "must be an https:// or http:// URL");
        found.unless(
            !http || self.s3.allow_http,
            "s3.endpoint",
            "is without TLS: matrices and plans could be read and changed on the way. s3.allow_http = true permits it",
        );
        let (key, secret) = (&self.s3.access_key_id, &self.s3.secret_access_key.0);
        found.unless(
            key.is_empty() == secret.is_empty(),
            "s3.access_key_id",
            "needs s3.secret_access_key, and that needs it",
        );
    }
}

/// The bucket and the prefix of an address; `None` for what is no address of a bucket.
fn bucket(address: &str) -> Option<Result<(&str, &str), &'static str>> {
    let rest = address.strip_prefix(SCHEME)?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    let letters =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(letters) {
        return Some(Err("names no bucket: 3 to 63 of a-z, 0-9, dots and hyphens"));
    }
    let plain = |part: &str| {
        let letters = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        !part.is_empty() && part != "." && part != ".." && part.bytes().all(letters)
    };
    if !prefix.is_empty() && !prefix.split('/').all(plain) {
        return Some(Err(
            "has a prefix with other characters than letters, digits, dots, hyphens, underscores and single slashes",
        ));
    }
    Some(Ok((bucket, prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::config::ConfigError;
    use toml::Value;

    fn with(flags: &[(&str, Value)], variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        Config::layered(None, variables.collect::<Vec<(String, String)>>().into_iter(), flags)
    }

    fn settings(flags: &[(&str, Value)], variables: &[(&str, &str)]) -> BucketSettings {
        match with(flags, variables).unwrap().blobs() {
            BlobPlace::Bucket(settings) => *settings,
            folder => panic!("{folder}"),
        }
    }

    #[test]
    fn a_bucket_is_reached_as_environment_and_file_say_and_the_file_comes_first() {
        let there = ("data.blobs", Value::from("s3://my-bucket/a/b/"));
        let variables = [
            ("AWS_ACCESS_KEY_ID", "of the environment"),
            ("AWS_SESSION_TOKEN", "its token"),
            ("AWS_CONDITIONAL_PUT", "disabled"),
            ("AWS_ALLOW_HTTP", "true"),
        ];
        let found = settings(std::slice::from_ref(&there), &variables);
        assert_eq!((found.bucket.as_str(), found.prefix.as_str()), ("my-bucket", "a/b"));
        let names: Vec<&str> = found.options.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["aws_access_key_id", "aws_session_token"]);
        assert!(!found.allow_http);
        assert_eq!(found.ca_file, None);

        let own = [
            there,
            ("s3.access_key_id", "of the file".into()),
            ("s3.secret_access_key", "never shown".into()),
            ("s3.ca_file", "/etc/ssl/our-ca.pem".into()),
        ];
        let found = settings(&own, &variables);
        assert_eq!(found.options.last().unwrap().1, Secret("never shown".to_owned()));
        assert_eq!(found.ca_file.unwrap(), PathBuf::from("/etc/ssl/our-ca.pem"));
        assert!(!found.options.iter().any(|(name, _)| name == "aws_session_token"));
        let shown = format!("{:?}", with(&own, &variables).unwrap());
        assert!(!shown.contains("never shown") && !shown.contains("its token"), "{shown}");
    }

    #[test]
    fn addresses_that_are_none_are_refused_with_their_key() {
        for (key, bad) in [
            ("data.blobs", "s3://"),
            ("data.blobs", "s3://B/x"),
            ("data.blobs", "s3://bucket//x"),
            ("data.blobs", "s3://bucket/a b"),
            ("data.blobs", "gs://bucket"),
            ("s3.endpoint", "http://127.0.0.1:9000"),
            ("s3.endpoint", "127.0.0.1"),
        ] {
            let refused = with(&[(key, Value::from(bad))], &[]).unwrap_err().to_string();
            assert!(refused.contains(&format!("{key}: ")), "{bad}: {refused}");
        }
        let plain =
            [("s3.endpoint", "http://127.0.0.1:9000".into()), ("s3.allow_http", true.into())];
        assert!(with(&plain, &[]).is_ok());
        assert!(matches!(with(&[], &[]).unwrap().blobs(), BlobPlace::Folder(_)));
    }
}
