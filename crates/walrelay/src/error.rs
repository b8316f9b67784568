//! The errors that end a command, with their codes and fixes.

pub(crate) mod explain;
pub(crate) mod fixes;
pub(crate) mod printed_commands;
#[cfg(test)]
mod table;

use std::fmt;
use std::net::SocketAddr;

use crate::config::Problem;
use walrelay_errors::{Action, Chain, Code, Coded, Exit};
use walrelay_inbox::InboxError;
use walrelay_inbox_admin::RebuildError;
use walrelay_outbox_admin::ReportError;
use walrelay_outbox_admin::protocols::ProtocolError;
use walrelay_outbox_replay::AdminError;
use walrelay_outbox_replay::replay::ReplayError;
use walrelay_outbox_store::{Shard, StoreError, grant_on};
use walrelay_pg_client::{PgError, ServerError, ServerErrorKind, SqlError};
use walrelay_pg_replication::SlotError;
use walrelay_pubsub::PubsubError;
use walrelay_relay::error::RelayError;

use crate::error::fixes::names::{
    Named, name_in_inbox, name_in_protocol, name_in_rebuild, name_in_store, replaced,
};

/// Every error that ends a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Relay(#[from] RelayError),

    /// The consumer stopped, or did not start.
    #[error(transparent)]
    Inbox(#[from] InboxError),

    #[error("{}", ProblemList(.0))]
    Config(Vec<Problem>),

    #[error(transparent)]
    Postgres(#[from] PgError),

    /// A statement failed, or walrelay refused to run it.
    #[error(transparent)]
    Store(#[from] AdminError),

    /// Pub/Sub cannot be used or administered.
    #[error(transparent)]
    PubSub(#[from] PubsubError),

    /// A protocol refused to begin, or ended early.
    #[error(transparent)]
    Protocol(ProtocolError),

    /// The role of a read-only command lacks a permission.
    #[error("the role may not read {side}")]
    MayNotLook {
        side: DatabaseSide,
        /// The statements that open the relay's table of the case to the role.
        grant: Option<String>,
        #[source]
        source: Box<Error>,
    },

    /// Another session holds the slot, and its purpose is known.
    #[error("the slot is held by {holder}")]
    Held {
        /// The session that holds the slot, and its purpose.
        holder: String,
        #[source]
        source: Box<Error>,
    },

    #[error("listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },

    /// The command refuses, or ends without the result that the user wants.
    #[error("{what}")]
    Refused {
        code: Code,
        /// The refusal or the result, with its reason.
        what: String,
        /// The next step. `None` for that of the code.
        fix: Option<String>,
    },

    /// A file named on the command line cannot be read.
    #[error("read {path}")]
    File {
        path: String,
        #[source]
        source: std::io::Error,
    },

    /// Standard output, a socket, or another resource of this machine failed.
    #[error("{action}")]
    Io {
        action: String,
        #[source]
        source: std::io::Error,
    },

    #[error(transparent)]
    Replay(Box<ReplayError>),

    #[error(transparent)]
    Rebuild(Box<RebuildError>),

    #[error("stopped by a signal before it was done")]
    Interrupted,
}

/// One of the two databases of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DatabaseSide {
    Outbox,
    Inbox,
}

impl fmt::Display for DatabaseSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outbox => "the outbox",
            Self::Inbox => "the inbox",
        })
    }
}

impl From<ProtocolError> for Error {
    #[expect(clippy::wildcard_enum_match_arm, reason = "every other variant is a refusal")]
    fn from(error: ProtocolError) -> Self {
        match error {
            ProtocolError::Admin(error) => Self::Store(error),
            ProtocolError::Relay(error) => Self::Relay(error),
            ProtocolError::Postgres(error) => Self::Postgres(error),
            ProtocolError::PubSub(error) => Self::PubSub(error),
            ProtocolError::Interrupted => Self::Interrupted,
            refusal => Self::Protocol(refusal),
        }
    }
}

