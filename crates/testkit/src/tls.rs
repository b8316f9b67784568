//! A self-signed certificate for `localhost`.

/// The certificate in PEM format, which is also the authority to trust.
pub const CERTIFICATE: &[u8] = include_bytes!("../testdata/localhost.crt");
/// The certificate's private key in PEM format.
pub const KEY: &[u8] = include_bytes!("../testdata/localhost.key");
pub const CERTIFICATE_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/localhost.crt");
