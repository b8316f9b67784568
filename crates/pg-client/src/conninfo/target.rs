//! The content of a connection string: hosts, role, encryption, and which servers are acceptable.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::SupportedProtocolVersion;
use socket2::TcpKeepalive;

use crate::auth_methods::AuthMethods;
use crate::password_source::PasswordSource;
use crate::secret::Secret;
use crate::tls::Identity;

/// Where and how to connect. An instance is always valid.
#[derive(Debug, Clone)]
pub struct ConnectConfig {
    pub(crate) endpoints: Vec<Endpoint>,
    /// The password file, if neither the string nor the environment has a password. Every
    /// connection reads it again, so a rotated password needs no restart.
    pub(crate) passfile: Option<PathBuf>,
    /// What gives the password instead of the string, the environment and the file.
    pub(crate) password_source: Option<Arc<dyn PasswordSource>>,
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) security: Security,
    pub(crate) liveness: Liveness,
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

    /// Whether an authentication must be bound to the TLS connection.
    #[must_use]
    pub const fn channel_binding(&self) -> ChannelBinding {
        self.security.channel_binding
    }
}

/// One host of the list, with its own port and password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// A name, an address, or the directory of a Unix socket.
    pub host: String,
    /// The address of the host, so that its name is not looked up (`hostaddr`).
    pub address: Option<IpAddr>,
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

/// How a connection is encrypted, and how both sides prove who they are.
#[derive(Debug, Clone)]
pub(crate) struct Security {
    pub(crate) encryption: Encryption,
    pub(crate) negotiation: Negotiation,
    /// The versions of TLS that will do.
    pub(crate) versions: Vec<&'static SupportedProtocolVersion>,
    /// Whether TLS names the host that is wanted (`sslsni`).
    pub(crate) names_host: bool,
    pub(crate) identity: Option<Identity>,
    pub(crate) channel_binding: ChannelBinding,
    /// The methods that `require_auth` allows. None: every method.
    pub(crate) methods: Option<AuthMethods>,
}

/// How TLS begins (`sslnegotiation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Negotiation {
    /// The client asks for it in the protocol of Postgres.
    Asked,
    /// With the first byte.
    Direct,
}

/// Whether SCRAM is bound to the TLS connection (`channel_binding`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// If the server offers it.
    #[default]
    Prefer,
    /// Always, and no other method will do.
    Require,
}

/// How a peer that has vanished is found out.
#[derive(Debug, Clone)]
pub(crate) struct Liveness {
    /// None: no probes.
    pub(crate) keepalive: Option<TcpKeepalive>,
    /// The longest time that written bytes may stay unacknowledged. None: the system's.
    pub(crate) unacknowledged: Option<Duration>,
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

impl Encryption {
    /// Returns whether a connection without TLS is impossible.
    pub(crate) const fn is_required(&self) -> bool {
        !matches!(self, Self::Disable | Self::Prefer)
    }
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
        if any(|endpoint| endpoint.host.contains("-pooler.")) {
            return Some(
                "the host is a pooler, as Neon's, which cannot replicate; use the same name \
                 without -pooler",
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

    /// Returns the configuration with passwords from this source instead of those of the string.
    #[must_use]
    pub fn with_password_source(mut self, source: Arc<dyn PasswordSource>) -> Self {
        self.password_source = Some(source);
        self
    }

    /// Returns whether a connection without TLS is impossible.
    #[must_use]
    pub const fn requires_tls(&self) -> bool {
        self.security.encryption.is_required()
    }

    /// Returns the time budget of one attempt over all addresses.
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }
}
