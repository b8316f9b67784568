//! Why a batch has not been applied.

use tokio_postgres::Error as SqlError;
use tokio_postgres::error::SqlState;
use walrelay_inbox_core::Failure;
use walrelay_pg_client::PgError;

use crate::fault::failure_of;
use crate::handler::{HandlerError, Verdict};

/// Why an exchange did not commit, as far as anybody knows.
#[derive(Debug)]
pub(crate) enum Unapplied {
    /// No connection.
    Connect(PgError),
    /// The server's answer, or a connection that broke.
    Sql(SqlError),
    /// The handler's error is about the whole batch.
    Handler(HandlerError, Failure),
    /// No answer at all.
    Silent,
    /// The session has ended or may not write, and a new one may: what it was.
    Severed(Box<Self>),
    /// The handler has not ended, wherever it is.
    Overdue,
    /// Fewer answers than events: not our functions.
    Garbled,
}

impl Unapplied {
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

    /// The server's code, where it has refused a statement or a connection.
    pub(crate) fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Connect(error) => error.server().map(|answer| &*answer.code),
            Self::Sql(error) => error.code().map(SqlState::code),
            Self::Handler(error, _) => error.sql().and_then(SqlError::code).map(SqlState::code),
            Self::Severed(cause) => cause.sqlstate(),
            Self::Overdue | Self::Silent | Self::Garbled => None,
        }
    }

    /// Whether the handler took too long; what does so alone is at fault itself.
    pub(crate) fn is_timeout(&self) -> bool {
        let is_cancelled = self.sqlstate() == Some(SqlState::QUERY_CANCELED.code());
        matches!(self, Self::Overdue) || is_cancelled
    }

    /// Whether what fails alone with this, while others pass, may be at fault itself: everything but what says that
    /// the consumer is not as it was, or that there is no connection at all.
    pub(crate) fn may_be_its_own(&self) -> bool {
        match self {
            Self::Sql(_) | Self::Handler(..) => {
                self.sqlstate().is_none_or(|code| !code.starts_with("WR"))
            }
            Self::Overdue | Self::Severed(_) => true,
            Self::Connect(_) | Self::Silent | Self::Garbled => false,
        }
    }

    /// Whether a new session may fare better: this one has ended, or may not write.
    pub(crate) fn is_of_the_session(&self) -> bool {
        matches!(self, Self::Sql(_) | Self::Handler(..)) && self.failure() == Failure::Outage
    }

    /// A session that writes nothing stays so, and a server that may is perhaps another one.
    pub(crate) fn is_read_only(&self) -> bool {
        self.sqlstate() == Some(SqlState::READ_ONLY_SQL_TRANSACTION.code())
    }

    /// What it is for the event that is stored because of it.
    pub(crate) fn verdict(&self) -> Verdict {
        let without_answer = match self {
            Self::Overdue => &SqlState::QUERY_CANCELED,
            Self::Connect(_)
            | Self::Sql(_)
            | Self::Handler(..)
            | Self::Severed(_)
            | Self::Silent
            | Self::Garbled => &SqlState::CONNECTION_FAILURE,
        };
        let code = self.sqlstate().unwrap_or(without_answer.code()).to_owned();
        Verdict::Failed { code, text: self.to_string(), is_final: false }
    }
}

impl std::fmt::Display for Unapplied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "{}", chain(error)),
            Self::Sql(error) => match error.as_db_error() {
                // Not the detail, which may quote data.
                Some(answer) => {
                    write!(f, "{} (SQLSTATE {})", answer.message(), answer.code().code())?;
                    answer.hint().map_or(Ok(()), |hint| write!(f, "; {hint}"))?;
                    if self.is_read_only() { f.write_str(READ_ONLY_FIX) } else { Ok(()) }
                }
                None => write!(f, "{}", chain(error)),
            },
            Self::Handler(error, _) => write!(f, "{error}"),
            Self::Severed(cause) => write!(f, "{cause}"),
            Self::Overdue => f.write_str("the handler did not end in time (--handler-timeout)"),
            Self::Silent => f.write_str("the database did not answer in time"),
            Self::Garbled => f.write_str("app_inbox_apply is not the one of this version"),
        }
    }
}

/// A consumer respects a database that is to take no writes, because its handler writes the application's tables.
const READ_ONLY_FIX: &str = "; connect to the primary, or run `ALTER ROLE … RESET default_transaction_read_only` \
     (`ALTER DATABASE …` if the database sets it)";

/// An error with its causes.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
