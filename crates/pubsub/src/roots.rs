//! The certificate authorities that may sign Pub/Sub's certificate.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tonic::transport::{Certificate, ClientTlsConfig};

use crate::error::PubsubError;

/// The public authorities, or the operator's own instead.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) enum Roots {
    #[default]
    Public,
    /// PEM certificates, each already parsed once without error.
    Private(Arc<[u8]>),
}

impl Roots {
    pub(crate) fn private(pem: &[u8]) -> Result<Self, PubsubError> {
        if store_of(pem)?.is_empty() {
            let problem = "it holds no certificate; PEM begins with -----BEGIN CERTIFICATE-----";
            return Err(PubsubError::Roots { problem: problem.to_owned() });
        }
        Ok(Self::Private(pem.into()))
    }

    /// The trust store of the connections that publish.
    pub(crate) fn store(&self) -> Result<RootCertStore, PubsubError> {
        match self {
            Self::Public => Ok(webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect()),
            Self::Private(pem) => store_of(pem),
        }
    }

    /// The TLS settings of the channel for all other calls.
    pub(crate) fn channel_tls(&self) -> ClientTlsConfig {
        match self {
            Self::Public => ClientTlsConfig::new().with_webpki_roots(),
            Self::Private(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        }
    }
}

/// Returns the TLS settings of a client that trusts the public authorities, or those of a PEM text instead.
///
/// # Errors
///
/// The text has no certificate, or one of them cannot be read.
pub fn client_tls(authorities: Option<&[u8]>) -> Result<ClientConfig, PubsubError> {
    let roots = authorities.map_or(Ok(Roots::Public), Roots::private)?;
    tls_config(roots.store()?)
}

pub(crate) fn tls_config(roots: RootCertStore) -> Result<ClientConfig, PubsubError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn store_of(pem: &[u8]) -> Result<RootCertStore, PubsubError> {
    let mut store = RootCertStore::empty();
    for (index, certificate) in CertificateDer::pem_slice_iter(pem).enumerate() {
        certificate
            .map_err(|error| error.to_string())
            .and_then(|found| store.add(found).map_err(|error| error.to_string()))
            .map_err(|error| {
                let number = index + 1;
                PubsubError::Roots { problem: format!("certificate {number} in it: {error}") }
            })?;
    }
    Ok(store)
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "Public",
            Self::Private(_) => "Private",
        })
    }
}
