//! TLS of the connections that this program makes: whose certificates are trusted, and in words of an operator why one is not.

use hyper_rustls::builderstates::WantsSchemes;
use hyper_rustls::{
    ConfigBuilderExt as _, FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder,
};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};
use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Whose certificates are trusted when something is called.
#[derive(Clone, Debug)]
pub struct Trust {
    config: ClientConfig,
    called: Called,
    /// Authorities of a file are trusted, and not the system's.
    own_authority: bool,
}

/// What is called, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Called {
    /// `store`, `receiver`.
    pub name: &'static str,
    /// The setting that names the file of an authority.
    pub setting: &'static str,
}

impl Trust {
    /// TLS that trusts the authorities of a file in PEM, and no others; without a file the system's. Reads files.
    ///
    /// # Errors
    /// There are none to trust, in words that name the setting.
    pub fn of(called: Called, file: Option<&Path>) -> Result<Self, String> {
        let config = match file {
            Some(file) => Ok(trusting(called, file)?),
            None => tls().map_err(|error| error.to_string()).and_then(|tls| {
                let tls = tls.with_native_roots().map_err(|error| {
                    format!("the system's certificates cannot be read: {error}")
                })?;
                Ok(tls.with_no_client_auth())
            }),
        };
        Ok(Self { config: config?, called, own_authority: file.is_some() })
    }

    /// TLS that trusts nobody.
    ///
    /// # Errors
    /// There is no TLS.
    pub fn nobody(called: Called) -> Result<Self, String> {
        let config = with_roots(RootCertStore::empty()).map_err(|error| error.to_string())?;
        Ok(Self { config, called, own_authority: false })
    }

    pub(super) fn builder(&self) -> HttpsConnectorBuilder<WantsSchemes> {
        HttpsConnectorBuilder::new().with_tls_config(self.config.clone())
    }

    /// Connects to the address that a request names, and nowhere else, and takes what is there for `host` if its certificate says so.
    ///
    /// # Errors
    /// The host has no name that a certificate could be for.
    pub fn pinned(
        &self,
        host: &str,
        within: Duration,
    ) -> Result<HttpsConnector<HttpConnector>, String> {
        let plain = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name =
            ServerName::try_from(plain).map_err(|_| format!("no certificate can be for {host}"))?;
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(within));
        tcp.enforce_http(false);
        let tls = self.builder().https_or_http();
        let tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
        Ok(tls.enable_http1().wrap_connector(tcp))
    }

    /// What TLS says of the certificate, if that is what an error comes from.
    pub fn distrust(&self, error: &(dyn Error + 'static)) -> Option<Distrust> {
        let mut at = Some(error);
        while let Some(error) = at {
            match error.downcast_ref::<rustls::Error>() {
                Some(rustls::Error::InvalidCertificate(why)) => {
                    return Some(Distrust(words(why, self.called, self.own_authority)));
                }
                Some(_) => return None,
                None => at = below(error),
            }
        }
        None
    }
}

fn trusting(called: Called, file: &Path) -> Result<ClientConfig, String> {
    let told = |why: &dyn fmt::Display| format!("{} {}: {why}", called.setting, file.display());
    let contents = std::fs::read(file).map_err(|error| told(&error))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&contents) {
        let certificate = certificate.map_err(|error| told(&error))?;
        roots.add(certificate).map_err(|error| told(&error))?;
    }
    if roots.is_empty() {
        return Err(told(&"no certificate in PEM is in it"));
    }
    with_roots(roots).map_err(|error| told(&error))
}

fn tls() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
}

fn with_roots(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let tls: ConfigBuilder<_, WantsClientCert> = tls()?.with_root_certificates(roots);
    Ok(tls.with_no_client_auth())
}

/// Why the other side of a connection was not taken for what was called.
#[derive(Debug)]
pub struct Distrust(String);

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Distrust {}

/// What an error comes from. Those of files and sockets leave the one within them out when they tell their source.
fn below<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>() {
        Some(error) => error.get_ref().map(|within| within as &(dyn Error + 'static)),
        None => error.source(),
    }
}

fn words(why: &CertificateError, called: Called, own_authority: bool) -> String {
    use CertificateError as E;
    let Called { name, setting } = called;
    match why {
        // The signature is of another authority that has the same name, as one has whose key was replaced.
        E::UnknownIssuer | E::BadSignature if own_authority => {
            format!("no authority of {setting} has signed the {name}'s certificate")
        }
        E::UnknownIssuer | E::BadSignature => {
            format!(
                "no authority that this system trusts has signed the {name}'s certificate; {setting} names the file of another"
            )
        }
        E::Expired | E::ExpiredContext { .. } => {
            format!("the {name}'s certificate has expired, or the clock of this host is wrong")
        }
        E::NotValidYet | E::NotValidYetContext { .. } => {
            format!("the {name}'s certificate is not valid yet, or the clock of this host is wrong")
        }
        E::NotValidForName => format!("the {name}'s certificate is for another host"),
        E::NotValidForNameContext { expected, presented } => {
            let host = match expected {
                ServerName::DnsName(name) => name.as_ref().to_owned(),
                ServerName::IpAddress(address) => std::net::IpAddr::from(*address).to_string(),
                _ => "the host that was named".to_owned(),
            };
            // What another server may have written there is not repeated at length.
            let presented: String = presented.join(", ").chars().take(200).collect();
            format!("the {name}'s certificate is not for {host}, but for {presented}")
        }
        other => format!("the {name}'s certificate is not valid: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLED: Called = Called { name: "store", setting: "s3.ca_file" };

    #[test]
    fn a_file_without_authorities_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let missing = trusting(CALLED, &file).unwrap_err();
        assert!(missing.contains("ca.pem") && missing.contains("No such file"), "{missing}");
        for text in
            ["", "no PEM at all", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"]
        {
            std::fs::write(&file, text).unwrap();
            let refused = trusting(CALLED, &file).unwrap_err();
            assert!(
                refused.contains("s3.ca_file") && refused.contains("no certificate"),
                "{refused}"
            );
        }
        for text in [
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "-----BEGIN CERTIFICATE-----\nAAAA",
        ] {
            std::fs::write(&file, text).unwrap();
            let refused = trusting(CALLED, &file).unwrap_err();
            assert!(refused.contains("s3.ca_file"), "{refused}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_certificate_is_found_below_other_errors() {
        let wrong = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let below = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, wrong));
        let nobody = Trust::nobody(CALLED).unwrap();
        let own = Trust { own_authority: true, ..nobody.clone() };
        let told = |trust: &Trust| trust.distrust(&below).unwrap().to_string();
        assert!(told(&own).contains("s3.ca_file has signed"));
        assert!(told(&nobody).contains("this system trusts"));
        assert!(own.distrust(&io::Error::other(rustls::Error::DecryptError)).is_none());
        assert!(own.distrust(&io::Error::other("refused")).is_none());
    }
}
