//! The errors that end a command, with their codes and fixes.

use std::fmt;
use std::net::SocketAddr;
use walrelay_outbox_store::StoreError;
use walrelay_pg_client::SqlError;
use walrelay_pg_replication::SlotError;

use walrelay_errors::{Action, Chain, Code, Coded, Exit};
use walrelay_inbox::InboxError;
use walrelay_outbox_admin::AdminError;
use walrelay_outbox_admin::ReportError;
use walrelay_outbox_admin::protocols::ProtocolError;
use walrelay_pg_client::{PgError, ServerError, ServerErrorKind};
use walrelay_pubsub::PubsubError;
use walrelay_relay::error::RelayError;

use crate::config::Problem;
use crate::{explain, protocol_fix};

/// Every error that ends a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The relay stopped.
    #[error(transparent)]
    Relay(#[from] RelayError),

    /// The consumer stopped, or did not start.
    #[error(transparent)]
    Inbox(#[from] InboxError),

    /// The demo could not continue, or rows were lost, repeated or out of order.
    #[error("{what}")]
    Demo {
        /// The event.
        what: String,
        /// The exit code of the process.
        exit: Exit,
    },

    /// The configuration has these problems.
    #[error("{}", ProblemList(.0))]
    Config(Vec<Problem>),

    /// `check` found problems that would stop `run`. The findings are already printed.
    #[error("{count} finding(s) must be fixed before `walrelay run`")]
    Findings {
        /// Number of findings.
        count: usize,
        /// The gravest code among them.
        code: Code,
    },

    /// A connection to Postgres failed.
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

    /// The slot is lost, and its unconfirmed rows can no longer be read from the WAL.
    #[error("slot {slot:?} {how}")]
    SlotLost {
        /// Name of the slot.
        slot: String,
        /// The state of the slot.
        how: &'static str,
    },

    /// The role of a read-only command lacks a permission.
    #[error("the role may not read {side}")]
    MayNotLook {
        /// The database.
        side: DatabaseSide,
        /// The refused action.
        #[source]
        source: Box<Error>,
    },

    /// Another session holds the slot, and its purpose is known.
    #[error("the slot is held by {holder}")]
    Held {
        /// The session that holds the slot, and its purpose.
        holder: String,
        /// The action that failed.
        #[source]
        source: Box<Error>,
    },

    /// The process cannot listen on an address.
    #[error("listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: std::io::Error,
    },

    /// An argument, a file or the state of the database does not fit the command.
    #[error("{what}")]
    Unfit {
        /// The mismatch and its reason.
        what: String,
        /// The next step.
        hint: &'static str,
    },

    /// An unfinished operation blocks the command, and must be ended by its id.
    #[error("{what}")]
    Unfinished {
        /// The operation.
        what: String,
        /// The commands that end it.
        hint: String,
    },

    /// A file named on the command line cannot be read.
    #[error("read {path}")]
    File {
        /// Path of the file.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },

    /// Standard output, a socket, or another resource of this machine failed.
    #[error("{action}")]
    Io {
        /// The attempted action.
        action: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },

    /// A second signal ended the process without a drain.
    #[error("stopped by a second signal; what was not confirmed is read again at the next start")]
    SecondSignal,

    /// A replay was stopped before its end.
    #[error("stopped after {published} row(s); to go on: walrelay replay resume {id}")]
    ReplayStopped {
        /// Id of the replay.
        id: String,
        /// Number of published rows.
        published: u64,
    },

    /// A dead row blocks the rest of a replay in place.
    #[error(
        "{rows} row(s) of {command} {id} wait behind a dead row, which holds their key; when that is retried, \
         edited or discarded: walrelay replay resume {id}"
    )]
    ReplayHeld {
        /// `replay` or `backfill`.
        command: &'static str,
        /// Id of the replay.
        id: String,
        /// Number of remaining rows.
        rows: u64,
    },

    /// Another process runs this replay.
    #[error("replay {id} is being done by another process")]
    ReplayTaken {
        /// Id of the replay.
        id: String,
    },

    /// An audit found events that an inbox lacks. They are already printed.
    #[error("events that were published are missing: {lacking}")]
    Missing {
        /// The consumers, each with the number of missing events.
        lacking: String,
    },

    /// No database has the event.
    #[error("event {event_id:?} is in no outbox, in no dispatch state, {inboxes}")]
    NoTrace {
        /// The event id.
        event_id: String,
        /// Text that states whether there were any inboxes.
        inboxes: &'static str,
    },

    /// `trace` found no inbox to search.
    #[error(
        "whether event {event_id:?} is in an inbox is not known: the outbox's database has none"
    )]
    NoInbox {
        /// The event id.
        event_id: String,
    },

    /// The event was published, but some of the searched inboxes lack it.
    #[error("event {event_id:?} is settled, and not in the inbox of {consumers}")]
    NotArrived {
        /// The event id.
        event_id: String,
        /// The consumers of those inboxes.
        consumers: String,
    },

    /// A signal ended a command before its end.
    #[error("stopped by a signal before it was done")]
    Interrupted,

    /// A signal ended a command before its end, and the progress is known.
    #[error("{what}")]
    Stopped {
        /// The progress.
        what: String,
        /// The next step for the rest.
        hint: &'static str,
    },
}

