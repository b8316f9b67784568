//! The reaction to an error: stop with an exit code and a hint, wait, or retry.
//!
//! One table decides. An error reports its [`Kind`] and the place where it occurred ([`ErrorContext`]). No
//! other code inspects an error, so that `run`, `check` and every other command agree.

mod postgres;

use std::fmt;
use std::io;
use std::process::ExitCode;

use walrelay_outbox_admin::{Finding, Severity, code};

/// How the process ended. The exit codes are a contract with supervisors that restart the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Finished, or asked to stop.
    Done,
    /// An unexpected error.
    Unexpected,
    /// The command line or the configuration is wrong.
    Usage,
    /// Postgres is not set up for walrelay.
    PostgresSetup,
    /// Pub/Sub is not set up for walrelay.
    PubSubSetup,
    /// The slot is lost: the server removed WAL that it needed, or the slot itself.
    SlotLost,
    /// Another session holds the slot, and taking over was not allowed.
    SlotHeld,
    /// A broken invariant. Continuing could confirm a position too early.
    BrokenInvariant,
}

impl Exit {
    /// Returns the exit code of the process.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Unexpected => 1,
            Self::Usage => 2,
            Self::PostgresSetup => 3,
            Self::PubSubSetup => 4,
            Self::SlotLost => 5,
            Self::SlotHeld => 6,
            Self::BrokenInvariant => 101,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// The reaction to an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposition {
    /// End the session and resume from the slot after a delay.
    Reconnect,
    /// Wait until the holder releases the slot.
    StandBy,
    /// Wait for a condition that another command or a person ends. This process can keep running.
    Wait {
        /// The command to run.
        hint: &'static str,
    },
    /// Stop, because only a person can fix the error.
    Stop {
        /// The exit code of the process.
        exit: Exit,
        /// The next step for the operator.
        hint: &'static str,
    },
}

/// The place where an error occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorContext {
    /// In `run`, before the first success. A wrong address is more likely than an outage.
    AtFirst,
    /// In `run`, after the first success.
    Running,
    /// In a command that runs once and reports, such as `check`.
    ByCommand,
}

/// One column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Reconnect,
    StandBy,
    Wait,
    Stop(Exit),
}

const RECONNECT: Then = Then::Reconnect;
const STAND_BY: Then = Then::StandBy;
const WAIT: Then = Then::Wait;
const UNEXPECTED: Then = Then::Stop(Exit::Unexpected);
const USAGE: Then = Then::Stop(Exit::Usage);
const POSTGRES: Then = Then::Stop(Exit::PostgresSetup);
const PUBSUB: Then = Then::Stop(Exit::PubSubSetup);
const LOST: Then = Then::Stop(Exit::SlotLost);
const HELD: Then = Then::Stop(Exit::SlotHeld);

/// Generates [`Kind`], the list of all kinds and the table from one list.
macro_rules! policy {
    ($($(#[$doc:meta])+ $kind:ident $code:literal: $first:ident, $running:ident, $command:ident, $hint:literal;)+) => {
        /// The kind of an error, as far as it decides the reaction.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind { $($(#[$doc])+ $kind,)+ }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind,)+];

            /// Returns the stable code of the error, in kebab case. `walrelay explain` prints its
            /// entry of docs/errors.md.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Self::$kind => $code,)+ }
            }

            const fn row(self) -> ([Then; 3], &'static str) {
                match self { $(Self::$kind => ([$first, $running, $command], $hint),)+ }
            }
        }
    };
}

