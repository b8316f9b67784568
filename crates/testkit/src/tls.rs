//! A certificate for `localhost`, which signs itself.

/// The certificate, which is also the authority to trust: PEM.
pub const CERTIFICATE: &[u8] = include_bytes!("../testdata/localhost.crt");
/// Its private key: PEM.
pub const KEY: &[u8] = include_bytes!("../testdata/localhost.key");
/// Where the certificate lies, for whoever takes a path.
pub const CERTIFICATE_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/localhost.crt");
