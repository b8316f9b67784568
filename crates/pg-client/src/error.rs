//! Failures between the relay and the server, grouped by who has to act.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use walrelay_errors::{Chain, Code, Coded};

use crate::auth_methods::MethodExcluded;
use crate::server_error::{ServerError, ServerErrorKind};

/// A failure of a connection to Postgres.
#[derive(Debug, thiserror::Error)]
pub enum PgError {
    /// The host's name has no address.
    #[error("look up host {host}")]
    Resolve {
        /// The name that was looked up.
        host: String,
        /// The resolver's error.
        #[source]
        source: io::Error,
    },

    /// No connection to one address.
    #[error("connect to {address}")]
    Connect {
        /// The address, with its host.
        address: String,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },

    /// An address did not answer, or did not finish the startup, in its share of the time.
    #[error("{address} did not answer within {:.1} s", limit.as_secs_f64())]
    ConnectTimeout {
        /// The address, with its host.
        address: String,
        /// Its share of `connect_timeout`.
        limit: Duration,
    },

    /// Several addresses were tried, and each failed.
    #[error("no address of the server can be reached: {}", Failures(.failures))]
    Unreachable {
        /// One per address, in the order tried.
        failures: Vec<PgError>,
    },

    /// TLS negotiation failed, or the certificate is not for the requested host.
    #[error("TLS with {host}")]
    Tls {
        /// The requested host.
        host: String,
        /// The cause.
        #[source]
        source: TlsError,
    },

    /// The server answered with an error.
    #[error(transparent)]
    Server(Box<ServerError>),

    /// The server refused the parameter `replication`, or `IDENTIFY_SYSTEM` was a syntax error. The
    /// peer is therefore not a replication connection.
    #[error(
        "this is a connection pooler: it does not pass replication=database on, and does not replicate"
    )]
    Pooler,

    /// Two sessions of ours had the same server process, or one session changed it.
    #[error(
        "this is a connection pooler in transaction mode: it shares a server process between its clients"
    )]
    SharedBackend,

    /// The server asks for an authentication method that this client does not support, or that the
    /// connection string excludes.
    #[error("the server asks for {method} authentication, {why}")]
    AuthenticationMethod {
        /// Name of the method.
        method: String,
        /// Why it is not used, as a relative clause.
        why: &'static str,
    },

    /// The server asks for a password, and none is configured.
    #[error("the server asks for a password and none is configured")]
    PasswordMissing,

    /// The password file cannot be read.
    #[error("read password file {}", path.display())]
    PasswordFile {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },

    /// The source of passwords has none.
    #[error("get the password of the connection")]
    PasswordSource {
        /// The cause.
        #[source]
        source: io::Error,
    },

    /// The server could not prove that it knows the password.
    #[error("SCRAM authentication with the server")]
    Scram {
        /// The cause.
        #[source]
        source: io::Error,
    },

    /// `target_session_attrs` asks for another kind of server.
    #[error("the server is not {wanted}, as target_session_attrs asks")]
    WrongSession {
        /// The requested kind of server.
        wanted: &'static str,
    },

    /// The server skips a publication and therefore leaves rows out. Postgres 18 only warns.
    #[error("the server skipped a publication, rows would be missing: {0}")]
    PublicationSkipped(Box<ServerError>),

    /// The server ended the stream on its own, as in a shutdown.
    #[error("the server ended the replication stream")]
    EndedByServer,

    /// The connection closed without a message: a crash, a timeout on either side, or the network.
    #[error("the server closed the connection")]
    Disconnected,

    /// The connection broke.
    #[error("{action}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },

    /// No bytes arrived although answers were requested. The peer vanished without a FIN.
    #[error("the server sent nothing for {limit:?} although it was asked to")]
    Silent {
        /// Time that was waited.
        limit: Duration,
    },

    /// The server does not read from the connection.
    #[error("the server did not take a message in within {limit:?}")]
    WriteTimeout {
        /// Time that was waited.
        limit: Duration,
    },

    /// The stream was asked to end, and did not end within the limit.
    #[error("the server did not end the replication stream within {limit:?}")]
    FinishTimeout {
        /// Time that was waited.
        limit: Duration,
    },

    /// One message exceeds the memory limit.
    #[error("a message of {bytes} bytes is larger than the limit of {limit} bytes")]
    MessageTooLarge {
        /// The announced size in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },

    /// Bytes that the protocol does not allow here.
    #[error("{what}")]
    Protocol {
        /// The expected and the found bytes, in words.
        what: String,
    },

    /// A frame of the stream cannot be read.
    #[error("read a frame of the replication stream")]
    Frame(#[source] pgoutput_parser::DecodeError),

    /// The SQL client failed without an answer of the server.
    #[error("talk to the server")]
    Sql(#[source] tokio_postgres::Error),
}

impl PgError {
    /// Returns the server's error, if this is one.
    #[must_use]
    pub fn server(&self) -> Option<&ServerError> {
        match self {
            Self::Server(error) | Self::PublicationSkipped(error) => Some(error),
            Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::ConnectTimeout { .. }
            | Self::Unreachable { .. }
            | Self::Tls { .. }
            | Self::Pooler
            | Self::SharedBackend
            | Self::AuthenticationMethod { .. }
            | Self::PasswordMissing
            | Self::PasswordFile { .. }
            | Self::PasswordSource { .. }
            | Self::Scram { .. }
            | Self::WrongSession { .. }
            | Self::EndedByServer
            | Self::Disconnected
            | Self::Io { .. }
            | Self::Silent { .. }
            | Self::WriteTimeout { .. }
            | Self::FinishTimeout { .. }
            | Self::MessageTooLarge { .. }
            | Self::Protocol { .. }
            | Self::Frame(_)
            | Self::Sql(_) => None,
        }
    }

    /// Returns the error as one of a pooler, if a pooler refused a startup parameter that only a server
    /// knows (PgBouncer: 08P01, "unsupported startup parameter: replication"). No server does that.
    #[must_use]
    pub fn or_pooler(self) -> Self {
        match self.server() {
            Some(answer)
                if answer.code == "08P01" && answer.message.contains("startup parameter") =>
            {
                Self::Pooler
            }
            Some(_) | None => self,
        }
    }

    /// Returns the code of an error while a slot is streamed. A slot that is "not in a state" was
    /// invalidated meanwhile, because everything else about the slot was checked before.
    #[must_use]
    pub fn code_while_streaming(&self) -> Code {
        if let Self::Server(answer) = self
            && answer.kind() == ServerErrorKind::NotInState
        {
            return Code::SlotLost;
        }
        self.code()
    }

    /// A violation of the protocol.
    pub fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol { what: what.into() }
    }

    /// For `map_err`: names the action that failed. An end of the stream is a closed connection.
    pub fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| {
            if let Some(excluded) = Self::excluded(&source) {
                return excluded;
            }
            if source.kind() == io::ErrorKind::UnexpectedEof {
                return Self::Disconnected;
            }
            Self::Io { action, source }
        }
    }
}