// Kind: reaction at the first start of `run`, later in `run`, and in another command. Next step.
policy! {
    // Connecting to the server.
    /// No address of the server accepts connections, or its name has no address.
    Unreachable "postgres-unreachable": POSTGRES, RECONNECT, POSTGRES,
        "check host, port and network; Supabase's direct host has IPv6 addresses only, unless the IPv4 \
         add-on is bought; once they were connected, `run` and `consumer run` reconnect by themselves";
    /// The server does not offer TLS.
    TlsNotOffered "tls-not-offered": POSTGRES, RECONNECT, POSTGRES,
        "turn TLS on in the server, or use sslmode=disable";
    /// The certificate is not trusted, or the handshake fails.
    TlsUntrusted "tls-untrusted": POSTGRES, RECONNECT, POSTGRES,
        "sslrootcert must name the authority that signed the server's certificate (Supabase: Database \
         Settings, SSL), and with verify-full the certificate must name the host";
    /// The configured root certificates cannot be read.
    TlsRoots "tls-roots": USAGE, RECONNECT, USAGE,
        "sslrootcert takes a PEM file; WALRELAY_SSLROOTCERT_PEM takes its text";
    /// An address does not answer in time: a server under load, or a firewall that drops packets.
    Unanswered "postgres-timeout": RECONNECT, RECONNECT, POSTGRES,
        "check host, port and firewall; `run` and `consumer run` try again until the server answers";
    /// TLS fails for another reason.
    Tls "tls-failed": POSTGRES, RECONNECT, POSTGRES, "check sslmode, and that the address is Postgres' own";
    /// A connection pooler answers.
    Pooler "connection-pooler": POSTGRES, POSTGRES, POSTGRES,
        "connect to the database itself, not through a pooler such as PgBouncer: on Supabase to the \
         direct connection db.<ref>.supabase.co:5432";
    /// Wrong role or password, or a rejection by `pg_hba.conf`.
    Authentication "authentication-failed": POSTGRES, WAIT, POSTGRES,
        "check user, password and the server's pg_hba.conf";
    /// The server requires an authentication method that this client does not support.
    AuthenticationMethod "authentication-method-unsupported": POSTGRES, POSTGRES, POSTGRES,
        "let pg_hba.conf ask this role for scram-sha-256, md5 or password";
    /// The server requires a password and none is configured.
    PasswordMissing "password-missing": POSTGRES, WAIT, POSTGRES,
        "put it into the connection string, PGPASSWORD or PGPASSFILE";
    /// The password file cannot be read.
    PasswordFile "password-file-unreadable": USAGE, WAIT, USAGE,
        "correct PGPASSFILE, and let this process read the file; it is read again before every connection";
    /// The server cannot prove that it knows the password.
    ServerUnproven "server-unproven": POSTGRES, RECONNECT, POSTGRES,
        "make sure that the address is your server's: it does not know the role's password";
    /// The server does not match `target_session_attrs`.
    WrongSession "wrong-session-attributes": POSTGRES, RECONNECT, POSTGRES,
        "name the primary's host, or correct target_session_attrs";
    /// The database does not exist.
    DatabaseMissing "database-missing": POSTGRES, POSTGRES, POSTGRES,
        "check the database's name in the connection string";
    /// All connections or walsenders are in use.
    ConnectionsExhausted "connections-exhausted": RECONNECT, RECONNECT, POSTGRES,
        "raise max_wal_senders or max_connections, or end sessions that nobody needs";
    /// The server is starting up or shutting down.
    NotAccepting "server-not-accepting": RECONNECT, RECONNECT, UNEXPECTED,
        "wait until the server has started and try again; the relay does so by itself";
    /// The server is a standby.
    InRecovery "server-is-standby": RECONNECT, RECONNECT, POSTGRES,
        "connect to the primary; a relay that met a standby waits for its promotion";
    /// The session is read-only.
    ReadOnly "session-read-only": RECONNECT, RECONNECT, POSTGRES,
        "connect to the primary, or run `ALTER ROLE … RESET default_transaction_read_only` (`ALTER DATABASE …` if the \
         database sets it)";
    /// The connection broke.
    Broken "connection-broken": RECONNECT, RECONNECT, POSTGRES,
        "check network and firewall, and that the address is Postgres' own";
    /// The peer violates the protocol.
    Protocol "protocol-violation": POSTGRES, RECONNECT, POSTGRES,
        "check that the address is Postgres' own; if it is, keep the log and report this";
    /// The server refuses with an error that has no kind of its own.
    Refused "server-error": RECONNECT, RECONNECT, UNEXPECTED,
        "the text is the server's: its log tells more";

    // The setup of the server.
    /// The server is too old, or a setting is wrong.
    ServerUnfit "server-unsuitable": POSTGRES, POSTGRES, POSTGRES, "run `walrelay check`, which names the setting to change";
    /// The catalog contains a value that this version does not know.
    ServerUnknown "server-unknown": POSTGRES, POSTGRES, POSTGRES, "use a release of walrelay that knows this Postgres";
    /// The role lacks a permission.
    Privilege "permission-missing": POSTGRES, POSTGRES, POSTGRES,
        "the text names what the role lacks: streaming and making slots needs REPLICATION, each table a grant and a \
         policy: docs/operations.md, Rights";
    /// Row level security hides all rows from the role.
    RowsHidden "rows-hidden": POSTGRES, POSTGRES, POSTGRES,
        "a table takes a grant and a policy for each role; what each needs for what: migrations/README.md, Rights";
    /// A slot or publication that a command names does not exist.
    Missing "slot-or-publication-missing": POSTGRES, POSTGRES, POSTGRES,
        "run `walrelay check`, which names what is missing and what resembles it";
    /// A table or column is missing.
    TableMissing "table-missing": POSTGRES, POSTGRES, POSTGRES,
        "run `walrelay init` in the outbox's database, which creates what is missing, or correct --database-url, if that \
         names another one";
    /// An outbox table does not meet the requirements.
    OutboxUnfit "outbox-table-unsuitable": POSTGRES, POSTGRES, POSTGRES,
        "run `walrelay check`, and mend the table or the --column-… options";
    /// The relay's tables do not meet the requirements.
    DispatchUnfit "dispatch-tables-unsuitable": POSTGRES, POSTGRES, POSTGRES,
        "run `walrelay check`; migrations/README.md has the tables and their grants";
    /// The publication does not exist.
    PublicationMissing "publication-missing": POSTGRES, POSTGRES, POSTGRES,
        "correct --publication, or run `walrelay init`, which creates the publication before the slot";
    /// The publication publishes too much or too little.
    PublicationUnfit "publication-unsuitable": POSTGRES, POSTGRES, POSTGRES,
        "run `walrelay check`, which names the ALTER PUBLICATION to run";
    /// The server ignored the publication during decoding, so rows are missing.
    PublicationSkipped "publication-skipped": POSTGRES, POSTGRES, POSTGRES,
        "the publication did not exist when these rows were written; it must be created before the slot \
         and never be dropped while the slot lives: docs/operations.md, Lost slot";
    /// The publication or its tables were changed while the relay was running.
    PublicationChanged "publication-changed": POSTGRES, POSTGRES, POSTGRES,
        "rows inserted since the change are not in the stream: docs/operations.md, The publication was \
         changed";
    /// The name is not a valid slot name.
    InvalidName "slot-name-invalid": POSTGRES, POSTGRES, POSTGRES,
        "slot names take lower-case letters, digits and _ only";
    /// The server does not understand a statement.
    Syntax "statement-not-understood": POSTGRES, POSTGRES, POSTGRES,
        "check that this is Postgres 15 or later, and no pooler in between";
    /// All replication slots are in use.
    SlotsExhausted "slots-exhausted": POSTGRES, POSTGRES, POSTGRES,
        "raise max_replication_slots, or free a slot that is known to be of no use";
    /// The server has too few slots or too little WAL retention for the request.
    NoRoom "no-capacity": POSTGRES, POSTGRES, POSTGRES,
        "raise the setting that the text names, or make room: docs/replay.md, What an anchor costs";
    /// The slot does not exist and never existed.
    SlotMissing "slot-missing": POSTGRES, POSTGRES, POSTGRES,
        "correct --slot, or run `walrelay init`, which creates it";
    /// The shards on the server do not match the shard in the command.
    ShardsDiffer "shards-differ": POSTGRES, POSTGRES, POSTGRES,
        "name the shard as in --shard 0/4; `walrelay reshard` changes their number: docs/shards.md";
    /// The slot has another type, plugin or database, or is older than its publication.
    SlotUnfit "slot-unsuitable": POSTGRES, POSTGRES, POSTGRES, "choose another name with --slot";
    /// The slot existed, and is missing or invalidated.
    SlotLost "slot-lost": LOST, LOST, LOST,
        "run `walrelay slot recover`: it creates a new slot, and the relay then republishes unsettled rows from the \
         outbox table: docs/operations.md, Lost slot";
    /// The positions on record belong to another server.
    OtherServer "positions-of-another-server": LOST, LOST, LOST,
        "positions on record mean nothing on this server: after an upgrade run `walrelay slot recover`, or \
         `walrelay upgrade finish` if pg_upgrade has carried the slot over: docs/operations.md, Lost slot";
    /// The transaction ids on record belong to another database.
    OtherDatabase "positions-of-another-database": LOST, LOST, LOST,
        "name a moment with a margin: `walrelay slot recover --from-time 2026-01-31T12:00:00Z` publishes everything \
         since then: docs/operations.md, Lost slot";
    /// An operation on the slot is unfinished, or another process works on it.
    OperationUnfinished "operation-unfinished": WAIT, WAIT, POSTGRES,
        "the command that began it finishes it when it is run again; so does `walrelay run`, unless it is a change of the \
         number of shards: docs/replay.md, docs/shards.md";
    /// An upgrade is being prepared, or its process is gone.
    UpgradeBegun "upgrade-in-progress": WAIT, WAIT, POSTGRES,
        "wait for `walrelay upgrade prepare`, or run it again: it finishes; `walrelay slot recover` calls it off, and so \
         does a relay, where nobody is at it";
    /// The slot was dropped for an upgrade.
    UpgradePrepared "upgrade-prepared": WAIT, WAIT, POSTGRES,
        "upgrade the server, then run `walrelay slot recover`, which goes on; without an upgrade it goes on here";
    /// The slot is not lost.
    NotLost "slot-not-lost": USAGE, USAGE, USAGE,
        "nothing is left to do if it was recovered already: `walrelay status` shows how the slot stands";
    /// Rows that the lost slot may not have settled must still be published.
    RecoveryPending "recovery-pending": POSTGRES, POSTGRES, POSTGRES,
        "start `walrelay run`, which publishes those rows first: docs/operations.md, Lost slot";
    /// Another session holds the slot.
    SlotHeld "slot-held": STAND_BY, STAND_BY, HELD,
        "stop what holds the slot first: a relay, or another command, as the text says";
    /// The role may not end the holder's session.
    TakeOverRefused "take-over-refused": HELD, HELD, HELD,
        "only the same role, or a member of pg_signal_backend, may end the holder's session";

    // The contents of the stream.
    /// A change or row that cannot be read.
    Unreadable "row-unreadable": POSTGRES, POSTGRES, POSTGRES,
        "nothing was confirmed past this row; mend the table or the --column-… options and start again";

    /// A row that the server fails to send at every attempt.
    Unsendable "row-unsendable": POSTGRES, POSTGRES, POSTGRES,
        "`walrelay slot advance --to-lsn POSITION --skip-events` passes the transaction without decoding it, and names its \
         rows: docs/operations.md, A row that the server cannot send";

    /// Another process runs this replay.
    ReplayTaken "replay-running": HELD, HELD, HELD,
        "wait until it is done, or stop it: then it goes on here with the same `walrelay replay resume`";
    /// A replay reached a row that Pub/Sub never accepts.
    NotReplayed "replay-row-refused": UNEXPECTED, UNEXPECTED, UNEXPECTED,
        "mend what the row's error names, or leave such rows out with --skip-dead: docs/replay.md";

    // The consumer.
    /// A consumer's database lacks tables, functions or permissions.
    InboxUnfit "inbox-unsuitable": POSTGRES, POSTGRES, POSTGRES,
        "run `walrelay consumer init` in the consumer's database, which creates what is missing, or correct \
         --database-url or --inbox, if that names another one; migrations/README.md has the grants";
    /// The consumer does not exist.
    ConsumerMissing "consumer-missing": POSTGRES, POSTGRES, POSTGRES,
        "correct the name or --database-url, or set it up: `walrelay consumer init NAME --subscription S`";
    /// The handler function is missing or unsuitable.
    HandlerUnfit "handler-unsuitable": POSTGRES, POSTGRES, POSTGRES,
        "create the function in the consumer's database, or correct --handler";
    /// The SQL that empties a read model failed.
    ResetUnfit "reset-sql-failed": USAGE, USAGE, USAGE,
        "mend the SQL of --reset-sql, and run it again; it runs inside one transaction: leave BEGIN, COMMIT and \
         ROLLBACK out of it, and what psql alone understands";
    /// The subscription does not exist.
    SubscriptionMissing "subscription-missing": PUBSUB, PUBSUB, PUBSUB,
        "correct --subscription, or create it: `walrelay consumer init NAME --subscription S --create --topic T`";
    /// The subscription exists with settings that cannot be changed as required.
    SubscriptionUnfit "subscription-differs": POSTGRES, POSTGRES, POSTGRES,
        "name another --subscription, which is then created, or correct --topic and --filter: what differs is chosen when \
         a subscription is created; docs/consumer-operations.md, Another subscription";

    // Pub/Sub, and the command line.
    /// The topic for republished rows does not exist.
    TopicMissing "topic-missing": PUBSUB, PUBSUB, PUBSUB,
        "create it: `gcloud pubsub topics create TOPIC`, or `walrelay init --create-topics=TOPIC`; or correct --to-topic, \
         of `consumer rebuild` --from-outbox, of `consumer init` --topic";
    /// Pub/Sub cannot be used.
    PubSub "pubsub-unusable": PUBSUB, PUBSUB, PUBSUB,
        "check credentials, --project, --endpoint, --pubsub-ca and network; roles/pubsub.viewer lets check look";
    /// The configuration is invalid.
    Configuration "configuration-invalid": USAGE, USAGE, USAGE, "see `walrelay <command> --help` and docs/configuration.md";
    /// An argument names an object that does not exist or cannot exist.
    Argument "argument-invalid": USAGE, USAGE, USAGE, "correct the argument; `--help` shows what it takes";
    /// A file cannot be read.
    File "file-unreadable": USAGE, USAGE, USAGE, "name a file that can be read";
    /// Another process already uses a listen address.
    PortTaken "address-in-use": UNEXPECTED, UNEXPECTED, UNEXPECTED,
        "another process listens there: stop it, or choose another address with --http (PORT sets it too), \
         --listen or --control-listen";
    /// This machine lacks a resource.
    Machine "local-resource-unavailable": UNEXPECTED, UNEXPECTED, UNEXPECTED, "check ports, descriptors and rights of this process";
    /// The tables cannot store a number or text.
    Unrecordable "value-not-recordable": UNEXPECTED, UNEXPECTED, UNEXPECTED, "keep the log and report this";
    /// A signal ended the command early.
    Interrupted "interrupted": UNEXPECTED, UNEXPECTED, UNEXPECTED,
        "run it again; what it has done by then stays";
}

