//! Whose certificates are trusted, and in words of an operator why one is not.

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// TLS that trusts the authorities of a file in PEM, and no others.
pub(super) fn trusting(file: &Path) -> Result<ClientConfig, String> {
    let told = |why: &dyn fmt::Display| format!("s3.ca_file {}: {why}", file.display());
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

/// TLS that trusts nobody.
pub(super) fn without_roots() -> Result<ClientConfig, rustls::Error> {
    with_roots(RootCertStore::empty())
}

fn with_roots(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(config?.with_root_certificates(roots).with_no_client_auth())
}

/// Why the other side of a connection was not taken for the store.
#[derive(Debug)]
pub(super) struct Distrust(String);

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Distrust {}

impl Distrust {
    /// What TLS says of the certificate, if that is what an error comes from. `own_authority`: those of `s3.ca_file` are trusted, and not
    /// the system's.
    pub(super) fn of(error: &(dyn Error + 'static), own_authority: bool) -> Option<Self> {
        let mut at = Some(error);
        while let Some(error) = at {
            match error.downcast_ref::<rustls::Error>() {
                Some(rustls::Error::InvalidCertificate(why)) => {
                    return Some(Self(words(why, own_authority)));
                }
                Some(_) => return None,
                None => at = below(error),
            }
        }
        None
    }
}

/// What an error comes from. Those of files and sockets leave the one within them out when they tell their source.
fn below<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>() {
        Some(error) => error.get_ref().map(|within| within as &(dyn Error + 'static)),
        None => error.source(),
    }
}

fn words(why: &CertificateError, own_authority: bool) -> String {
    use CertificateError as E;
    match why {
        // The signature is of another authority that has the same name, as one has whose key was replaced.
        E::UnknownIssuer | E::BadSignature if own_authority => {
            "no authority of s3.ca_file has signed the store's certificate".to_owned()
        }
        E::UnknownIssuer | E::BadSignature => {
            "no authority that this system trusts has signed the store's certificate; s3.ca_file names the file of another".to_owned()
        }
        E::Expired | E::ExpiredContext { .. } => {
            "the store's certificate has expired, or the clock of this host is wrong".to_owned()
        }
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "the store's certificate is not valid yet, or the clock of this host is wrong".to_owned()
        }
        E::NotValidForName => "the store's certificate is for another host".to_owned(),
        E::NotValidForNameContext { expected, presented } => {
            let host = match expected {
                ServerName::DnsName(name) => name.as_ref().to_owned(),
                ServerName::IpAddress(address) => std::net::IpAddr::from(*address).to_string(),
                _ => "the host of s3.endpoint".to_owned(),
            };
            // What another server may have written there is not repeated at length.
            let presented: String = presented.join(", ").chars().take(200).collect();
            format!("the store's certificate is not for {host}, but for {presented}")
        }
        other => format!("the store's certificate is not valid: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_authorities_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let missing = trusting(&file).unwrap_err();
        assert!(missing.contains("ca.pem") && missing.contains("No such file"), "{missing}");
        for text in
            ["", "no PEM at all", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"]
        {
            std::fs::write(&file, text).unwrap();
            let refused = trusting(&file).unwrap_err();
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
            let refused = trusting(&file).unwrap_err();
            assert!(refused.contains("s3.ca_file"), "{refused}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_certificate_is_found_below_other_errors() {
        let wrong = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let below = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, wrong));
        assert!(Distrust::of(&below, true).unwrap().to_string().contains("s3.ca_file has signed"));
        assert!(Distrust::of(&below, false).unwrap().to_string().contains("this system trusts"));
        assert!(Distrust::of(&io::Error::other(rustls::Error::DecryptError), true).is_none());
        assert!(Distrust::of(&io::Error::other("refused"), true).is_none());
    }
}
