//! What went wrong, who acts on it, and what the process exits with.

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

/// Everything that ends a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The relay itself stopped.
    #[error(transparent)]
    Relay(#[from] RelayError),

    /// The consumer stopped, or did not start.
    #[error(transparent)]
    Inbox(#[from] InboxError),

    /// The demo could not go on, or saw the promise broken.
    #[error("{what}")]
    Demo {
        /// What happened.
        what: String,
        /// What the process exits with.
        exit: Exit,
    },

    /// The configuration is wrong, in every way listed.
    #[error("{}", ProblemList(.0))]
    Config(Vec<Problem>),

    /// `check` found something that `run` would stumble over; the findings are already printed.
    #[error("{count} finding(s) must be fixed before `walrelay run`")]
    Findings {
        /// How many findings there are.
        count: usize,
        /// The gravest kind among them.
        kind: Kind,
    },

    /// A connection to Postgres.
    #[error(transparent)]
    Postgres(#[from] PgError),

    /// A statement, or a refusal to run one.
    #[error(transparent)]
    Store(#[from] AdminError),

    /// Pub/Sub cannot be used or administered.
    #[error(transparent)]
    PubSub(#[from] PubsubError),

    /// Rows are to be published again to a topic that does not exist; nothing was begun.
    #[error("topic {topic} does not exist")]
    TopicMissing {
        /// The full name.
        topic: String,
    },

    /// The slot is lost; what it had not confirmed can no longer be read from the log.
    #[error("slot {slot:?} {how}")]
    SlotLost {
        /// The slot.
        slot: String,
        /// What happened to it.
        how: &'static str,
    },

    /// There is no publication to create the slot for.
    #[error("publication {publication:?} does not exist")]
    PublicationMissing {
        /// The publication's name.
        publication: String,
    },

    /// The database that is named as the outbox's is another one.
    #[error("the outbox's database is asked for, and this one has no table {table}")]
    NoOutbox {
        /// What it lacks.
        table: String,
    },

    /// `prune` may not read or delete what it would have to.
    #[error("delete old rows of {table}")]
    PruneDenied {
        /// The outbox table.
        table: String,
        /// What the server said.
        #[source]
        source: Box<PgError>,
    },

    /// A command that only looks may not.
    #[error("{side} may not be looked at")]
    MayNotLook {
        /// Where.
        side: Side,
        /// What was refused.
        #[source]
        source: Box<Error>,
    },

    /// A slot is held, and who that is was found out.
    #[error("the slot is held by {holder}")]
    Held {
        /// Who holds it, and what it does.
        holder: String,
        /// What was refused because of it.
        #[source]
        source: Box<Error>,
    },

    /// An address that this process is to serve.
    #[error("listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why it did not work.
        #[source]
        source: std::io::Error,
    },

    /// What a file or dispatch state holds does not fit what was asked for.
    #[error("{what}")]
    Unfit {
        /// What does not fit, and why.
        what: String,
        /// What to do instead.
        hint: &'static str,
    },

    /// Something that was begun stands in the way, and has to be ended by its id.
    #[error("{what}")]
    Unfinished {
        /// What it is.
        what: String,
        /// The commands that end it.
        hint: String,
    },

    /// A file named on the command line cannot be used.
    #[error("read {path}")]
    File {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },

    /// Standard output, a listening socket, or another resource of this machine.
    #[error("{action}")]
    Io {
        /// What was attempted.
        action: String,
        /// Why it did not work.
        #[source]
        source: std::io::Error,
    },

    /// A second signal: whoever runs this does not want to wait for the drain.
    #[error("stopped by a second signal; what was not confirmed is read again at the next start")]
    SecondSignal,

    /// A replay was stopped before it was done.
    #[error("stopped after {published} row(s); to go on: walrelay {command} --resume {id}")]
    ReplayStopped {
        /// `replay` or `backfill`.
        command: &'static str,
        /// Its id.
        id: String,
        /// How many rows it has published.
        published: u64,
    },

    /// A replay in place cannot go on by itself.
    #[error(
        "{rows} row(s) of {command} {id} wait behind a dead row, which holds their key; when that is retried, \
         edited or discarded: walrelay {command} --resume {id}"
    )]
    ReplayHeld {
        /// `replay` or `backfill`.
        command: &'static str,
        /// Its id.
        id: String,
        /// How many rows it has left.
        rows: u64,
    },

    /// Another process does this replay.
    #[error("replay {id} is being done by another process")]
    ReplayTaken {
        /// Its id.
        id: String,
    },

    /// An audit found events that no inbox has; they are printed already.
    #[error("events that were published are missing: {lacking}")]
    Missing {
        /// Which consumers, and how many each.
        lacking: String,
    },

    /// An event that was asked for is nowhere.
    #[error("event {event_id:?} is in no outbox, in no dispatch state, {inboxes}")]
    NoTrace {
        /// The id asked for.
        event_id: String,
        /// Whether there were any.
        inboxes: &'static str,
    },

    /// There was no inbox to look for an event in.
    #[error(
        "whether event {event_id:?} is in an inbox is not known: the outbox's database has none"
    )]
    NoInbox {
        /// The id asked for.
        event_id: String,
    },

    /// An event was published, and inboxes that were looked at do not have it.
    #[error("event {event_id:?} is settled, and not in the inbox of {consumers}")]
    NotArrived {
        /// The id asked for.
        event_id: String,
        /// Theirs.
        consumers: String,
    },

    /// A signal ended a command before it was done.
    #[error("stopped by a signal before it was done")]
    Interrupted,

    /// The same, where it is known what is done by then.
    #[error("{what}")]
    Stopped {
        /// How far it came.
        what: String,
        /// What to do for the rest.
        hint: &'static str,
    },
}