impl Disposition {
    /// Returns the reaction of a relay that survives a lost slot: another command recovers it.
    #[must_use]
    pub const fn awaiting_a_lost_slot(self) -> Self {
        match self {
            Self::Stop { exit: Exit::SlotLost, hint } => Self::Wait { hint },
            Self::Reconnect | Self::StandBy | Self::Wait { .. } | Self::Stop { .. } => self,
        }
    }
}

impl Kind {
    /// Returns the reaction to this kind of error. No other code decides it.
    #[must_use]
    pub const fn disposition(self, met: ErrorContext) -> Disposition {
        let ([first, running, command], hint) = self.row();
        let then = match met {
            ErrorContext::AtFirst => first,
            ErrorContext::Running => running,
            ErrorContext::ByCommand => command,
        };
        match then {
            Then::Reconnect => Disposition::Reconnect,
            Then::StandBy => Disposition::StandBy,
            Then::Wait => Disposition::Wait { hint },
            Then::Stop(exit) => Disposition::Stop { exit, hint },
        }
    }

    /// Returns the next step for the operator.
    #[must_use]
    pub const fn hint(self) -> &'static str {
        self.row().1
    }

    /// Returns the exit code of a command that fails with this kind.
    #[must_use]
    pub const fn exit(self) -> Exit {
        match self.disposition(ErrorContext::ByCommand) {
            Disposition::Stop { exit, .. } => exit,
            Disposition::Reconnect | Disposition::StandBy | Disposition::Wait { .. } => {
                Exit::Unexpected
            }
        }
    }

    /// The kind of a preflight finding that is an error.
    #[must_use]
    pub fn of_finding(finding: &str) -> Self {
        match finding {
            code::SLOT_LOST => Self::SlotLost,
            code::UPGRADE_BEGUN => Self::UpgradeBegun,
            code::UPGRADE_PREPARED => Self::UpgradePrepared,
            code::SYSTEM_IDENTIFIER => Self::OtherServer,
            code::IN_RECOVERY => Self::InRecovery,
            code::POOLER => Self::Pooler,
            code::ROLE_REPLICATION => Self::Privilege,
            code::REPLICATION_SLOTS => Self::SlotsExhausted,
            code::WAL_SENDERS => Self::ConnectionsExhausted,
            code::SHARDS => Self::ShardsDiffer,
            code::SLOT_MISSING => Self::SlotMissing,
            code::SLOT_UNUSABLE => Self::SlotUnfit,
            code::SLOT_ACTIVE => Self::SlotHeld,
            code::PUBLICATION_MISSING => Self::PublicationMissing,
            code::PUBLICATION_OPERATIONS
            | code::PUBLICATION_TABLE
            | code::PUBLICATION_SCOPE
            | code::PUBLICATION_COLUMNS
            | code::PUBLICATION_ROW_FILTER
            | code::PUBLICATION_VIA_ROOT
            | code::PUBLICATION => Self::PublicationUnfit,
            code::OUTBOX_MISSING
            | code::OUTBOX_KIND
            | code::OUTBOX_COLUMN
            | code::OUTBOX_PAYLOAD_TYPE
            | code::OUTBOX => Self::OutboxUnfit,
            code::DISPATCH_MISSING
            | code::DISPATCH_RIGHTS
            | code::DISPATCH_ROW_SECURITY
            | code::DISPATCH => Self::DispatchUnfit,
            _ => Self::ServerUnfit,
        }
    }

    /// Returns the deciding kind of all errors among the findings, or `None` without errors.
    #[must_use]
    pub fn of_findings(findings: &[Finding]) -> Option<Self> {
        let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
        Self::gravest(errors.map(|finding| Self::of_finding(finding.code)))
    }

    /// Returns the kind that decides. A promotion fixes a standby. A lost slot is next, because
    /// other fixes may lose its rows. A kind that stops outweighs one that ends by itself.
    #[must_use]
    pub fn gravest(kinds: impl Iterator<Item = Self>) -> Option<Self> {
        kinds.min_by_key(|kind| match (kind, kind.disposition(ErrorContext::AtFirst)) {
            (Self::InRecovery, _) => 0,
            (_, Disposition::Stop { exit: Exit::SlotLost, .. }) => 1,
            (_, Disposition::Stop { .. }) => 2,
            (_, Disposition::StandBy | Disposition::Reconnect | Disposition::Wait { .. }) => 3,
        })
    }
}

