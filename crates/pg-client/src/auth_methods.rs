//! `require_auth`: the methods by which a server may ask who we are. Checked in the bytes of the server's first
//! message, so that both clients obey, and before anything secret is sent.

use std::io;

/// The methods, with the request codes of the protocol.
const METHODS: [(&str, &[u32]); 7] = [
    ("none", &[0]),
    ("password", &[3]),
    ("md5", &[5]),
    ("gss", &[7, 8]),
    ("sspi", &[9]),
    ("scram-sha-256", &[10]),
    // Also code 10. Both clients answer it with SCRAM only.
    ("oauth", &[]),
];

/// The methods that this client can answer.
const ANSWERED: [&str; 4] = ["none", "password", "md5", "scram-sha-256"];

/// The tag of a request for authentication, and of an error.
const REQUEST: u8 = b'R';
const ERROR: u8 = b'E';

/// The methods that a connection allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuthMethods(Vec<&'static str>);

impl AuthMethods {
    /// Parses the value of `require_auth`: names with commas, all or none of them behind a `!`.
    ///
    /// # Errors
    ///
    /// Returns the problem, without the value.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let names: Vec<&str> = text.split(',').map(str::trim).collect();
        let are_excluded = names.iter().all(|name| name.starts_with('!'));
        if !are_excluded && names.iter().any(|name| name.starts_with('!')) {
            return Err("require_auth has names with and without !; write all of one kind".into());
        }
        let names: Vec<&str> = names.iter().map(|name| name.trim_start_matches('!')).collect();
        if names.iter().any(|name| !METHODS.iter().any(|(known, _)| known == name)) {
            let known = METHODS.map(|(name, _)| name).join(", ");
            return Err(format!("require_auth has an unknown method; the methods are {known}"));
        }
        let all = METHODS.iter().map(|(name, _)| *name);
        let allowed: Vec<_> = all.filter(|name| names.contains(name) != are_excluded).collect();
        match allowed.iter().any(|name| ANSWERED.contains(name)) {
            true => Ok(Self(allowed)),
            false => Err(format!(
                "require_auth leaves no method that this client can answer: {}",
                ANSWERED.join(", ")
            )),
        }
    }
}

/// The server asks for a method that `require_auth` excludes.
#[derive(Debug, thiserror::Error)]
#[error("require_auth excludes {method}")]
pub(crate) struct MethodExcluded {
    /// The name of the method.
    pub(crate) method: &'static str,
}

/// Reads the first message of a server, and ends the connection if its method is excluded.
#[derive(Debug)]
pub(crate) struct AuthGate {
    methods: AuthMethods,
    /// Type, length, and the code of the request.
    first: [u8; 9],
    length: usize,
}

impl AuthGate {
    pub(crate) fn new(methods: AuthMethods) -> Self {
        Self { methods, first: [0; 9], length: 0 }
    }

    /// Takes the next bytes of the server. Returns whether the first message is allowed: then the gate
    /// is open for good.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let taken = bytes.len().min(self.first.len() - self.length);
        self.first[self.length..][..taken].copy_from_slice(&bytes[..taken]);
        self.length += taken;
        let [tag, .., a, b, c, d] = self.first;
        match (tag, self.length) {
            (_, 0) => Ok(false),
            (ERROR, _) => Ok(true),
            (REQUEST, 9) => self.check(u32::from_be_bytes([a, b, c, d])),
            (REQUEST, _) => Ok(false),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn check(&self, code: u32) -> io::Result<bool> {
        let method = METHODS.iter().find(|(_, codes)| codes.contains(&code));
        let method = method.map_or("an unknown method", |(name, _)| *name);
        match self.methods.0.contains(&method) {
            true => Ok(true),
            false => Err(io::Error::other(MethodExcluded { method })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_named_or_excluded() {
        let all = |text| AuthMethods::parse(text).map(|methods| methods.0);
        assert_eq!(all("scram-sha-256").unwrap(), ["scram-sha-256"]);
        assert_eq!(all("md5, none").unwrap(), ["none", "md5"]);
        assert_eq!(
            all("!password,!md5").unwrap(),
            ["none", "gss", "sspi", "scram-sha-256", "oauth"]
        );
        for (text, told) in [
            ("scram", "unknown method"),
            ("", "unknown method"),
            ("md5,!none", "with and without !"),
            ("gss", "no method that this client can answer"),
        ] {
            let problem = all(text).unwrap_err();
            assert!(problem.contains(told), "{text:?}: {problem}");
        }
    }

    #[test]
    fn an_excluded_method_ends_the_connection_however_its_bytes_arrive() {
        let request = |code: u8| [b'R', 0, 0, 0, 8, 0, 0, 0, code];
        for size in 1..=9 {
            let passed = |code: u8| {
                let mut gate = AuthGate::new(AuthMethods::parse("scram-sha-256").unwrap());
                request(code).chunks(size).try_fold(false, |_, bytes| gate.take(bytes))
            };
            assert!(passed(10).unwrap(), "{size}");
            for (code, method) in [(0, "none"), (3, "password"), (5, "md5"), (99, "an unknown")] {
                let refused = passed(code).unwrap_err().to_string();
                assert!(refused.contains(method), "{size}: {refused}");
            }
        }
        let first = |bytes: &[u8]| AuthGate::new(AuthMethods::parse("none").unwrap()).take(bytes);
        assert!(first(b"N\0\0\0\x05\0").is_err(), "nothing comes before the request");
        assert!(first(b"E\0").unwrap(), "an error is read");
    }
}