/// Why a method is not used: the client cannot answer it.
pub const UNSUPPORTED: &str = "which is not supported";
/// Why a method is not used: its answer would not be bound to the TLS connection.
pub const UNBOUND: &str = "which channel_binding=require excludes";

impl PgError {
    /// Returns the error of a failed proof: the library has no kind for it but its text.
    fn unproven(error: &tokio_postgres::Error, cause: Option<&io::Error>) -> Option<Self> {
        let source = cause.filter(|_| error.to_string().starts_with("authentication error"))?;
        Some(Self::Scram { source: io::Error::new(source.kind(), source.to_string()) })
    }

    /// Returns the error of a method that the connection string excludes, if it is the cause.
    fn excluded(cause: &io::Error) -> Option<Self> {
        let MethodExcluded { method } = cause.get_ref()?.downcast_ref()?;
        let (method, why) = ((*method).to_owned(), "which require_auth excludes");
        Some(Self::AuthenticationMethod { method, why })
    }
}

impl Coded for PgError {
    fn code(&self) -> Code {
        match self {
            Self::Resolve { .. } | Self::Connect { .. } => Code::PostgresUnreachable,
            Self::ConnectTimeout { .. } => Code::PostgresTimeout,
            // One address that may still answer is enough to wait for.
            Self::Unreachable { failures } => {
                let may_answer = failures.iter().any(|it| it.code() == Code::PostgresTimeout);
                if may_answer { Code::PostgresTimeout } else { Code::PostgresUnreachable }
            }
            Self::Tls { source, .. } => source.code(),
            Self::Server(answer) => answer.kind().code(),
            Self::Pooler | Self::SharedBackend => Code::ConnectionPooler,
            Self::AuthenticationMethod { .. } => Code::AuthenticationMethodUnsupported,
            Self::PasswordMissing | Self::PasswordSource { .. } => Code::PasswordMissing,
            Self::PasswordFile { .. } => Code::PasswordFileUnreadable,
            Self::Scram { .. } => Code::ServerUnproven,
            Self::WrongSession { .. } => Code::WrongSessionAttributes,
            Self::PublicationSkipped(_) => Code::PublicationSkipped,
            Self::EndedByServer
            | Self::Disconnected
            | Self::Io { .. }
            | Self::Silent { .. }
            | Self::WriteTimeout { .. }
            | Self::FinishTimeout { .. }
            | Self::Sql(_) => Code::ConnectionBroken,
            Self::MessageTooLarge { .. } | Self::Protocol { .. } | Self::Frame(_) => {
                Code::ProtocolViolation
            }
        }
    }
}