impl From<ReportError> for Error {
    fn from(error: ReportError) -> Self {
        match error {
            ReportError::SlotLost { slot, how } => Self::slot_lost(&slot, &how),
            ReportError::Store(error) => Self::Store(error),
        }
    }
}

impl Error {
    /// Creates a refusal whose code has the fix.
    pub(crate) const fn refused(code: Code, what: String) -> Self {
        Self::Refused { code, what, fix: None }
    }

    /// Creates the error for a lost slot, whose unconfirmed rows can no longer be read from the WAL.
    pub(crate) fn slot_lost(slot: &str, how: &str) -> Self {
        Self::refused(Code::SlotLost, format!("slot {slot:?} {how}"))
    }

    /// Creates the error for an argument, a file or a state of the database that does not fit the
    /// command.
    pub(crate) fn unfit(what: impl Into<String>, fix: impl Into<String>) -> Self {
        let (what, fix) = (what.into(), Some(fix.into()));
        Self::Refused { code: Code::ArgumentInvalid, what, fix }
    }

    /// Creates the error for a command line that clap refuses with this text: the error, tips, the
    /// usage, and a reference to the help.
    #[must_use]
    pub(crate) fn usage(text: &str) -> Self {
        let mut parts = text.trim().split("\n\n").map(str::trim);
        let what = parts.next().unwrap_or_default();
        let (what, tips) = what.split_once("\n  tip: ").unwrap_or((what, ""));
        let tip = parts.clone().find_map(|part| part.strip_prefix("tip: "));
        let usage = parts.find(|part| part.starts_with("Usage: "));
        let fix = tip.or((!tips.is_empty()).then_some(tips)).or(usage).map(str::to_owned);
        let what = what.trim_start_matches("error: ").to_owned();
        Self::Refused { code: Code::ConfigurationInvalid, what, fix }
    }

    /// Creates the error for a command that a signal ended before its end. `what` is the progress.
    #[must_use]
    pub(crate) fn stopped(what: impl Into<String>, fix: impl Into<String>) -> Self {
        let (what, fix) = (what.into(), Some(fix.into()));
        Self::Refused { code: Code::Interrupted, what, fix }
    }

    /// Replaces a permission error of a read-only command by one with a better hint. Such a command
    /// needs fewer permissions than the relay or a consumer. `role` is the command's role in the
    /// outbox's database.
    #[must_use]
    #[expect(clippy::wildcard_enum_match_arm, reason = "every other error is of the outbox")]
    pub(crate) fn for_read_only_command(self, role: &str) -> Self {
        if !matches!(self.code(), Code::PermissionMissing | Code::ConsumerPermissionMissing) {
            return self;
        }
        let side = match &self {
            Self::Inbox(error) if !matches!(error, InboxError::Outbox(_)) => DatabaseSide::Inbox,
            _ => DatabaseSide::Outbox,
        };
        let closed = match &self {
            Self::Store(AdminError::Store(error)) => error.closed_table(),
            _ => None,
        };
        let grant = closed.map(|table| grant_on(table, role));
        Self::MayNotLook { side, grant, source: Box::new(self) }
    }

    #[must_use]
    pub(crate) fn exit(&self) -> Exit {
        // The relay stopped because of its error, so the running relay's reaction counts.
        let Self::Relay(error) = self else { return self.code().exit() };
        match error.action() {
            Action::Stop(exit) => exit,
            // The relay would wait for this condition, but a command exits.
            Action::Wait => error.code().exit(),
            Action::Reconnect | Action::StandBy => Exit::Unexpected,
        }
    }

