//! The content of a connection string: hosts, role, encryption, and which servers are acceptable.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::secret::Secret;

/// Where and how to connect. An instance is always valid.
#[derive(Debug, Clone)]
pub struct ConnectConfig {
    pub(crate) endpoints: Vec<Endpoint>,
    /// The password file, if neither the string nor the environment has a password. Every
    /// connection reads it again, so a rotated password needs no restart.
    pub(crate) passfile: Option<PathBuf>,
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) encryption: Encryption,
    pub(crate) application_name: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) options: Option<String>,
    pub(crate) session: TargetSession,
}

impl ConnectConfig {
    /// Settings for the session, as the startup parameter `options` takes them.
    #[must_use]
    pub fn options(&self) -> Option<&str> {
        self.options.as_deref()
    }

    /// Which servers of the list will do.
    #[must_use]
    pub const fn target_session(&self) -> TargetSession {
        self.session
    }
}

/// One host of the list, with its own port and password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// A name, an address, or the directory of a Unix socket.
    pub host: String,
    /// The TCP port, or the number in the name of the socket.
    pub port: u16,
    /// The host's own password, because a password file has one line per host. None until that file
    /// is read.
    pub password: Option<Secret>,
}

impl Endpoint {
    /// Returns the socket directory if the host is a Unix socket.
    pub(crate) fn socket_dir(&self) -> Option<&Path> {
        (self.host.starts_with('/') || self.host.starts_with('@')).then(|| Path::new(&self.host))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Whether the connection is encrypted, and which certificates it trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Encryption {
    /// Plain text.
    Disable,
    /// Encrypted without checking the certificate. Plain text if the server has no TLS.
    Prefer,
    /// Encrypted without checking the certificate.
    Require,
    /// Encrypted, with a certificate that one of the roots has signed.
    VerifyCa(RootSource),
    /// As `VerifyCa`, and the certificate names the host.
    VerifyFull(RootSource),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RootSource {
    /// The public authorities that are compiled in.
    Public,
    /// A PEM file, which every connection reads again.
    File(PathBuf),
    /// PEM text.
    Inline(String),
}

/// The servers of the list that are acceptable (`target_session_attrs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetSession {
    /// Any server.
    Any,
    /// One that takes writes.
    ReadWrite,
    /// One that does not.
    ReadOnly,
    /// Not a standby.
    Primary,
    /// A standby.
    Standby,
}

impl ConnectConfig {
    /// Returns hosts, database and user for logs, without secrets.
    #[must_use]
    pub fn describe(&self) -> String {
        let hosts: Vec<_> = self.endpoints.iter().map(ToString::to_string).collect();
        format!("{}/{} as {}", hosts.join(","), self.database, self.user)
    }

    /// Returns why this looks like a connection pooler, which cannot replicate, and the
    /// alternative.
    #[must_use]
    pub fn looks_like_pooler(&self) -> Option<&'static str> {
        let any = |test: fn(&Endpoint) -> bool| self.endpoints.iter().any(test);
        if any(|endpoint| endpoint.host.ends_with(".pooler.supabase.com")) {
            return Some(
                "the host is Supabase's pooler, which cannot replicate; use the direct connection \
                 db.<ref>.supabase.co:5432 (IPv6, or the IPv4 add-on)",
            );
        }
        if any(|endpoint| endpoint.port == 6543) {
            return Some(
                "port 6543 is a transaction pooler's, which cannot replicate; use the database's \
                 own port, usually 5432",
            );
        }
        self.user.starts_with("postgres.").then_some(
            "a user name like postgres.<ref> belongs to Supabase's pooler, which cannot replicate; \
             use the direct connection and the user postgres",
        )
    }

    /// Returns the name of the database.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Returns the role that connects.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the connection's name in `pg_stat_activity`.
    #[must_use]
    pub fn application_name(&self) -> &str {
        &self.application_name
    }

    /// Returns the configuration with `connect_timeout` reduced to `limit` at most.
    #[must_use]
    pub fn with_patience(mut self, limit: Duration) -> Self {
        self.connect_timeout = self.connect_timeout.min(limit);
        self
    }

    /// Returns the time budget of one attempt over all addresses.
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }
}
