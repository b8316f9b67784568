//! What went wrong, who acts on it, and what the process exits with.

use std::fmt;

use tokio_postgres::error::SqlState;
use walrelay_postgres::{PgError, ServerError, ServerErrorKind, StoreError};
use walrelay_pubsub::PubsubError;
use walrelay_relay::error::RelayError;
use walrelay_relay::observe::report::ReportError;
use walrelay_relay::policy::{Chain, Disposition, Exit};

use crate::config::Problem;

/// Everything that ends a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The relay itself stopped.
    #[error(transparent)]
    Relay(#[from] RelayError),

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
        /// How many.
        count: usize,
        /// Whose set-up the first of them is about.
        exit: Exit,
    },

    /// A connection to Postgres.
    #[error(transparent)]
    Postgres(#[from] PgError),

    /// A statement, or a refusal to run one.
    #[error(transparent)]
    Store(#[from] StoreError),

    /// Pub/Sub cannot be used or administered.
    #[error(transparent)]
    PubSub(#[from] PubsubError),

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
        /// Its name.
        publication: String,
    },

    /// What a file or dispatch state holds does not fit what was asked for.
    #[error("{what}")]
    Unfit {
        /// What it is, and what is in the way.
        what: String,
        /// What to do instead.
        hint: &'static str,
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

    /// A signal ended a command before it was done.
    #[error("stopped by a signal before it was done")]
    Interrupted,
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
    /// What to do about this error: the one place that decides.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Config(_) => Disposition::stop(
                Exit::Usage,
                "see `walrelay <command> --help` and docs/configuration.md",
            ),
            Self::Findings { exit, .. } => {
                Disposition::stop(*exit, "each finding above names its fix")
            }
            Self::Postgres(error) => postgres_disposition(error),
            Self::Store(error) => store_disposition(error),
            Self::Relay(error) => error.disposition(),
            Self::Demo { exit, .. } => Disposition::stop(*exit, ""),
            Self::SlotLost { .. } => Disposition::stop(
                Exit::SlotLost,
                "the server dropped the slot, or log that it needed; rows it had not confirmed are in \
                 the outbox table only",
            ),
            Self::PublicationMissing { .. } => Disposition::stop(
                Exit::PostgresSetup,
                "run `walrelay init`, which creates the publication before the slot",
            ),
            Self::PubSub(_) => Disposition::stop(Exit::PubSubSetup, ""),
            Self::Unfit { hint, .. } => Disposition::stop(Exit::Usage, *hint),
            Self::File { .. } => Disposition::stop(Exit::Usage, "name a file that can be read"),
            Self::Io { .. } | Self::SecondSignal | Self::Interrupted => {
                Disposition::stop(Exit::Unexpected, "")
            }
        }
    }

    /// What the process exits with when this error ends it.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self.disposition() {
            // A supervisor reconnects; a command that was asked once reports.
            Disposition::Reconnect => Exit::Unexpected,
            Disposition::Stop { exit, .. } => exit,
        }
    }

    /// The error, its causes and its hint, as a person reads them.
    #[must_use]
    pub fn report(&self) -> String {
        let mut text = format!("{}", Chain(self));
        if let Disposition::Stop { hint, .. } = self.disposition()
            && !hint.is_empty()
        {
            text.push_str("\nhint: ");
            text.push_str(&hint);
        }
        text
    }
}

/// Unknown failures of a connection pass; what a person has to change does not.
fn postgres_disposition(error: &PgError) -> Disposition {
    let kind = error.server().map(ServerError::kind);
    let needs_a_person = match kind {
        Some(
            ServerErrorKind::Missing
            | ServerErrorKind::NotInState
            | ServerErrorKind::SlotsExhausted
            | ServerErrorKind::Privilege
            | ServerErrorKind::Authentication
            | ServerErrorKind::DatabaseMissing
            | ServerErrorKind::InvalidName
            | ServerErrorKind::Syntax,
        ) => true,
        Some(ServerErrorKind::WalRemoved) => {
            return Disposition::stop(
                Exit::SlotLost,
                "the server dropped log that the slot needed",
            );
        }
        Some(
            ServerErrorKind::SlotActive { .. }
            | ServerErrorKind::ConnectionsExhausted
            | ServerErrorKind::AdminShutdown
            | ServerErrorKind::NotAccepting
            | ServerErrorKind::Other,
        ) => false,
        None => matches!(
            error,
            PgError::Pooler
                | PgError::PasswordMissing
                | PgError::AuthenticationMethod { .. }
                | PgError::Tls { .. }
                | PgError::Resolve { .. }
                | PgError::Connect { .. }
                | PgError::ConnectTimeout { .. }
                | PgError::Unreachable { .. }
                | PgError::PublicationSkipped(_)
        ),
    };
    match needs_a_person {
        true => Disposition::stop(Exit::PostgresSetup, error.hint().unwrap_or_default()),
        false => Disposition::Reconnect,
    }
}

fn store_disposition(error: &StoreError) -> Disposition {
    let setup = |hint: &str| Disposition::stop(Exit::PostgresSetup, hint);
    match error {
        StoreError::Sql { .. } => match error.sql_state() {
            Some(&SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN) => {
                setup("run `walrelay init`, which creates what is missing")
            }
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                setup("grant the role what the statement needs, or run this as the tables' owner")
            }
            // So far only creating a slot needs a state of the server: wal_level, or room for slots.
            Some(
                &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE
                | &SqlState::CONFIGURATION_LIMIT_EXCEEDED,
            ) => setup("run `walrelay check`, which names the setting to change"),
            Some(&SqlState::OBJECT_IN_USE) => {
                Disposition::stop(Exit::SlotHeld, "stop the relay that holds the slot first")
            }
            Some(_) | None => Disposition::Reconnect,
        },
        StoreError::SlotMissing { .. } => setup("run `walrelay init`, which creates it"),
        StoreError::SlotUnusable { .. }
        | StoreError::SlotBeforePublication { .. }
        | StoreError::ServerTooOld { .. }
        | StoreError::UnexpectedValue { .. } => setup(""),
        StoreError::UnknownEvent { .. }
        | StoreError::AlreadyFinished { .. }
        | StoreError::SlotName { .. } => Disposition::stop(Exit::Usage, ""),
        StoreError::OutOfRange { .. } | StoreError::NoFreeEventId { .. } => {
            Disposition::stop(Exit::Unexpected, "")
        }
    }
}

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