    /// Returns the server process that holds a slot, if the server refused because of it.
    #[must_use]
    pub(crate) fn holder_pid(&self) -> Option<i32> {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            let server = error.downcast_ref::<tokio_postgres::Error>();
            let answer = server.and_then(tokio_postgres::Error::as_db_error).map(ServerError::from);
            let stream = error.downcast_ref::<PgError>().and_then(PgError::server);
            if let Some(answer) = answer.as_ref().or(stream)
                && let ServerErrorKind::SlotActive { pid } = answer.kind()
            {
                return pid;
            }
            cause = error.source();
        }
        None
    }

    /// Returns the next step, or an empty text if the message already contains it.
    #[must_use]
    pub(crate) fn next_step(&self) -> String {
        let fix = explain::fix_of(self);
        match self.name() {
            Some((placeholder, name)) => replaced(&fix, placeholder, name),
            None => fix,
        }
    }

    /// Returns a placeholder of the fix with the name that this error has for it.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others name nothing that a fix has")]
    fn name(&self) -> Option<Named<'_>> {
        match self {
            Self::Inbox(error) => name_in_inbox(error),
            Self::Store(AdminError::Store(error)) => name_in_store(error),
            Self::PubSub(PubsubError::Topic { topic, .. }) => Some(("TOPIC", topic)),
            Self::Protocol(error) => name_in_protocol(error),
            Self::Rebuild(error) => name_in_rebuild(error),
            _ => None,
        }
    }

    /// Returns the error, its causes and its fix as text.
    #[must_use]
    pub(crate) fn report(&self) -> String {
        let text = Chain(self).to_string();
        match self.next_step().as_str() {
            "" => text,
            fix => format!("{text}\nfix: {fix}"),
        }
    }
}

impl Coded for Error {
    fn code(&self) -> Code {
        match self {
            Self::Config(problems) => code_of_problems(problems),
            Self::Postgres(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::Relay(error) => error.code(),
            Self::Inbox(error) => error.code(),
            Self::PubSub(error) => error.code(),
            Self::Protocol(error) => error.code(),
            Self::MayNotLook { side: DatabaseSide::Outbox, .. } => {
                Code::OutboxReadPermissionMissing
            }
            Self::MayNotLook { side: DatabaseSide::Inbox, .. } => Code::InboxReadPermissionMissing,
            Self::Held { .. } => Code::SlotHeld,
            Self::Replay(error) => error.code(),
            Self::Rebuild(error) => error.code(),
            Self::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
                Code::AddressInUse
            }
            Self::Listen { .. } | Self::Io { .. } => Code::LocalResourceUnavailable,
            Self::Refused { code, .. } => *code,
            Self::File { .. } => Code::FileUnreadable,
            Self::Interrupted => Code::Interrupted,
        }
    }

    fn fix(&self) -> Option<String> {
        match self {
            Self::Inbox(error) => error.fix(),
            Self::Replay(error) => fix_of_replay(error),
            Self::Rebuild(error) => fixes::rebuild::fix_of(error),
            Self::Protocol(error) => fixes::protocol::fix_of(error),
            Self::Refused { fix, .. } => fix.clone(),
            Self::Relay(error) => fixes::relay::fix_of(error),
            Self::MayNotLook { grant, .. } => grant.as_ref().map(|grant| {
                format!("as the table's owner: {grant}; a role that only reads needs SELECT alone")
            }),
            Self::Store(AdminError::SlotLost { slot, .. }) => {
                Some(explain::fix_of_shard(Code::SlotLost, Shard::of_slot(slot)))
            }
            Self::Config(_)
            | Self::Postgres(_)
            | Self::Store(_)
            | Self::PubSub(_)
            | Self::Held { .. }
            | Self::Listen { .. }
            | Self::File { .. }
            | Self::Io { .. }
            | Self::Interrupted => None,
        }
    }
}

impl From<ReplayError> for Error {
    #[expect(clippy::wildcard_enum_match_arm, reason = "only these wrap errors of other crates")]
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::Admin(error) => error.into(),
            ReplayError::Postgres(error) => error.into(),
            ReplayError::PubSub(error) => error.into(),
            ReplayError::Relay(error) => error.into(),
            refused => Self::Replay(Box::new(refused)),
        }
    }
}

impl From<RebuildError> for Error {
    #[expect(clippy::wildcard_enum_match_arm, reason = "every other variant is a refusal")]
    fn from(error: RebuildError) -> Self {
        match error {
            RebuildError::Inbox(error) => error.into(),
            RebuildError::Admin(error) => error.into(),
            RebuildError::Relay(error) => error.into(),
            RebuildError::Postgres(error) => error.into(),
            RebuildError::PubSub(error) => error.into(),
            RebuildError::Interrupted => Self::Interrupted,
            refused => Self::Rebuild(Box::new(refused)),
        }
    }
}

