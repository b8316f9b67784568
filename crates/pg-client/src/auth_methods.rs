//! What a server may send before the session begins: the method by which it asks who we are
//! (`require_auth`), and messages of limited length. Checked in the server's bytes, so that both clients
//! obey, and before anything secret is sent.

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

/// Longest message of a server before the session begins. Postgres sends errors, settings and requests for
/// authentication of some hundred bytes.
const STARTUP_MESSAGE_MAX: u32 = 16 * 1024;

/// Most bytes of all these messages.
const STARTUP_MAX: usize = 256 * 1024;

/// The tag of the message with which the session begins.
const READY: u8 = b'Z';

/// Reads the headers of a server's messages until the session begins. Anybody who answers on the address can
/// send them.
#[derive(Debug)]
pub(crate) struct StartupGate {
    methods: Option<AuthMethods>,
    /// Type and length of a message. Of the first one also the code of the request.
    header: [u8; 9],
    /// Number of bytes of the header that are read.
    length: usize,
    /// Number of bytes of the message that follow.
    rest: usize,
    /// Number of bytes of all messages.
    total: usize,
    is_first: bool,
}

impl StartupGate {
    pub(crate) fn new(methods: Option<AuthMethods>) -> Self {
        Self { methods, header: [0; 9], length: 0, rest: 0, total: 0, is_first: true }
    }

    /// Takes the next bytes of the server. Returns whether the session has begun: then the gate is open
    /// for good.
    ///
    /// # Errors
    ///
    /// The method is excluded, or a message is too long.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> io::Result<bool> {
        while !bytes.is_empty() {
            if self.rest > 0 {
                let skipped = bytes.len().min(self.rest);
                (self.rest, bytes) = (self.rest - skipped, &bytes[skipped..]);
                continue;
            }
            let wanted = if self.is_first && self.header[0] == REQUEST { 9 } else { 5 };
            let taken = bytes.len().min(if self.length == 0 { 1 } else { wanted - self.length });
            self.header[self.length..][..taken].copy_from_slice(&bytes[..taken]);
            (self.length, bytes) = (self.length + taken, &bytes[taken..]);
            if self.length == 1 {
                self.check_tag()?;
            } else if self.length == wanted && self.end_header(wanted)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Nothing comes before the first request for authentication, except an error.
    fn check_tag(&self) -> io::Result<()> {
        match self.header[0] {
            ERROR | REQUEST => Ok(()),
            _ if self.is_first && self.methods.is_some() => Err(io::ErrorKind::InvalidData.into()),
            _ => Ok(()),
        }
    }

    /// Checks a complete header. Returns whether the session begins with this message.
    fn end_header(&mut self, read: usize) -> io::Result<bool> {
        let [tag, a, b, c, d, code @ ..] = self.header;
        let length = u32::from_be_bytes([a, b, c, d]);
        self.total = self.total.saturating_add(length as usize);
        if length > STARTUP_MESSAGE_MAX || self.total > STARTUP_MAX {
            return Err(io::Error::other(StartupTooLong));
        }
        if self.is_first && tag == REQUEST {
            self.check(u32::from_be_bytes(code))?;
        }
        self.rest = (length as usize + 1).checked_sub(read).ok_or(io::ErrorKind::InvalidData)?;
        (self.length, self.is_first) = (0, false);
        Ok(tag == READY)
    }

    fn check(&self, code: u32) -> io::Result<()> {
        let Some(AuthMethods(allowed)) = &self.methods else { return Ok(()) };
        let method = METHODS.iter().find(|(_, codes)| codes.contains(&code));
        let method = method.map_or("an unknown method", |(name, _)| *name);
        match allowed.contains(&method) {
            true => Ok(()),
            false => Err(io::Error::other(MethodExcluded { method })),
        }
    }
}

/// The server sends more before the session than any server of Postgres.
#[derive(Debug, thiserror::Error)]
#[error("before the session begins, the peer sends more than a Postgres server does")]
struct StartupTooLong;

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
                let mut gate = StartupGate::new(AuthMethods::parse("scram-sha-256").ok());
                request(code).chunks(size).try_for_each(|bytes| gate.take(bytes).map(drop))
            };
            passed(10).unwrap();
            for (code, method) in [(0, "none"), (3, "password"), (5, "md5"), (99, "an unknown")] {
                let refused = passed(code).unwrap_err().to_string();
                assert!(refused.contains(method), "{size}: {refused}");
            }
        }
        let first = |bytes: &[u8]| StartupGate::new(AuthMethods::parse("none").ok()).take(bytes);
        assert!(first(b"N\0\0\0\x05\0").is_err(), "nothing comes before the request");
        assert!(first(b"E\0\0\0\x05\0").is_ok(), "an error is read");
    }

    #[test]
    fn messages_are_short_until_the_session_begins_however_their_bytes_arrive() {
        let message = |tag: u8, body: &[u8]| {
            let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
            [&[tag], &length[..], body].concat()
        };
        let login = [
            message(b'R', &[0, 0, 0, 10, b'S', 0, 0]),
            message(b'R', &[0, 0, 0, 0]),
            message(b'S', &[b'x'; 300]),
            message(b'Z', b"I"),
        ];
        for size in 1..=40 {
            let mut gate = StartupGate::new(None);
            let taken = login.concat().chunks(size).map(|it| gate.take(it).unwrap()).last();
            // The last byte is the state of the session, behind the header.
            assert!(size == 1 || taken == Some(true), "{size}");
        }
        let flood = message(b'N', &[b'x'; 9_000]).repeat(30);
        let mut gate = StartupGate::new(None);
        let ended = flood.chunks(4_096).try_for_each(|it| gate.take(it).map(drop));
        assert!(ended.is_err(), "many short messages");
        for (tag, length) in [(b'R', u32::MAX), (b'E', 16 * 1024 + 1), (b'R', 3)] {
            let bytes = [&[tag], &length.to_be_bytes()[..], &[0; 4]].concat();
            assert!(StartupGate::new(None).take(&bytes).is_err(), "{tag} {length}");
        }
    }
}
