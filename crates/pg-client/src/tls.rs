//! The certificate checks of each `sslmode`.
//!
//! Follows libpq. `require` checks nothing, `verify-ca` requires a signature of one of the roots,
//! and `verify-full` also the host's name. As in libpq, a self-signed server certificate may itself
//! be the root. No process-wide crypto provider is needed or installed.

use std::fs;
use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::conninfo::{Encryption, Negotiation, RootSource, Security};
use crate::error::TlsError;

pub(crate) mod channel_binding;
mod identity;

pub(crate) use identity::Identity;

/// The protocol that TLS itself names, so that a server of another protocol refuses (RFC 7301). Postgres
/// needs it for TLS from the first byte.
pub(crate) const ALPN: &[u8] = b"postgresql";

/// Returns the client's TLS configuration. `None` for plain text.
pub(crate) fn client_config(security: &Security) -> Result<Option<Arc<ClientConfig>>, TlsError> {
    let trust = match &security.encryption {
        Encryption::Disable => return Ok(None),
        Encryption::Prefer | Encryption::Require => CertificateCheck::Anybody,
        Encryption::VerifyCa(source) => CertificateCheck::SignedBy(roots(source)?),
        Encryption::VerifyFull(source) => CertificateCheck::SignedByAndNamed(roots(source)?),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(Verifier { trust, provider: Arc::clone(&provider) });
    let identity = security.identity.as_ref().map(|identity| identity.load(&provider));
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&security.versions)
        .map_err(TlsError::Configuration)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity.transpose()? {
        None => config.with_no_client_auth(),
        Some(identity) => config.with_client_cert_resolver(Arc::new(identity)),
    };
    config.enable_sni = security.names_host;
    if security.negotiation == Negotiation::Direct {
        config.alpn_protocols = vec![ALPN.to_vec()];
    }
    Ok(Some(Arc::new(config)))
}

/// Returns the name that the server's certificate must contain, if one is required.
pub(crate) fn server_name(
    encryption: &Encryption,
    host: &str,
) -> Result<ServerName<'static>, TlsError> {
    match (ServerName::try_from(host.to_owned()), encryption) {
        (Ok(name), _) => Ok(name),
        (Err(_), Encryption::VerifyFull(_)) => Err(TlsError::HostName { host: host.to_owned() }),
        // The name is not checked, so a host name that is invalid in DNS must not fail.
        (
            Err(_),
            Encryption::Disable
            | Encryption::Prefer
            | Encryption::Require
            | Encryption::VerifyCa(_),
        ) => Ok(ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())),
    }
}

fn roots(source: &RootSource) -> Result<Roots, TlsError> {
    match source {
        RootSource::Public => Ok(Roots {
            store: RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
            pinned: Vec::new(),
        }),
        RootSource::File(path) => fs::read(path)
            .and_then(|pem| roots_from_pem(&pem))
            .map_err(|error| TlsError::RootFile { path: path.clone(), source: error }),
        RootSource::Inline(pem) => {
            roots_from_pem(pem.as_bytes()).map_err(|error| TlsError::RootPem { source: error })
        }
    }
}

fn roots_from_pem(pem: &[u8]) -> io::Result<Roots> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let mut roots = Roots { store: RootCertStore::empty(), pinned: Vec::new() };
    for (index, certificate) in CertificateDer::pem_slice_iter(pem).enumerate() {
        let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
        // A certificate that cannot anchor a chain may still be the server's own certificate.
        if let Err(error) = roots.store.add(certificate.clone()) {
            if ParsedCertificate::try_from(&certificate).is_err() {
                let number = index + 1;
                return Err(invalid(format!("certificate {number} in it is damaged: {error}")));
            }
            tracing::debug!(%error, "a certificate in sslrootcert is no trust anchor");
        }
        roots.pinned.push(certificate);
    }
    if roots.pinned.is_empty() {
        return Err(invalid("it holds no PEM certificate".to_owned()));
    }
    Ok(roots)
}

#[derive(Debug)]
struct Roots {
    store: RootCertStore,
    /// The same certificates in their original form, because one of them may be the server's own.
    pinned: Vec<CertificateDer<'static>>,
}

#[derive(Debug)]
enum CertificateCheck {
    Anybody,
    SignedBy(Roots),
    SignedByAndNamed(Roots),
}

fn is_about_time(error: &rustls::Error) -> bool {
    use rustls::CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }
        )
    )
}

/// The checks of libpq in addition to webpki's.
#[derive(Debug)]
struct Verifier {
    trust: CertificateCheck,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn verify_chain(
        &self,
        roots: &Roots,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let verified = verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(certificate)?,
            &roots.store,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        );
        match verified {
            // Exactly this certificate is stronger evidence than any signature over it, on its days.
            Err(error) if !is_about_time(&error) && roots.pinned.contains(certificate) => Ok(()),
            verified => verified,
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match &self.trust {
            CertificateCheck::Anybody => {}
            CertificateCheck::SignedBy(roots) => {
                self.verify_chain(roots, end_entity, intermediates, now)?;
            }
            CertificateCheck::SignedByAndNamed(roots) => {
                self.verify_chain(roots, end_entity, intermediates, now)?;
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
