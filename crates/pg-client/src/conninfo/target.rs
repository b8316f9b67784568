//! What a connection string asks for: hosts, role, encryption, and which servers will do.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::secret::Secret;

/// Where and how to connect. Its existence means it is valid.
#[derive(Debug, Clone)]
pub struct ConnectConfig {
    pub(crate) endpoints: Vec<Endpoint>,
    /// Where passwords are, if neither the string nor the environment has one. Read again before every
    /// connection, so that a rotation needs no restart.
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

/// One host of the list and what belongs to it alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// A name, an address, or the directory of a Unix socket.
    pub host: String,
    /// The TCP port, or the number in the name of the socket.
    pub port: u16,
    /// Per host, because a password file has one line per host; none before that file is read.
    pub password: Option<Secret>,
}

impl Endpoint {
    /// The directory, when the host is a Unix socket.
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

/// Whether the connection is encrypted, and whom it trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Encryption {
    /// Plain text.
    Disable,
    /// Encrypted without looking at the certificate; plain when the server cannot.
    Prefer,
    /// Encrypted, without looking at the certificate.
    Require,
    /// The certificate was signed by one of the roots.
    VerifyCa(RootSource),
    /// And it names the host.
    VerifyFull(RootSource),
}

/// Where root certificates come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RootSource {
    /// The public authorities compiled in.
    Public,
    /// A PEM file, read anew for every connection.
    File(PathBuf),
    /// PEM text.
    Inline(String),
}

/// Which servers of the list will do (`target_session_attrs`).
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
    /// Hosts, database and user for logs: nothing secret.
    #[must_use]
    pub fn describe(&self) -> String {
        let hosts: Vec<_> = self.endpoints.iter().map(ToString::to_string).collect();
        format!("{}/{} as {}", hosts.join(","), self.database, self.user)
    }

    /// Why this looks like a connection pooler, which cannot replicate, and what to use instead.
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

    /// The database asked for.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The role connected as.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// How `pg_stat_activity` names this connection.
    #[must_use]
    pub fn application_name(&self) -> &str {
        &self.application_name
    }

    /// The same with another name in `pg_stat_activity`, for instance with the instance's id.
    #[must_use]
    pub fn with_application_name(mut self, name: impl Into<String>) -> Self {
        self.application_name = name.into();
        self
    }

    /// The same for somebody who waits at most this long for a connection.
    #[must_use]
    pub fn with_patience(mut self, limit: Duration) -> Self {
        self.connect_timeout = self.connect_timeout.min(limit);
        self
    }

    /// Budget of one attempt over all addresses.
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }
}