/// Returns the fix of an error of a replay, with the id of this case.
#[expect(clippy::wildcard_enum_match_arm, reason = "the code of the others has the fix")]
fn fix_of_replay(error: &ReplayError) -> Option<String> {
    match error {
        ReplayError::Operator(error) => error.fix(),
        ReplayError::Stopped { id, .. } => Some(format!("walrelay replay resume {id}")),
        ReplayError::KeyIsPaused { other } => Some(format!(
            "`walrelay replay resume {other}` finishes that replay, `walrelay replay cancel {other}` cancels it"
        )),
        ReplayError::BehindDeadRow { id, .. } => Some(format!(
            "retry, edit or discard the dead rows of `walrelay dispatch list --status dead`, then run \
             `walrelay replay resume {id}`"
        )),
        ReplayError::AnchorGone { id, .. } | ReplayError::OtherServer { id } => Some(format!(
            "`walrelay replay cancel {id}` cancels it, and keys that it pauses continue; then start a new replay"
        )),
        _ => None,
    }
}

/// Returns the code of the problems if they share one, otherwise the code of any of them.
fn code_of_problems(problems: &[Problem]) -> Code {
    match problems {
        [first, rest @ ..] if rest.iter().all(|problem| problem.code == first.code) => first.code,
        _ => Code::ConfigurationInvalid,
    }
}

/// Hint for consumers in another database.
pub(crate) const NAME_INBOXES: &str =
    "name each consumer and its database: --inbox NAME=postgresql://...";

struct ProblemList<'a>(&'a [Problem]);

impl fmt::Display for ProblemList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [one] => write!(f, "1 problem in options or configuration\n  {one}"),
            all => {
                write!(f, "{} problems in options or configuration", all.len())?;
                all.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}
/// The errors of the Postgres crates reach a command as one.
macro_rules! from_postgres {
    ($($error:ty),*) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::Store(AdminError::from(error))
            }
        }
    )*};
}
from_postgres!(SqlError, SlotError, StoreError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fix_has_the_names_that_the_error_knows() {
        let topic = "projects/p/topics/order.events".to_owned();
        let fix = Error::from(ProtocolError::TopicMissing { topic }).next_step();
        let command = "`walrelay init --create-topics=projects/p/topics/order.events`";
        assert!(fix.contains(command) && !fix.contains("TOPIC"), "{fix}");
        let consumer = "billing".to_owned();
        let paused = Error::from(InboxError::Paused { consumer }).next_step();
        assert!(paused.contains("`walrelay consumer resume billing`"), "{paused}");
        let event_id = "e-1".to_owned();
        let incomplete = Error::from(StoreError::WithoutHeaders { event_id }).next_step();
        assert!(incomplete.contains("edit e-1 --attributes-file FILE"), "{incomplete}");
        let names = vec!["a".to_owned(), "b".to_owned()];
        let slot = "walrelay".to_owned();
        let anchors = Error::from(ProtocolError::AnchorsInTheWay { slot, names }).next_step();
        assert!(
            anchors.contains("`walrelay anchor drop a`, `walrelay anchor drop b`"),
            "{anchors}"
        );
    }

    #[test]
    fn a_usage_error_has_its_tip_or_the_usage_as_fix() {
        let told = |text: &str| {
            let error = Error::usage(text);
            (Chain(&error).to_string(), error.next_step(), error.exit().code())
        };
        let with_tip = "error: unexpected argument '--since' found\n\n  tip: use `--from-time`\n\nUsage: walrelay audit\n\nFor more information, try '--help'.\n";
        let what = "unexpected argument '--since' found".to_owned();
        assert_eq!(told(with_tip), (what.clone(), "use `--from-time`".to_owned(), 2));
        let without = with_tip.replace("  tip: use `--from-time`\n\n", "");
        assert_eq!(told(&without), (what, "Usage: walrelay audit".to_owned(), 2));
    }
}