/// Which of the two databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The outbox's.
    Outbox,
    /// A consumer's.
    Inbox,
}

impl fmt::Display for Side {
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
    /// The same, met by a command that only looks at the outbox, and at inboxes: it needs less than what
    /// replicates or applies.
    #[must_use]
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "whatever is not an inbox's is met at the outbox"
    )]
    pub fn met_looking(self) -> Self {
        if self.kind() != Kind::Privilege {
            return self;
        }
        let side = match &self {
            Self::Inbox(error) if !matches!(error, InboxError::Outbox(_)) => Side::Inbox,
            _ => Side::Outbox,
        };
        Self::MayNotLook { side, source: Box::new(self) }
    }

    /// What it is, for the policy.
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

    /// What the process exits with when this error ends it.
    #[must_use]
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "what has no kind stands above; the table has the rest"
    )]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Demo { exit, .. } => *exit,
            // The relay stopped because of this error, so the policy has a code for it.
            Self::Relay(error) => match error.disposition() {
                Disposition::Stop { exit, .. } => exit,
                // A command does not wait for what a relay waits for.
                Disposition::Wait { .. } => error.kind().exit(),
                Disposition::Reconnect | Disposition::StandBy => Exit::Unexpected,
            },
            other => other.kind().exit(),
        }
    }

    /// The server process that holds a slot, where the server refused because of it.
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

    /// What to do about it; empty where the text says so already.
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
            // One cure for all that is wrong, where there is one.
            Self::Config(problems) => match problems.as_slice() {
                [first, rest @ ..] if rest.iter().all(|problem| problem.kind == first.kind) => {
                    first.kind.hint()
                }
                _ => Kind::Configuration.hint(),
            },
            Self::Findings { .. } => "each finding above names its fix",
            Self::PruneDenied { .. } => PRUNE_RIGHTS,
            Self::MayNotLook { side: Side::Outbox, .. } => OUTBOX_RIGHTS,
            Self::MayNotLook { side: Side::Inbox, .. } => INBOX_RIGHTS,
            Self::Inbox(InboxError::Rights { hint, .. }) => hint,
            Self::Inbox(InboxError::Refused { .. }) => REFUSED,
            Self::Inbox(InboxError::Store(error)) if Kind::from(error) == Kind::Privilege => {
                CONSUMER_RIGHTS
            }
            Self::Unfit { hint, .. } | Self::Stopped { hint, .. } => hint,
            Self::Unfinished { hint, .. } => hint,
            other => other.kind().hint(),
        }
    }

    /// The error, its causes and its hint, as a person reads them.
    #[must_use]
    pub fn report(&self) -> String {
        let text = Chain(self).to_string();
        match self.hint() {
            "" => text,
            hint => format!("{text}\nhint: {hint}"),
        }
    }
}

/// What an error of a consumer is, for the policy.
pub(crate) fn kind_of_inbox(error: &InboxError) -> Kind {
    match error {
        InboxError::Connect(error) => Kind::of_postgres(error),
        // Whether the outbox's tables are there has been looked at before: these are the inbox's.
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

/// What to do where a handler cannot do its work.
const REFUSED: &str = "mend the handler, or grant the role what it needs: handlers run with the role's rights; then run it \
     again: what was not applied comes again";

/// What commands of a consumer need.
const CONSUMER_RIGHTS: &str = "run it as the owner of the app_inbox tables, or grant this role what the command needs, with \
     policies: migrations/README.md, A role for a consumer; A role that only looks";

/// What looking at an outbox needs.
const OUTBOX_RIGHTS: &str = "run it as the owner of the outbox, or let the owner run the grants and policies of its first \
     half: migrations/README.md, A role that only looks";

/// What looking at an inbox needs.
const INBOX_RIGHTS: &str = "run it as the owner of the app_inbox tables, or let the owner run the grants and policies of its \
     second half, in the consumer's database: migrations/README.md, A role that only looks";

/// What to do where consumers are in another database.
pub(crate) const NAME_INBOXES: &str =
    "name each consumer and its database: --inbox NAME=postgresql://...";

/// What to do about events that no inbox has.
const MISSING: &str = "a consumer that does not read all of the outbox's topics lacks the events of the others: name those that it reads, \
     --aggregate-type T; docs/consumer-operations.md, Proof, says how to bring events back: an inbox skips what it has";

/// What to do about an event that is not where it should be.
const NOT_ARRIVED: &str = "it may be on its way, or of a topic that the consumer does not read; `walrelay audit` tells \
     what is missing, and docs/consumer-operations.md, Proof, what to do about it";

/// What to do where the outbox was looked for in another database.
const NO_OUTBOX: &str = "name the outbox's database with --database-url, and consumers in other ones with \
     --inbox NAME=URL; if it is the outbox's, correct --outbox-table, or run `walrelay init`, which creates it";

/// What `prune` needs besides what the relay needs.
const PRUNE_RIGHTS: &str = "run it as the outbox table's owner, or GRANT SELECT, DELETE on the outbox table, and \
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
