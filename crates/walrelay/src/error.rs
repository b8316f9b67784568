//! The errors that end a command, with their hints and exit codes.

use std::fmt;
use std::net::SocketAddr;
use walrelay_outbox_store::StoreError;
use walrelay_pg_client::SqlError;
use walrelay_pg_replication::SlotError;

use walrelay_inbox::InboxError;
use walrelay_outbox_admin::AdminError;
use walrelay_pg_client::{PgError, ServerError, ServerErrorKind};
use walrelay_pubsub::PubsubError;
use walrelay_relay::error::RelayError;
use walrelay_relay::observe::report::ReportError;
use walrelay_relay::policy::{Chain, Disposition, Exit, Kind};

use crate::config::Problem;

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
        /// The worst kind among them.
        kind: Kind,
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

    /// The target topic of a replay does not exist. Nothing was begun.
    #[error("topic {topic} does not exist")]
    TopicMissing {
        /// Full name of the topic.
        topic: String,
    },

    /// The slot is lost, and its unconfirmed rows can no longer be read from the WAL.
    #[error("slot {slot:?} {how}")]
    SlotLost {
        /// Name of the slot.
        slot: String,
        /// The state of the slot.
        how: &'static str,
    },

    /// The publication for the new slot does not exist.
    #[error("publication {publication:?} does not exist")]
    PublicationMissing {
        /// Name of the publication.
        publication: String,
    },

    /// The named database has no outbox.
    #[error("the outbox's database is asked for, and this one has no table {table}")]
    NoOutbox {
        /// The missing table.
        table: String,
    },

    /// The role of `prune` lacks a permission.
    #[error("delete old rows of {table}")]
    PruneDenied {
        /// The outbox table.
        table: String,
        /// The server's error.
        #[source]
        source: Box<PgError>,
    },

    /// The role of a read-only command lacks a permission.
    #[error("{side} may not be looked at")]
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
        if self.kind() != Kind::Privilege {
            return self;
        }
        let side = match &self {
            Self::Inbox(error) if !matches!(error, InboxError::Outbox(_)) => DatabaseSide::Inbox,
            _ => DatabaseSide::Outbox,
        };
        Self::MayNotLook { side, source: Box::new(self) }
    }

    /// Returns the kind of the error, for the policy.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Config(_) => Kind::Configuration,
            Self::Findings { kind, .. } => *kind,
            Self::Postgres(error) => Kind::of_postgres(error),
            Self::Store(error) => error.into(),
            Self::Relay(error) => error.kind(),
            Self::Inbox(error) => kind_of_inbox(error),
            Self::SlotLost { .. } => Kind::SlotLost,
            Self::PublicationMissing { .. } => Kind::PublicationMissing,
            Self::PubSub(_) => Kind::PubSub,
            Self::TopicMissing { .. } => Kind::TopicMissing,
            Self::NoOutbox { .. } => Kind::TableMissing,
            Self::PruneDenied { .. } | Self::MayNotLook { .. } => Kind::Privilege,
            Self::Held { .. } => Kind::SlotHeld,
            Self::ReplayTaken { .. } => Kind::ReplayTaken,
            Self::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
                Kind::PortTaken
            }
            Self::Listen { .. } => Kind::Machine,
            Self::Unfit { .. } | Self::Unfinished { .. } | Self::NoInbox { .. } => Kind::Argument,
            Self::File { .. } => Kind::File,
            Self::Io { .. } => Kind::Machine,
            Self::Demo { .. }
            | Self::Missing { .. }
            | Self::NoTrace { .. }
            | Self::NotArrived { .. }
            | Self::ReplayHeld { .. } => Kind::Refused,
            Self::SecondSignal
            | Self::Interrupted
            | Self::Stopped { .. }
            | Self::ReplayStopped { .. } => Kind::Interrupted,
        }
    }

    /// Returns the exit code of the process.
    #[must_use]
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "what has no kind stands above; the table has the rest"
    )]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Demo { exit, .. } => *exit,
            // The relay stopped because of this error, so the policy has an exit code for it.
            Self::Relay(error) => match error.disposition() {
                Disposition::Stop { exit, .. } => exit,
                // The relay would wait for this condition, but a command exits.
                Disposition::Wait { .. } => error.kind().exit(),
                Disposition::Reconnect | Disposition::StandBy => Exit::Unexpected,
            },
            other => other.kind().exit(),
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
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "what has no kind stands above; the table has the rest"
    )]
    pub fn hint(&self) -> &str {
        match self {
            Self::Demo { .. }
            | Self::SecondSignal
            | Self::ReplayStopped { .. }
            | Self::Inbox(InboxError::Paused { .. }) => "",
            Self::Missing { .. } => MISSING,
            Self::ReplayHeld { .. } => "`walrelay dispatch list --status dead` names the rows",
            Self::NoTrace { .. } => {
                "compare the id with what was inserted; --outbox-table and --inbox name where to look"
            }
            Self::NoInbox { .. } => NAME_INBOXES,
            Self::NotArrived { .. } => NOT_ARRIVED,
            Self::NoOutbox { .. } => NO_OUTBOX,
            // If all problems have the same kind, its hint applies.
            Self::Config(problems) => match problems.as_slice() {
                [first, rest @ ..] if rest.iter().all(|problem| problem.kind == first.kind) => {
                    first.kind.hint()
                }
                _ => Kind::Configuration.hint(),
            },
            Self::Findings { .. } => "each finding above names its fix",
            Self::PruneDenied { .. } => PRUNE_PERMISSIONS,
            Self::MayNotLook { side: DatabaseSide::Outbox, .. } => OUTBOX_PERMISSIONS,
            Self::MayNotLook { side: DatabaseSide::Inbox, .. } => INBOX_PERMISSIONS,
            Self::Inbox(InboxError::Rights { hint, .. }) => hint,
            Self::Inbox(InboxError::Refused { .. }) => REFUSED,
            Self::Inbox(InboxError::Store(error)) if Kind::from(error) == Kind::Privilege => {
                CONSUMER_PERMISSIONS
            }
            Self::Unfit { hint, .. } | Self::Stopped { hint, .. } => hint,
            Self::Unfinished { hint, .. } => hint,
            other => other.kind().hint(),
        }
    }

    /// Returns the code that `walrelay explain` knows. Results of a check have none.
    #[must_use]
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "results are listed; every other error has a kind"
    )]
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::Demo { .. }
            | Self::Missing { .. }
            | Self::NoTrace { .. }
            | Self::NotArrived { .. }
            | Self::ReplayHeld { .. }
            | Self::Findings { .. } => None,
            other => Some(other.kind().code()),
        }
    }

    /// Returns the error, its causes and its hint as text.
    #[must_use]
    pub fn report(&self) -> String {
        let text = Chain(self).to_string();
        match self.hint() {
            "" => text,
            hint => format!("{text}\nhint: {hint}"),
        }
    }
}

