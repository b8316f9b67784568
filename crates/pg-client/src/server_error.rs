//! The errors and notices that the server sends.

use std::fmt;
use std::io;

use postgres_protocol::message::backend::ErrorFields;
use tokio_postgres::fallible_iterator::FallibleIterator as _;
use walrelay_errors::{Code, in_a_line};

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
    /// 42P01, 42703, 3F000: the table, column or schema does not exist.
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
    /// Returns the code of an error of this kind.
    #[must_use]
    pub const fn code(self) -> Code {
        match self {
            Self::SlotActive { .. } => Code::SlotHeld,
            Self::Missing => Code::SlotOrPublicationMissing,
            Self::TableMissing => Code::TableMissing,
            Self::NotInState => Code::ServerUnsuitable,
            Self::SlotsExhausted => Code::SlotsExhausted,
            Self::ConnectionsExhausted => Code::ConnectionsExhausted,
            Self::Privilege => Code::PermissionMissing,
            Self::AdminShutdown | Self::NotAccepting => Code::ServerNotAccepting,
            Self::Authentication => Code::AuthenticationFailed,
            Self::DatabaseMissing => Code::DatabaseMissing,
            Self::InvalidName => Code::SlotNameInvalid,
            Self::Syntax => Code::StatementNotUnderstood,
            Self::WalRemoved => Code::SlotLost,
            Self::OutboxUnfit => Code::OutboxTableUnsuitable,
            Self::ReadOnly => Code::SessionReadOnly,
            Self::Other => Code::ServerError,
        }
    }

    /// Returns the meaning of an SQLSTATE, if the code alone has one. See [`ServerError::kind`].
    fn of_code(code: &str) -> Self {
        match code {
            "55006" => Self::SlotActive { pid: None },
            "42704" => Self::Missing,
            "42P01" | "42703" | "3F000" => Self::TableMissing,
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
        // The server gives the same code for `temp_file_limit`.
        let is_of_a_file = || self.routine.as_deref().is_some_and(|it| it.starts_with("File"));
        match kind == ServerErrorKind::SlotsExhausted && is_of_a_file() {
            true => ServerErrorKind::Other,
            false => kind,
        }
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
    pub fn from_fields(mut fields: ErrorFields<'_>) -> io::Result<Self> {
        let mut error = Self::default();
        while let Some(field) = fields.next()? {
            let text = || in_a_line(&String::from_utf8_lossy(field.value_bytes()));
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
            message: in_a_line(error.message()),
            detail: error.detail().map(in_a_line),
            hint: error.hint().map(in_a_line),
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
            ("3F000", ServerErrorKind::TableMissing),
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
    fn a_limit_of_temporary_files_is_no_lack_of_slots() {
        let of = |routine: &str| ServerError {
            code: "53400".to_owned(),
            routine: Some(routine.to_owned()),
            ..ServerError::default()
        };
        assert_eq!(of("FileWriteV").kind(), ServerErrorKind::Other);
        assert_eq!(of("ReplicationSlotCreate").kind(), ServerErrorKind::SlotsExhausted);
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