impl From<tokio_postgres::Error> for PgError {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(answer) => Self::Server(Box::new(ServerError::from(answer))),
            None => {
                let cause = std::error::Error::source(&error).and_then(|it| it.downcast_ref());
                match cause.and_then(Self::excluded) {
                    Some(excluded) => excluded,
                    None => Self::unproven(&error, cause).unwrap_or(Self::Sql(error)),
                }
            }
        }
    }
}

struct Failures<'a>(&'a [PgError]);

impl fmt::Display for Failures<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, failure) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "; " })?;
            write!(f, "{}", Chain(failure))?;
        }
        Ok(())
    }
}

/// Why TLS failed.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The server supports plain text only.
    #[error("the server does not offer TLS")]
    NotOffered,
    /// The server answered the TLS request with neither yes nor no.
    #[error("the server answered the request for TLS with byte {0:#04x}")]
    Unexpected(u8),
    /// The file with the root certificates cannot be read.
    #[error("read root certificates from {path}: {source}")]
    RootFile {
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system or the PEM reader.
        #[source]
        source: io::Error,
    },
    /// The inline certificates cannot be read.
    #[error("read the inline root certificates: {source}")]
    RootPem {
        /// The PEM reader's error.
        #[source]
        source: io::Error,
    },
    /// The client's certificate or key cannot be read.
    #[error("read the client certificate's file {path}")]
    Identity {
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system, the PEM reader or the decryption.
        #[source]
        source: io::Error,
    },
    /// TLS from the first byte reached something that is not Postgres 17 or newer.
    #[error("TLS began without a request, and the peer did not name the protocol postgresql")]
    NotPostgres,
    /// A certificate cannot contain this host name.
    #[error("{host:?} is no name a certificate could carry")]
    HostName {
        /// The host.
        host: String,
    },
    /// The TLS library refused its configuration.
    #[error("configure TLS")]
    Configuration(#[source] rustls::Error),
    /// The handshake failed, for example because the certificate is not trusted.
    #[error("handshake")]
    Handshake(#[source] io::Error),
}

impl Coded for TlsError {
    fn code(&self) -> Code {
        match self {
            Self::NotOffered => Code::TlsNotOffered,
            // A cut connection proves nothing about the TLS settings.
            Self::Handshake(source) if is_cut(source) => Code::ConnectionBroken,
            Self::Handshake(_) => Code::TlsUntrusted,
            Self::RootFile { .. } | Self::RootPem { .. } => Code::TlsRoots,
            Self::Unexpected(_)
            | Self::Identity { .. }
            | Self::NotPostgres
            | Self::HostName { .. }
            | Self::Configuration(_) => Code::TlsFailed,
        }
    }
}

/// Returns whether the connection ended.
fn is_cut(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_that_may_still_answer_makes_all_of_them_a_timeout() {
        let address = || "10.0.0.1:5432".to_owned();
        let timeout = || PgError::ConnectTimeout { address: address(), limit: Duration::ZERO };
        let refused = || PgError::Connect {
            address: address(),
            source: io::ErrorKind::ConnectionRefused.into(),
        };
        let all = |failures| PgError::Unreachable { failures }.code();
        assert_eq!(all(vec![refused(), timeout()]), Code::PostgresTimeout);
        assert_eq!(all(vec![refused(), refused()]), Code::PostgresUnreachable);
    }

    #[test]
    fn a_handshake_that_was_cut_is_a_broken_connection() {
        let tls = |kind: io::ErrorKind| PgError::Tls {
            host: "h".to_owned(),
            source: TlsError::Handshake(kind.into()),
        };
        assert_eq!(tls(io::ErrorKind::UnexpectedEof).code(), Code::ConnectionBroken);
        assert_eq!(tls(io::ErrorKind::InvalidData).code(), Code::TlsUntrusted);
    }

    #[test]
    fn a_slot_that_is_not_in_a_state_is_lost_only_while_it_is_streamed() {
        let answer = ServerError { code: "55000".to_owned(), ..ServerError::default() };
        let error = PgError::Server(Box::new(answer.clone()));
        assert_eq!(error.code_while_streaming(), Code::SlotLost);
        assert_eq!(error.code(), Code::ServerUnsuitable);
        let skipped = PgError::PublicationSkipped(Box::new(answer));
        assert_eq!(skipped.code_while_streaming(), Code::PublicationSkipped);
    }
}