/// Returns the kind of a consumer's error, for the policy.
pub(crate) fn kind_of_inbox(error: &InboxError) -> Kind {
    match error {
        InboxError::Connect(error) => Kind::of_postgres(error),
        // An earlier check found the outbox's tables, so a missing table belongs to the inbox.
        InboxError::Store(error) if Kind::from(error) == Kind::TableMissing => Kind::InboxUnfit,
        InboxError::Store(error) | InboxError::Outbox(error) => error.into(),
        InboxError::Rights { .. } => Kind::Privilege,
        InboxError::Inbox { .. } | InboxError::Paused { .. } | InboxError::Refused { .. } => {
            Kind::InboxUnfit
        }
        InboxError::Unregistered { .. } => Kind::ConsumerMissing,
        InboxError::Handler { .. } => Kind::HandlerUnfit,
        InboxError::Reset(_) => Kind::ResetUnfit,
        InboxError::AlreadyFinished { .. }
        | InboxError::OtherSubscription { .. }
        | InboxError::UnknownEvent { .. }
        | InboxError::UnknownKey { .. }
        | InboxError::KeyMoved { .. }
        | InboxError::SeveralConsumers { .. }
        | InboxError::Table { .. } => Kind::Argument,
        InboxError::PubSub(_) | InboxError::Pull { .. } => Kind::PubSub,
        InboxError::SubscriptionMissing { .. } => Kind::SubscriptionMissing,
        InboxError::OtherKind { .. } => Kind::SubscriptionUnfit,
    }
}

/// Hint for a handler that fails.
const REFUSED: &str = "mend the handler, or grant the role what it needs: handlers run with the role's rights; then run it \
     again: what was not applied comes again";

/// Hint for the permissions of consumer commands.
const CONSUMER_PERMISSIONS: &str = "run it as the owner of the app_inbox tables, or grant this role what the command needs, with \
     policies: migrations/README.md, A role for a consumer; A role that only looks";

/// Hint for the permissions to read an outbox.
const OUTBOX_PERMISSIONS: &str = "run it as the owner of the outbox, or let the owner run the grants and policies of its first \
     half: migrations/README.md, A role that only looks";

/// Hint for the permissions to read an inbox.
const INBOX_PERMISSIONS: &str = "run it as the owner of the app_inbox tables, or let the owner run the grants and policies of its \
     second half, in the consumer's database: migrations/README.md, A role that only looks";

/// Hint for consumers in another database.
pub(crate) const NAME_INBOXES: &str =
    "name each consumer and its database: --inbox NAME=postgresql://...";

/// Hint for events that an inbox lacks.
const MISSING: &str = "a consumer that does not read all of the outbox's topics lacks the events of the others: name those that it reads, \
     --aggregate-type T; docs/consumer-operations.md, Proof, says how to bring events back: an inbox skips what it has";

/// Hint for an event that an inbox lacks.
const NOT_ARRIVED: &str = "it may be on its way, or of a topic that the consumer does not read; `walrelay audit` tells \
     what is missing, and docs/consumer-operations.md, Proof, what to do about it";

/// Hint for a database without an outbox.
const NO_OUTBOX: &str = "name the outbox's database with --database-url, and consumers in other ones with \
     --inbox NAME=URL; if it is the outbox's, correct --outbox-table, or run `walrelay init`, which creates it";

/// Hint for the additional permissions of `prune`.
const PRUNE_PERMISSIONS: &str = "run it as the outbox table's owner, or GRANT SELECT, DELETE on the outbox table, and \
     SELECT on app_outbox_relay, app_outbox_dispatch, app_outbox_hold and app_outbox_replay, to this role, with a policy for \
     each, as in CREATE POLICY … ON app_outbox FOR SELECT TO role USING (true): docs/operations.md, Rights";

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
