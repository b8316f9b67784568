//! Channel binding: the proof that the server that knows the password is the one that TLS reached.

use pkcs8::der::asn1::AnyRef;
use pkcs8::der::{Decode as _, Reader as _, SliceReader};
use pkcs8::spki::AlgorithmIdentifierRef;
use sha2::{Digest as _, Sha224, Sha256, Sha384, Sha512};

/// Returns `tls-server-end-point` of a certificate (RFC 5929, section 4.1): its hash, with the hash
/// function of its signature, but SHA-256 instead of MD5 and SHA-1. None for other signatures, such as
/// Ed25519, for which the RFC defines nothing.
pub(crate) fn server_end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    match signature_algorithm(certificate).ok()?.as_str() {
        // RSA with MD5, SHA-1 and SHA-256; ECDSA with SHA-1 and SHA-256.
        "1.2.840.113549.1.1.4"
        | "1.2.840.113549.1.1.5"
        | "1.2.840.113549.1.1.11"
        | "1.2.840.10045.4.1"
        | "1.2.840.10045.4.3.2" => Some(Sha256::digest(certificate).to_vec()),
        "1.2.840.113549.1.1.14" | "1.2.840.10045.4.3.1" => {
            Some(Sha224::digest(certificate).to_vec())
        }
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => {
            Some(Sha384::digest(certificate).to_vec())
        }
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => {
            Some(Sha512::digest(certificate).to_vec())
        }
        _ => None,
    }
}

/// Returns the object identifier of a certificate's signature: the second of its three parts (RFC 5280,
/// section 4.1).
fn signature_algorithm(certificate: &[u8]) -> pkcs8::der::Result<String> {
    SliceReader::new(certificate)?.sequence(|parts| {
        AnyRef::decode(parts)?;
        let algorithm = AlgorithmIdentifierRef::decode(parts)?;
        AnyRef::decode(parts)?;
        Ok(algorithm.oid.to_string())
    })
}
