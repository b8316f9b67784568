//! Failures between the relay and the server, grouped by who has to act.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use postgres_protocol::message::backend::ErrorFields;
use tokio_postgres::fallible_iterator::FallibleIterator as _;

use crate::error_chain::Chain;

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

    /// The server asks for an authentication method that this client does not support.
    #[error("the server asks for {method} authentication, which is not supported")]
    AuthenticationMethod {
        /// Name of the method.
        method: String,
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
            | Self::AuthenticationMethod { .. }
            | Self::PasswordMissing
            | Self::PasswordFile { .. }
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

    /// A violation of the protocol.
    pub fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol { what: what.into() }
    }

    /// For `map_err`: names the action that failed. An end of the stream is a closed connection.
    pub fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| {
            if source.kind() == io::ErrorKind::UnexpectedEof {
                return Self::Disconnected;
            }
            Self::Io { action, source }
        }
    }
}

impl From<tokio_postgres::Error> for PgError {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(answer) => Self::Server(Box::new(ServerError::from(answer))),
            None => Self::Sql(error),
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

/// An ErrorResponse or NoticeResponse.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerError {
    /// `ERROR`, `FATAL`, `WARNING`, … in English, in any language of the server.
    pub severity: String,
    /// The SQLSTATE: five characters, the same in every language and version.
    pub code: String,
    /// The primary message.
    pub message: String,
    /// The detail, if any.
    pub detail: Option<String>,
    /// The hint, if any.
    pub hint: Option<String>,
    /// The function in the server's source that reported it.
    pub routine: Option<String>,
}

impl std::error::Error for ServerError {}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)?;
        if let Some(detail) = &self.detail {
            write!(f, ": {detail}")?;
        }
        Ok(())
    }
}

/// The meaning of an SQLSTATE for replication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerErrorKind {
    /// 55006: another session holds the slot.
    SlotActive {
        /// Process id of the holder, if the message names it.
        pid: Option<i32>,
    },
    /// 42704: the slot or publication does not exist.
    Missing,
    /// 42P01, 42703: the table or column does not exist.
    TableMissing,
    /// 55000: the slot is invalidated, belongs to another database, or cannot be moved there.
    NotInState,
    /// 53400: all replication slots are taken.
    SlotsExhausted,
    /// 53300: all connections or walsenders are taken.
    ConnectionsExhausted,
    /// 42501: the role lacks a privilege.
    Privilege,
    /// 57P01: ended by an administrator, a shutdown, or to release the slot.
    AdminShutdown,
    /// 57P02, 57P03: crashed, starting up or shutting down.
    NotAccepting,
    /// Class 28: wrong role, wrong password, or refused by `pg_hba.conf`.
    Authentication,
    /// 3D000: the database does not exist.
    DatabaseMissing,
    /// 42602: not a valid slot name.
    InvalidName,
    /// 42601: a syntax error.
    Syntax,
    /// 58P01 for a WAL segment: the server removed a segment that the slot needs.
    WalRemoved,
    /// 25006: the server or the session is read-only.
    ReadOnly,
    /// WR001, raised by our own statement: an outbox table does not meet the requirements.
    OutboxUnfit,
    /// Anything else.
    Other,
}

impl ServerErrorKind {
    /// Returns the meaning of an SQLSTATE, if the code alone has one. See [`ServerError::kind`].
    fn of_code(code: &str) -> Self {
        match code {
            "55006" => Self::SlotActive { pid: None },
            "42704" => Self::Missing,
            "42P01" | "42703" => Self::TableMissing,
            "55000" => Self::NotInState,
            "53400" => Self::SlotsExhausted,
            "53300" => Self::ConnectionsExhausted,
            "42501" => Self::Privilege,
            "25006" => Self::ReadOnly,
            "57P01" => Self::AdminShutdown,
            "57P02" | "57P03" => Self::NotAccepting,
            "3D000" => Self::DatabaseMissing,
            "42602" => Self::InvalidName,
            "42601" => Self::Syntax,
            "WR001" => Self::OutboxUnfit,
            code if code.starts_with("28") => Self::Authentication,
            _ => Self::Other,
        }
    }
}

impl ServerError {
    /// Returns the meaning of this error.
    #[must_use]
    pub fn kind(&self) -> ServerErrorKind {
        let kind = ServerErrorKind::of_code(&self.code);
        if matches!(kind, ServerErrorKind::SlotActive { .. }) {
            return ServerErrorKind::SlotActive { pid: self.pid() };
        }
        if self.says_wal_removed() {
            return ServerErrorKind::WalRemoved;
        }
        kind
    }

