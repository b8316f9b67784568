//! The reason why a batch was not applied.

use tokio_postgres::Error as SqlError;
use tokio_postgres::error::SqlState;
use walrelay_errors::Chain;
use walrelay_inbox_core::Failure;
use walrelay_pg_client::PgError;

use crate::apply::handler::{HandlerError, Verdict};
use crate::apply::sql_failure::failure_of;

/// The reason why a transaction is not known to have committed.
#[derive(Debug)]
pub(crate) enum ApplyError {
    Connect(PgError),
    /// The server reported an error, or the connection broke.
    Sql(SqlError),
    /// The handler's error is about the whole batch.
    Handler(HandlerError, Failure),
    /// The server did not answer.
    Silent,
    /// The session ended or is read-only, and a new session may succeed. Holds the original error.
    Severed(Box<Self>),
    /// The handler did not end in time.
    Overdue,
    /// The server returned fewer results than events, so the functions are of another version.
    Garbled,
}

impl ApplyError {
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Self::Connect(error) => match error.server() {
                Some(answer) => Failure::of_sqlstate(Some(&answer.code)),
                None => Failure::Outage,
            },
            Self::Sql(error) => failure_of(error),
            Self::Handler(_, failure) => *failure,
            Self::Silent => Failure::Outage,
            Self::Severed(_) => Failure::Severed,
            // A smaller batch may be done in time.
            Self::Overdue => Failure::Conflict,
            Self::Garbled => Failure::Operator,
        }
    }

    /// Returns the server's code, if the server refused a statement or a connection.
    pub(crate) fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Connect(error) => error.server().map(|answer| &*answer.code),
            Self::Sql(error) => error.code().map(SqlState::code),
            Self::Handler(error, _) => error.sql().and_then(SqlError::code).map(SqlState::code),
            Self::Severed(cause) => cause.sqlstate(),
            Self::Overdue | Self::Silent | Self::Garbled => None,
        }
    }

    /// Returns whether the handler took too long. An event that times out alone is itself at fault.
    pub(crate) fn is_timeout(&self) -> bool {
        let is_cancelled = self.sqlstate() == Some(SqlState::QUERY_CANCELED.code());
        matches!(self, Self::Overdue) || is_cancelled
    }

    /// Returns whether an event may itself be at fault if it fails alone with this error while
    /// others pass. Excluded are errors about the consumer's own state and a missing connection.
    pub(crate) fn may_be_its_own(&self) -> bool {
        match self {
            Self::Sql(_) | Self::Handler(..) => {
                self.sqlstate().is_none_or(|code| !code.starts_with("WR"))
            }
            Self::Overdue | Self::Severed(_) => true,
            Self::Connect(_) | Self::Silent | Self::Garbled => false,
        }
    }

    /// Returns whether a new session may succeed, because this one has ended or is read-only.
    pub(crate) fn is_of_the_session(&self) -> bool {
        let is_answer = match self {
            Self::Sql(_) => true,
            // A receiver outside the database may be away while the session works.
            Self::Handler(error, _) => error.sql().is_some(),
            Self::Connect(_) | Self::Silent | Self::Severed(_) | Self::Overdue | Self::Garbled => {
                false
            }
        };
        is_answer && self.failure() == Failure::Outage
    }

    /// Returns whether the session is read-only. A read-only session stays so, and another server
    /// may accept writes.
    pub(crate) fn is_read_only(&self) -> bool {
        self.sqlstate() == Some(SqlState::READ_ONLY_SQL_TRANSACTION.code())
    }

    /// Returns the verdict for an event that is stored because of this error.
    pub(crate) fn verdict(&self) -> Verdict {
        let code = match self {
            Self::Overdue => SqlState::QUERY_CANCELED.code().to_owned(),
            Self::Handler(error, _) if error.sql().is_none() => error.code(),
            Self::Connect(_)
            | Self::Sql(_)
            | Self::Handler(..)
            | Self::Severed(_)
            | Self::Silent
            | Self::Garbled => {
                self.sqlstate().unwrap_or(SqlState::CONNECTION_FAILURE.code()).to_owned()
            }
        };
        Verdict::Failed { code, text: self.to_string(), is_final: false, retry_after: None }
    }
}

impl std::fmt::Display for ApplyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "{}", Chain(error)),
            Self::Sql(error) => match error.as_db_error() {
                // The detail is left out, because it may quote data.
                Some(answer) => {
                    write!(f, "{} (SQLSTATE {})", answer.message(), answer.code().code())?;
                    answer.hint().map_or(Ok(()), |hint| write!(f, "; {hint}"))?;
                    if self.is_read_only() { f.write_str(READ_ONLY_FIX) } else { Ok(()) }
                }
                None => write!(f, "{}", Chain(error)),
            },
            Self::Handler(error, _) => write!(f, "{error}"),
            Self::Severed(cause) => write!(f, "{cause}"),
            Self::Overdue => f.write_str("the handler did not end within its timeout"),
            Self::Silent => f.write_str("the database did not answer in time"),
            Self::Garbled => f.write_str("app_inbox_apply is not the one of this version"),
        }
    }
}

/// The consumer does not override a read-only setting, because its handler writes the application's
/// tables.
const READ_ONLY_FIX: &str = "; connect to the primary, or run `ALTER ROLE … RESET default_transaction_read_only` \
     (`ALTER DATABASE …` if the database sets it)";
