//! The secrets that sign requests, and the signature of Standard Webhooks.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use walrelay_pg_client::Secret;

/// The prefix of a secret in text form.
const PREFIX: &str = "whsec_";
/// The bytes of a secret, as the specification limits them.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// The size of a file of secrets. Dozens of secrets fit, and a wrong file costs no memory.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The reason why there are no secrets. Contains no text of a secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// The file cannot be read.
    ///
    /// Its path is not shown: it may be a secret without its prefix.
    #[error("it is neither secrets, each whsec_ and base64, nor a file of them that can be read")]
    File(#[source] io::Error),
    /// There is no secret.
    #[error("there is no signing secret; a secret is whsec_ and base64")]
    None,
    /// A secret has another form.
    #[error("signing secret {number} is not whsec_ and the base64 of 24 to 64 bytes")]
    Form {
        /// The place of the secret, from 1.
        number: usize,
    },
}

/// The source of the secrets.
#[derive(Debug, Clone)]
pub enum Secrets {
    /// The secrets themselves.
    Text(Secret),
    /// A file that each request reads, so that rotated secrets need no restart.
    File(PathBuf),
}

impl Secrets {
    /// Reads an option's value: secrets, or the path of a file of secrets.
    #[must_use]
    pub fn of_option(value: &Secret) -> Self {
        match value.reveal().trim_start().starts_with(PREFIX) {
            true => Self::Text(value.clone()),
            false => Self::File(value.reveal().trim().into()),
        }
    }

    /// Returns the keys, the first one first.
    ///
    /// # Errors
    ///
    /// There is no secret, one of them has another form, or the file cannot be read.
    pub fn keys(&self) -> Result<Keys, SecretsError> {
        match self {
            Self::Text(text) => Keys::parse(text.reveal()),
            Self::File(path) => {
                let mut text = String::new();
                let read = std::fs::metadata(path).and_then(|found| match found.is_file() {
                    // To open a pipe could wait for ever.
                    false => Err(io::Error::other("it is no regular file")),
                    true => File::open(path)?.take(FILE_BYTES_MAX).read_to_string(&mut text),
                });
                read.map_err(SecretsError::File)?;
                Keys::parse(&text)
            }
        }
    }
}

/// The keys of signatures.
#[derive(Debug)]
pub struct Keys(Vec<hmac::Key>);

impl Keys {
    /// Reads secrets between white space or commas.
    fn parse(text: &str) -> Result<Self, SecretsError> {
        let parts = text.split([' ', ',', '\t', '\r', '\n']).filter(|part| !part.is_empty());
        let keys = parts.enumerate().map(|(index, part)| {
            let bytes = part.strip_prefix(PREFIX).and_then(|rest| STANDARD.decode(rest).ok());
            let bytes = bytes.filter(|bytes| SECRET_BYTES.contains(&bytes.len()));
            let bytes = bytes.ok_or(SecretsError::Form { number: index + 1 })?;
            Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
        });
        let keys: Vec<hmac::Key> = keys.collect::<Result<_, SecretsError>>()?;
        if keys.is_empty() { Err(SecretsError::None) } else { Ok(Self(keys)) }
    }

    /// Returns the signatures by all keys, between spaces.
    pub(crate) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let signature = |key: &hmac::Key| {
            let mut context = hmac::Context::with_key(key);
            context.update(format!("{id}.{timestamp}.").as_bytes());
            context.update(body);
            format!("v1,{}", STANDARD.encode(context.sign()))
        };
        self.0.iter().map(signature).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in the libraries of the specification.
    const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    const BODY: &[u8] = br#"{"email":"test@example.com","username":"test_user"}"#;
    const SIGNATURE: &str = "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=";

    fn sign(secrets: &str) -> String {
        let keys = Secrets::of_option(&Secret::new(secrets)).keys().unwrap();
        keys.sign("msg_27UH4WbU6Z5A5EzD8u03UvzRbpk", 1_649_367_553, BODY)
    }

    #[test]
    fn the_example_of_the_specification_has_its_signature() {
        assert_eq!(sign(SECRET), SIGNATURE);
    }

    #[test]
    fn each_secret_signs_so_that_secrets_can_be_rotated() {
        let other = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let both = sign(&format!("{SECRET}\n{other}\n"));
        assert_eq!(both, format!("{SIGNATURE} {}", sign(other)));
        assert_eq!(both, sign(&format!("{SECRET}, {other}")));
    }

    #[test]
    fn a_secret_of_another_form_is_refused_and_not_shown() {
        for wrong in ["whsec_hunter2", "whsec_", "whsec_aHVudGVyMg==", &format!("{SECRET} hunter2")]
        {
            let error = Secrets::of_option(&Secret::new(wrong)).keys().unwrap_err();
            assert!(matches!(error, SecretsError::Form { .. }), "{error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        // A secret without its prefix looks like the path of a file.
        for missing in ["/no/such/file", "BAiTgEmAqr/hM8CsrObdn4OpjBMPqyS0", "/dev/null"] {
            let error = Secrets::of_option(&Secret::new(missing)).keys().unwrap_err();
            assert!(matches!(error, SecretsError::File(_)), "{error}");
            assert!(!error.to_string().contains(missing), "{error}");
        }
        assert!(matches!(Keys::parse(" \n"), Err(SecretsError::None)));
    }
}