    /// Returns whether the same statement fails until somebody changes the data. Lost connections,
    /// lack of resources, conflicts, interventions and machine failures are not permanent.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        let passes = ["08", "25", "40", "53", "55", "57", "58"];
        matches!(self.kind(), ServerErrorKind::Other)
            && !self.code.is_empty()
            && !passes.iter().any(|class| self.code.starts_with(class))
    }

    /// Returns whether a WAL segment is missing that somebody wants to read.
    ///
    /// Any missing file has this code, so a damaged data directory would resemble a lost slot. The
    /// functions that report a missing segment are `WalSndSegmentOpen` (`walsender.c`),
    /// `wal_segment_open` (`xlogutils.c`) and `CheckXLogRemoved` (`xlog.c`). The text may be
    /// translated, but their names are not.
    fn says_wal_removed(&self) -> bool {
        let missed_by = ["WalSndSegmentOpen", "wal_segment_open", "CheckXLogRemoved"];
        self.code == "58P01"
            && (self.message.contains("WAL segment")
                || self.routine.as_deref().is_some_and(|routine| missed_by.contains(&routine)))
    }

    /// Returns the process id in the message. A translation moves the words but keeps the number.
    fn pid(&self) -> Option<i32> {
        let after_name = self.message.rsplit('"').next().unwrap_or(&self.message);
        after_name
            .split(|character: char| !character.is_ascii_digit())
            .filter_map(|digits| digits.parse().ok())
            .next_back()
    }

    /// Returns whether this notice reports a skipped publication.
    ///
    /// From Postgres 18 on `LoadPublications` in `pgoutput.c` only warns (55000). The routine's name
    /// is not translated; the text is asked as well, should the routine be renamed.
    #[must_use]
    pub fn says_publication_skipped(&self) -> bool {
        let text_says = self.code == "55000" && self.message.contains("publication");
        self.severity == "WARNING"
            && (text_says || self.routine.as_deref() == Some("LoadPublications"))
    }

    /// Reads the fields of an ErrorResponse or NoticeResponse.
    ///
    /// # Errors
    ///
    /// The fields are malformed.
    pub fn from_fields(mut fields: ErrorFields<'_>) -> Result<Self, PgError> {
        let mut error = Self::default();
        let malformed = |source| PgError::Io { action: "read an error of the server", source };
        while let Some(field) = fields.next().map_err(malformed)? {
            let text = || String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                // V is the untranslated S, and follows S (9.6 and later).
                b'S' | b'V' => error.severity = text(),
                b'C' => error.code = text(),
                b'M' => error.message = text(),
                b'D' => error.detail = Some(text()),
                b'H' => error.hint = Some(text()),
                b'R' => error.routine = Some(text()),
                _ => {}
            }
        }
        Ok(error)
    }
}

impl From<&tokio_postgres::error::DbError> for ServerError {
    fn from(error: &tokio_postgres::error::DbError) -> Self {
        Self {
            severity: error.severity().to_owned(),
            code: error.code().code().to_owned(),
            message: error.message().to_owned(),
            detail: error.detail().map(str::to_owned),
            hint: error.hint().map(str::to_owned),
            routine: error.routine().map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: &str, message: &str) -> ServerError {
        ServerError { code: code.into(), message: message.into(), ..ServerError::default() }
    }

    #[test]
    fn the_holder_of_a_slot_is_read_from_the_text() {
        for (text, pid) in [
            ("replication slot \"relay_7\" is active for PID 4711", Some(4711)),
            ("Replikations-Slot »relay« ist aktiv für PID 4711", Some(4711)),
            ("replication slot \"relay_7\" is active", None),
        ] {
            assert_eq!(error("55006", text).kind(), ServerErrorKind::SlotActive { pid }, "{text}");
        }
    }

    #[test]
    fn codes_have_the_meaning_the_supervisor_acts_on() {
        for (code, kind) in [
            ("42704", ServerErrorKind::Missing),
            ("42P01", ServerErrorKind::TableMissing),
            ("55000", ServerErrorKind::NotInState),
            ("53400", ServerErrorKind::SlotsExhausted),
            ("53300", ServerErrorKind::ConnectionsExhausted),
            ("42501", ServerErrorKind::Privilege),
            ("57P01", ServerErrorKind::AdminShutdown),
            ("57P03", ServerErrorKind::NotAccepting),
            ("28P01", ServerErrorKind::Authentication),
            ("28000", ServerErrorKind::Authentication),
            ("3D000", ServerErrorKind::DatabaseMissing),
            ("42602", ServerErrorKind::InvalidName),
            ("25006", ServerErrorKind::ReadOnly),
            ("XX000", ServerErrorKind::Other),
        ] {
            assert_eq!(error(code, "").kind(), kind, "{code}");
        }
    }

    #[test]
    fn only_errors_of_the_data_itself_are_permanent() {
        for code in ["XX000", "XX001", "22021", "54000"] {
            assert!(error(code, "").is_permanent(), "{code}");
        }
        for code in
            ["08006", "53100", "53200", "40001", "55006", "57014", "57P01", "58030", "42704", ""]
        {
            assert!(!error(code, "").is_permanent(), "{code}");
        }
    }

    #[test]
    fn a_missing_file_is_a_lost_slot_only_where_it_is_a_wal_segment() {
        let removed = "requested WAL segment 000000010000000000000001 has already been removed";
        assert_eq!(error("58P01", removed).kind(), ServerErrorKind::WalRemoved);
        let mut translated = error("58P01", "das angeforderte WAL-Segment wurde schon entfernt");
        translated.routine = Some("WalSndSegmentOpen".into());
        assert_eq!(translated.kind(), ServerErrorKind::WalRemoved);
        let damaged = error("58P01", "could not open file \"global/pg_filenode.map\"");
        assert_eq!(damaged.kind(), ServerErrorKind::Other);
    }

    #[test]
    fn only_a_warning_about_a_publication_is_one() {
        let mut notice = error("55000", "skipped loading publication \"p\"");
        assert!(!notice.says_publication_skipped());
        notice.severity = "WARNING".into();
        assert!(notice.says_publication_skipped());
        notice.message = "publication \"p\" übersprungen".into();
        assert!(notice.says_publication_skipped());
        notice.message = "lädt nicht".into();
        assert!(!notice.says_publication_skipped());
        notice.routine = Some("LoadPublications".into());
        assert!(notice.says_publication_skipped());
    }
}
