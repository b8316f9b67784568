//! The client's own certificate and its key (`sslcert`, `sslkey`, `sslpassword`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pkcs8::der::pem::PemLabel as _;
use pkcs8::{EncryptedPrivateKeyInfoRef, SecretDocument};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::error::TlsError;
use crate::secret::Secret;

/// The files of the client's certificate. Every connection reads them again, so a renewed certificate
/// needs no restart.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// The certificate and those between it and the authority, as PEM.
    pub(crate) certificate: PathBuf,
    /// The private key, as PEM.
    pub(crate) key: PathBuf,
    /// The password of an encrypted key.
    pub(crate) password: Option<Secret>,
}

impl Identity {
    /// Reads both files. Whether the key belongs to the certificate is left to the server: the library
    /// could compare them only for certificates of version 3, and `openssl x509 -req` makes others.
    pub(super) fn load(&self, provider: &CryptoProvider) -> Result<SingleCertAndKey, TlsError> {
        let failed = |path: &Path, source| TlsError::Identity { path: path.to_owned(), source };
        let chain = certificates(&self.certificate);
        let chain = chain.map_err(|error| failed(&self.certificate, error))?;
        let key = self.private_key().map_err(|error| failed(&self.key, error))?;
        let key = provider.key_provider.load_private_key(key);
        let key = key.map_err(|error| failed(&self.key, invalid(error)))?;
        Ok(CertifiedKey::new(chain, key).into())
    }

    fn private_key(&self) -> io::Result<PrivateKeyDer<'static>> {
        let pem = fs::read_to_string(&self.key)?;
        if !pem.contains("ENCRYPTED") {
            return PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(invalid);
        }
        let Some(password) = &self.password else {
            return Err(invalid("the key is encrypted; give its password as sslpassword"));
        };
        let encrypted = SecretDocument::from_pem(&pem).ok();
        let encrypted =
            encrypted.filter(|(label, _)| *label == EncryptedPrivateKeyInfoRef::PEM_LABEL);
        let (_, der) = encrypted.ok_or_else(|| invalid(OLD_FORMAT))?;
        let info = EncryptedPrivateKeyInfoRef::try_from(der.as_bytes()).map_err(invalid)?;
        // Nothing else of the failure helps, and a detail could reveal something of the key.
        let decrypted = info.decrypt(password.reveal()).map_err(|_| invalid(NOT_DECRYPTED))?;
        Ok(PrivatePkcs8KeyDer::from(decrypted.as_bytes().to_vec()).into())
    }
}

/// Old algorithms are not read, with the right password either.
const NOT_DECRYPTED: &str = "the key cannot be decrypted: sslpassword is wrong, or the key is encrypted in an old \
                             way; `openssl pkcs8 -topk8 -in KEY -out NEW` converts it";

/// The fix of an encrypted key of OpenSSL before 1.0.
const OLD_FORMAT: &str = "the key is encrypted in a format that is not read; \
                          `openssl pkcs8 -topk8 -in KEY -out NEW` converts it";

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let pem = fs::read(path)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match chain.map_err(invalid)? {
        none if none.is_empty() => Err(invalid("it holds no PEM certificate")),
        chain => Ok(chain),
    }
}

fn invalid(problem: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.to_string())
}