/// Returns whether the connection ended, which proves nothing about the TLS settings.
fn is_cut(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

/// Prints an error and all its causes, `a: b: c`.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a (dyn std::error::Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use walrelay_pg_client::{PgError, TlsError};

    use super::*;

    #[test]
    fn check_exits_with_what_run_would_stop_with_for_every_kind() {
        for kind in Kind::ALL {
            let by_check = kind.disposition(ErrorContext::ByCommand);
            let Disposition::Stop { exit: checked, .. } = by_check else {
                panic!("{kind:?}: a command that does one thing cannot wait");
            };
            match kind.disposition(ErrorContext::AtFirst) {
                Disposition::Stop { exit, .. } => assert_eq!(checked, exit, "{kind:?}"),
                // `run` waits for this kind. `check` must not report a lost slot or a usage error.
                Disposition::Reconnect | Disposition::StandBy | Disposition::Wait { .. } => {
                    assert!(
                        matches!(checked, Exit::Unexpected | Exit::PostgresSetup | Exit::SlotHeld),
                        "{kind:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_stops_a_running_relay_stops_its_start_too() {
        for kind in Kind::ALL {
            let Disposition::Stop { exit, .. } = kind.disposition(ErrorContext::Running) else {
                continue;
            };
            let Disposition::Stop { exit: first, .. } = kind.disposition(ErrorContext::AtFirst)
            else {
                panic!("{kind:?} stops later and not at first");
            };
            assert_eq!(exit, first, "{kind:?}");
        }
    }

    #[test]
    fn a_first_start_waits_for_a_server_that_may_answer_and_ends_where_nothing_listens() {
        let first = |error: &PgError| Kind::of_postgres(error).disposition(ErrorContext::AtFirst);
        let stops = |error: &PgError| matches!(first(error), Disposition::Stop { .. });
        let io = |kind: io::ErrorKind| io::Error::from(kind);
        let address = || "10.0.0.1:5432".to_owned();
        let timeout = || PgError::ConnectTimeout { address: address(), limit: Duration::ZERO };
        let refused = || PgError::Connect {
            address: address(),
            source: io(io::ErrorKind::ConnectionRefused),
        };
        let tls =
            |kind| PgError::Tls { host: "h".to_owned(), source: TlsError::Handshake(io(kind)) };
        for waits in [
            PgError::Disconnected,
            PgError::Io { action: "greet", source: io(io::ErrorKind::ConnectionReset) },
            PgError::Silent { limit: Duration::ZERO },
            timeout(),
            PgError::Unreachable { failures: vec![refused(), timeout()] },
            tls(io::ErrorKind::UnexpectedEof),
        ] {
            assert_eq!(first(&waits), Disposition::Reconnect, "{waits}");
        }
        for ends in [
            refused(),
            PgError::Unreachable { failures: vec![refused(), refused()] },
            PgError::PasswordMissing,
            tls(io::ErrorKind::InvalidData),
        ] {
            assert!(stops(&ends), "{ends}");
        }
    }

    #[test]
    fn a_running_relay_waits_for_what_another_command_ends_and_for_another_password() {
        let waits_for = [
            Kind::OperationUnfinished,
            Kind::UpgradeBegun,
            Kind::UpgradePrepared,
            Kind::SlotLost,
            Kind::OtherServer,
            Kind::OtherDatabase,
            Kind::Authentication,
            Kind::PasswordMissing,
            Kind::PasswordFile,
        ];
        for kind in Kind::ALL {
            let then = kind.disposition(ErrorContext::Running).awaiting_a_lost_slot();
            let waits = matches!(then, Disposition::Wait { .. });
            assert_eq!(waits, waits_for.contains(kind), "{kind:?}");
        }
        let first = Kind::Authentication.disposition(ErrorContext::AtFirst).awaiting_a_lost_slot();
        assert!(matches!(first, Disposition::Stop { exit: Exit::PostgresSetup, .. }), "{first:?}");
    }

    #[test]
    fn every_kind_has_a_hint_and_none_advises_to_drop_a_slot() {
        for kind in Kind::ALL {
            assert!(kind.hint().len() > 10, "{kind:?}");
            assert!(!kind.hint().contains("slot drop"), "{kind:?}: {}", kind.hint());
            assert!(!kind.hint().contains("drop the slot"), "{kind:?}: {}", kind.hint());
        }
    }

    #[test]
    fn a_lost_slot_outweighs_whatever_else_is_found() {
        let found = |code| Finding {
            code,
            severity: Severity::Error,
            subject: String::new(),
            message: String::new(),
            fix: String::new(),
        };
        let kind = |codes: &[&'static str]| {
            let findings: Vec<_> = codes.iter().map(|code| found(code)).collect();
            Kind::of_findings(&findings)
        };
        assert_eq!(kind(&[]), None);
        assert_eq!(kind(&[code::REPLICATION_SLOTS, code::SLOT_LOST]), Some(Kind::SlotLost));
        assert_eq!(kind(&[code::WAL_LEVEL, code::SYSTEM_IDENTIFIER]), Some(Kind::OtherServer));
        assert_eq!(kind(&[code::SLOT_LOST, code::IN_RECOVERY]), Some(Kind::InRecovery));
    }
}