/// One of the two databases of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseSide {
    /// The outbox's database.
    Outbox,
    /// A consumer's database.
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
            ReportError::SlotLost { slot, how } => Self::SlotLost { slot, how },
            ReportError::Store(error) => Self::Store(error),
        }
    }
}

impl Error {
    /// Replaces a permission error of a read-only command by one with a better hint. Such a command
    /// needs fewer permissions than the relay or a consumer.
    #[must_use]
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "whatever is not an inbox's is met at the outbox"
    )]
    pub fn for_read_only_command(self) -> Self {
        if !matches!(self.code(), Code::PermissionMissing | Code::ConsumerPermissionMissing) {
            return self;
        }
        let side = match &self {
            Self::Inbox(error) if !matches!(error, InboxError::Outbox(_)) => DatabaseSide::Inbox,
            _ => DatabaseSide::Outbox,
        };
        Self::MayNotLook { side, source: Box::new(self) }
    }

    /// Returns the exit code of the process.
    #[must_use]
    pub fn exit(&self) -> Exit {
        if let Self::Demo { exit, .. } = self {
            return *exit;
        }
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
    pub fn holder_pid(&self) -> Option<i32> {
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
    pub fn next_step(&self) -> String {
        self.fix().unwrap_or_else(|| explain::fix(self.code()).to_owned())
    }

    /// Returns the error, its causes and its fix as text.
    #[must_use]
    pub fn report(&self) -> String {
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
            Self::Findings { code, .. } => *code,
            Self::Postgres(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::Relay(error) => error.code(),
            Self::Inbox(error) => error.code(),
            Self::PubSub(error) => error.code(),
            Self::SlotLost { .. } => Code::SlotLost,
            Self::Protocol(error) => error.code(),
            Self::MayNotLook { side: DatabaseSide::Outbox, .. } => {
                Code::OutboxReadPermissionMissing
            }
            Self::MayNotLook { side: DatabaseSide::Inbox, .. } => Code::InboxReadPermissionMissing,
            Self::Held { .. } => Code::SlotHeld,
            Self::ReplayTaken { .. } => Code::ReplayRunning,
            Self::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
                Code::AddressInUse
            }
            Self::Listen { .. } | Self::Io { .. } => Code::LocalResourceUnavailable,
            Self::Unfit { .. } | Self::Unfinished { .. } => Code::ArgumentInvalid,
            Self::NoInbox { .. } => Code::InboxNotNamed,
            Self::File { .. } => Code::FileUnreadable,
            Self::Demo { .. } => Code::DemoFailed,
            Self::Missing { .. } => Code::AuditEventsMissing,
            Self::NoTrace { .. } => Code::TraceFoundNothing,
            Self::NotArrived { .. } => Code::EventNotApplied,
            Self::ReplayHeld { .. } => Code::ReplayBlocked,
            Self::SecondSignal
            | Self::Interrupted
            | Self::Stopped { .. }
            | Self::ReplayStopped { .. } => Code::Interrupted,
        }
    }

    fn fix(&self) -> Option<String> {
        match self {
            Self::Inbox(error) => error.fix(),
            Self::Protocol(error) => protocol_fix::fix_of(error),
            Self::Unfit { hint, .. } | Self::Stopped { hint, .. } => Some((*hint).to_owned()),
            Self::Unfinished { hint, .. } => Some(hint.clone()),
            Self::Findings { .. } => Some("each finding above names its fix".to_owned()),
            // The message names the next step.
            Self::SecondSignal | Self::ReplayStopped { .. } => Some(String::new()),
            Self::Relay(_)
            | Self::Demo { .. }
            | Self::MayNotLook { .. }
            | Self::Config(_)
            | Self::Postgres(_)
            | Self::Store(_)
            | Self::PubSub(_)
            | Self::SlotLost { .. }
            | Self::Held { .. }
            | Self::Listen { .. }
            | Self::File { .. }
            | Self::Io { .. }
            | Self::ReplayHeld { .. }
            | Self::ReplayTaken { .. }
            | Self::Missing { .. }
            | Self::NoTrace { .. }
            | Self::NoInbox { .. }
            | Self::NotArrived { .. }
            | Self::Interrupted => None,
        }
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
            [one] => write!(f, "1 problem in the configuration\n  {one}"),
            all => {
                write!(f, "{} problems in the configuration", all.len())?;
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
