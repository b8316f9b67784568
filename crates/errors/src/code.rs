//! The codes of all errors.

use crate::action::{Action, ErrorContext, Exit};

const RECONNECT: Action = Action::Reconnect;
const STAND_BY: Action = Action::StandBy;
const WAIT: Action = Action::Wait;
const UNEXPECTED: Action = Action::Stop(Exit::Unexpected);
const USAGE: Action = Action::Stop(Exit::Usage);
const POSTGRES: Action = Action::Stop(Exit::PostgresSetup);
const PUBSUB: Action = Action::Stop(Exit::PubSubSetup);
const LOST: Action = Action::Stop(Exit::SlotLost);
const HELD: Action = Action::Stop(Exit::SlotHeld);

/// Generates [`Code`], the list of all codes and the table of reactions from one list.
macro_rules! codes {
    ($($(#[$doc:meta])+ $code:ident $name:literal: $first:ident, $running:ident, $command:ident;)+) => {
        /// The stable code of an error. Each code is for one kind of fix.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])+ $code,)+ }

        impl Code {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$code,)+];

            /// Returns the code in kebab case, as logs and messages show it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$code => $name,)+ }
            }

            /// Returns the reaction to an error with this code.
            #[must_use]
            pub const fn action(self, context: ErrorContext) -> Action {
                let (first_start, running, command) = match self {
                    $(Self::$code => ($first, $running, $command),)+
                };
                match context {
                    ErrorContext::FirstStart => first_start,
                    ErrorContext::Running => running,
                    ErrorContext::Command => command,
                }
            }
        }
    };
}

// Code, name: reaction at the first start of `run`, later in `run`, and in another command.
codes! {
    // Connecting to the server.
    /// No address of the server accepts connections, or its name has no address.
    PostgresUnreachable "postgres-unreachable": POSTGRES, RECONNECT, POSTGRES;
    /// The server does not offer TLS.
    TlsNotOffered "tls-not-offered": POSTGRES, RECONNECT, POSTGRES;
    /// The certificate is not trusted, or the handshake fails.
    TlsUntrusted "tls-untrusted": POSTGRES, RECONNECT, POSTGRES;
    /// The configured root certificates cannot be read.
    TlsRoots "tls-roots": USAGE, RECONNECT, USAGE;
    /// An address does not answer in time: a server under load, or a firewall that drops packets.
    PostgresTimeout "postgres-timeout": RECONNECT, RECONNECT, POSTGRES;
    /// TLS fails for another reason.
    TlsFailed "tls-failed": POSTGRES, RECONNECT, POSTGRES;
    /// A connection pooler answers.
    ConnectionPooler "connection-pooler": POSTGRES, POSTGRES, POSTGRES;
    /// Wrong role or password, or a rejection by `pg_hba.conf`.
    AuthenticationFailed "authentication-failed": POSTGRES, WAIT, POSTGRES;
    /// The server requires an authentication method that this client does not support.
    AuthenticationMethodUnsupported "authentication-method-unsupported": POSTGRES, POSTGRES, POSTGRES;
    /// The server requires a password and none is configured.
    PasswordMissing "password-missing": POSTGRES, WAIT, POSTGRES;
    /// The password file cannot be read.
    PasswordFileUnreadable "password-file-unreadable": USAGE, WAIT, USAGE;
    /// The server cannot prove that it knows the password, or asks for too many iterations.
    ServerUnproven "server-unproven": POSTGRES, RECONNECT, POSTGRES;
    /// The server does not match `target_session_attrs`.
    WrongSessionAttributes "wrong-session-attributes": POSTGRES, RECONNECT, POSTGRES;
    /// The database does not exist.
    DatabaseMissing "database-missing": POSTGRES, POSTGRES, POSTGRES;
    /// All connections or walsenders are in use.
    ConnectionsExhausted "connections-exhausted": RECONNECT, RECONNECT, POSTGRES;
    /// The server is starting up or shutting down.
    ServerNotAccepting "server-not-accepting": RECONNECT, RECONNECT, UNEXPECTED;
    /// The server is a standby.
    ServerIsStandby "server-is-standby": RECONNECT, RECONNECT, POSTGRES;
    /// The session is read-only.
    SessionReadOnly "session-read-only": RECONNECT, RECONNECT, POSTGRES;
    /// The connection broke.
    ConnectionBroken "connection-broken": RECONNECT, RECONNECT, POSTGRES;
    /// The peer violates the protocol.
    ProtocolViolation "protocol-violation": POSTGRES, RECONNECT, POSTGRES;
    /// The server refuses with an error that has no code of its own.
    ServerError "server-error": RECONNECT, RECONNECT, UNEXPECTED;

    /// The server does not send WAL that it has, or its commits wait for a standby.
    ServerStalled "server-stalled": UNEXPECTED, UNEXPECTED, UNEXPECTED;

    // The setup of the server.
    /// The server is too old, or a setting is wrong.
    ServerUnsuitable "server-unsuitable": POSTGRES, POSTGRES, POSTGRES;
    /// The server is older than Postgres 15.
    ServerTooOld "server-too-old": POSTGRES, POSTGRES, POSTGRES;
    /// The setting `wal_level` is not `logical`.
    WalLevelNotLogical "wal-level-not-logical": POSTGRES, POSTGRES, POSTGRES;
    /// The role has no REPLICATION attribute.
    ReplicationPermissionMissing "replication-permission-missing": POSTGRES, POSTGRES, POSTGRES;
    /// The database accepts text that is invalid in every encoding.
    DatabaseEncodingUnchecked "database-encoding-unchecked": POSTGRES, POSTGRES, POSTGRES;
    /// The setting `max_slot_wal_keep_size` is unlimited or small.
    WalRetentionUnsuitable "wal-retention-unsuitable": POSTGRES, POSTGRES, POSTGRES;
    /// The setting `wal_sender_timeout` is off.
    WalSenderTimeoutOff "wal-sender-timeout-off": POSTGRES, POSTGRES, POSTGRES;
    /// `--wal-budget` is not below the server's limit for retained WAL.
    WalBudgetTooLarge "wal-budget-too-large": POSTGRES, POSTGRES, POSTGRES;
    /// The catalog contains a value that this version does not know.
    ServerUnknown "server-unknown": POSTGRES, POSTGRES, POSTGRES;
    /// The role lacks a permission.
    PermissionMissing "permission-missing": POSTGRES, POSTGRES, POSTGRES;
    /// The role of `prune` lacks a permission.
    PrunePermissionMissing "prune-permission-missing": POSTGRES, POSTGRES, POSTGRES;
    /// The role of a command that only reads lacks a permission on the outbox's side.
    OutboxReadPermissionMissing "outbox-read-permission-missing": POSTGRES, POSTGRES, POSTGRES;
    /// The role of a command that only reads lacks a permission in the consumer's database.
    InboxReadPermissionMissing "inbox-read-permission-missing": POSTGRES, POSTGRES, POSTGRES;
    /// The role of a consumer lacks a permission.
    ConsumerPermissionMissing "consumer-permission-missing": POSTGRES, POSTGRES, POSTGRES;
    /// Rows could not be archived before their deletion.
    ArchiveFailed "archive-failed": UNEXPECTED, UNEXPECTED, UNEXPECTED;
    /// The archive needs credentials, and there are none that work.
    ArchiveCredentialsMissing "archive-credentials-missing": UNEXPECTED, UNEXPECTED, UNEXPECTED;
    /// The bucket or the directory of the archive does not exist.
    ArchiveMissing "archive-missing": UNEXPECTED, UNEXPECTED, UNEXPECTED;
    /// The archive may not be written or read.
    ArchivePermissionMissing "archive-permission-missing": UNEXPECTED, UNEXPECTED, UNEXPECTED;
    /// The archive does not answer.
    ArchiveUnreachable "archive-unreachable": UNEXPECTED, UNEXPECTED, UNEXPECTED;
    /// A partitioned outbox has no partition for the near future.
    PartitionsMissing "partitions-missing": POSTGRES, POSTGRES, POSTGRES;
    /// The DEFAULT partition of an outbox contains rows.
    DefaultPartitionUsed "default-partition-used": POSTGRES, POSTGRES, POSTGRES;
    /// Row level security hides all rows from the role.
    RowsHidden "rows-hidden": POSTGRES, POSTGRES, POSTGRES;
    /// A slot or publication that a command names does not exist.
    SlotOrPublicationMissing "slot-or-publication-missing": POSTGRES, POSTGRES, POSTGRES;
    /// A table or column is missing.
    TableMissing "table-missing": POSTGRES, POSTGRES, POSTGRES;
    /// An outbox table does not exist.
    OutboxTableMissing "outbox-table-missing": POSTGRES, POSTGRES, POSTGRES;
    /// The text form of the payload column is published.
    PayloadTypeConverted "payload-type-converted": POSTGRES, POSTGRES, POSTGRES;
    /// An outbox table does not meet the requirements.
    OutboxTableUnsuitable "outbox-table-unsuitable": POSTGRES, POSTGRES, POSTGRES;
    /// A column of an outbox table is missing, or generated and therefore not published.
    OutboxColumnMissing "outbox-column-missing": POSTGRES, POSTGRES, POSTGRES;
    /// A table of the relay does not exist.
    DispatchTableMissing "dispatch-table-missing": POSTGRES, WAIT, POSTGRES;
    /// A crash of the server would empty a table of the relay.
    DispatchTableUnlogged "dispatch-table-unlogged": POSTGRES, WAIT, POSTGRES;
    /// The role lacks a permission on a table of the relay.
    DispatchPermissionMissing "dispatch-permission-missing": POSTGRES, WAIT, POSTGRES;
    /// Row level security hides rows of the relay's tables from the role.
    DispatchRowsHidden "dispatch-rows-hidden": POSTGRES, WAIT, POSTGRES;
    /// The publication does not exist.
    PublicationMissing "publication-missing": POSTGRES, POSTGRES, POSTGRES;
    /// The publication publishes too much or too little.
    PublicationUnsuitable "publication-unsuitable": POSTGRES, POSTGRES, POSTGRES;
    /// The server ignored the publication during decoding, so rows are missing.
    PublicationSkipped "publication-skipped": POSTGRES, POSTGRES, POSTGRES;
    /// A recovery by time would leave out rows that the record shows.
    RecoveryTimeNeedless "recovery-time-needless": USAGE, USAGE, USAGE;
    /// No outbox is on record for the slot in this schema.
    OutboxUndefined "outbox-undefined": POSTGRES, POSTGRES, POSTGRES;
    /// The tables, columns or publication of a command are not those on record.
    OutboxDiffers "outbox-differs": POSTGRES, POSTGRES, POSTGRES;
    /// The publication or its tables were changed while the relay was running.
    PublicationChanged "publication-changed": POSTGRES, POSTGRES, POSTGRES;
    /// The name is not a valid slot name.
    SlotNameInvalid "slot-name-invalid": POSTGRES, POSTGRES, POSTGRES;
    /// The server does not understand a statement.
    StatementNotUnderstood "statement-not-understood": POSTGRES, POSTGRES, POSTGRES;
    /// All replication slots are in use.
    SlotsExhausted "slots-exhausted": POSTGRES, POSTGRES, POSTGRES;
    /// The server has too few slots or too little WAL retention for the request.
    NoCapacity "no-capacity": POSTGRES, POSTGRES, POSTGRES;
    /// The slot does not exist and never existed.
    SlotMissing "slot-missing": POSTGRES, POSTGRES, POSTGRES;
    /// A record is left of a slot that does not exist, and may belong to no relay.
    SlotRecordLeftOver "slot-record-left-over": POSTGRES, POSTGRES, POSTGRES;
    /// The shards on the server do not match the shard in the command.
    ShardsDiffer "shards-differ": POSTGRES, POSTGRES, POSTGRES;
    /// The slot has another type, plugin or database, or is older than its publication.
    SlotUnsuitable "slot-unsuitable": POSTGRES, POSTGRES, POSTGRES;
    /// Little WAL is left before the slot is lost.
    SlotAtRisk "slot-at-risk": POSTGRES, POSTGRES, POSTGRES;
    /// The slot existed, and is missing or invalidated.
    SlotLost "slot-lost": LOST, LOST, LOST;
    /// The positions on record belong to another server.
    PositionsOfAnotherServer "positions-of-another-server": LOST, LOST, LOST;
    /// The server was restored from a disk snapshot while the relay was running.
    ServerRestored "server-restored": LOST, LOST, LOST;
    /// The transaction ids on record belong to another database.
    PositionsOfAnotherDatabase "positions-of-another-database": LOST, LOST, LOST;
    /// An operation on the slot is unfinished, or another process works on it.
    OperationUnfinished "operation-unfinished": WAIT, WAIT, POSTGRES;
    /// The slot is being released, or the process that did it is gone.
    ReleaseInProgress "release-in-progress": WAIT, WAIT, POSTGRES;
    /// The slot was dropped on purpose, and nothing creates it before somebody asks for it.
    SlotReleased "slot-released": WAIT, WAIT, POSTGRES;
    /// Little WAL is left before an anchor is lost.
    AnchorAtRisk "anchor-at-risk": POSTGRES, POSTGRES, POSTGRES;
    /// There is no anchor of this name.
    AnchorNotFound "anchor-not-found": USAGE, USAGE, USAGE;
    /// The server removed WAL that an anchor needed.
    AnchorLost "anchor-lost": USAGE, USAGE, USAGE;
    /// A moment is named, and the outbox has no column with the time of an event.
    TimeColumnMissing "time-column-missing": USAGE, USAGE, USAGE;
    /// The outbox has rows before its first slot, and nothing says what happens to them.
    ExistingRowsUndecided "existing-rows-undecided": USAGE, USAGE, USAGE;
    /// The idempotency key belongs to another event.
    IdempotencyKeyTaken "idempotency-key-taken": USAGE, USAGE, USAGE;
    /// The producer's function refuses an argument of an event.
    EventRefused "event-refused": USAGE, USAGE, USAGE;
    /// The slot is not lost.
    SlotNotLost "slot-not-lost": USAGE, USAGE, USAGE;
    /// Rows that the lost slot may not have settled must still be published.
    RecoveryPending "recovery-pending": POSTGRES, POSTGRES, POSTGRES;
    /// Another session holds the slot.
    SlotHeld "slot-held": STAND_BY, STAND_BY, HELD;
    /// The role may not end the holder's session.
    TakeOverRefused "take-over-refused": HELD, HELD, HELD;

    // The contents of the stream.
    /// A change or row that cannot be read.
    RowUnreadable "row-unreadable": POSTGRES, POSTGRES, POSTGRES;
    /// A row that the server fails to send at every attempt.
    RowUnsendable "row-unsendable": POSTGRES, POSTGRES, POSTGRES;
    /// Another process runs this replay.
    ReplayRunning "replay-running": HELD, HELD, HELD;
    /// A replay is unfinished, and blocks the command.
    ReplayUnfinished "replay-unfinished": USAGE, USAGE, USAGE;
    /// The replay does not exist, or has ended.
    ReplayNotOpen "replay-not-open": USAGE, USAGE, USAGE;
    /// The anchor or the server of an unfinished replay is gone.
    ReplayCannotResume "replay-cannot-resume": USAGE, USAGE, USAGE;
    /// The range of a new replay is not in the WAL behind an anchor.
    ReplayRangeInvalid "replay-range-invalid": USAGE, USAGE, USAGE;
    /// A replay in place would pause more keys than one replay may.
    ReplayTooManyKeys "replay-too-many-keys": USAGE, USAGE, USAGE;
    /// A dead row blocks a key of a replay in place.
    ReplayBlocked "replay-blocked": UNEXPECTED, UNEXPECTED, UNEXPECTED;
    /// A replay reached a row that Pub/Sub never accepts.
    ReplayRowRefused "replay-row-refused": UNEXPECTED, UNEXPECTED, UNEXPECTED;

    // Refusals of an operator's command.
    /// No relay has used the slot, so none of its rows is known to be settled.
    SlotUnrecorded "slot-unrecorded": USAGE, USAGE, USAGE;
    /// No position is recorded for a time.
    TimeUnknown "time-unknown": USAGE, USAGE, USAGE;
    /// The number of shards cannot be changed in this state.
    ReshardBlocked "reshard-blocked": USAGE, USAGE, USAGE;
    /// Anchors would be useless after the command.
    AnchorsInTheWay "anchors-in-the-way": USAGE, USAGE, USAGE;
    /// An anchor of this name exists.
    AnchorExists "anchor-exists": USAGE, USAGE, USAGE;
    /// Rows would never be published, and the operator has not agreed to their number.
    RowsWouldBeSkipped "rows-would-be-skipped": USAGE, USAGE, USAGE;
    /// The server cannot send a row before the new position of the slot.
    UnsendableRowInRange "unsendable-row-in-range": USAGE, USAGE, USAGE;
    /// A position is not where the slot or the anchor can move to.
    PositionOutOfRange "position-out-of-range": USAGE, USAGE, USAGE;
    /// The slot exists, and existing rows can be included only at its creation.
    SlotExists "slot-exists": USAGE, USAGE, USAGE;
    /// The template of a topic cannot be read.
    TopicTemplateInvalid "topic-template-invalid": USAGE, USAGE, USAGE;
    /// A table has no column of this name that is null in unpublished rows.
    UnpublishedColumnMissing "unpublished-column-missing": USAGE, USAGE, USAGE;
    /// A table lacks a column that orders its rows.
    OrderColumnMissing "order-column-missing": USAGE, USAGE, USAGE;
    /// A change needs consent, and there is no terminal to ask at.
    ConsentMissing "consent-missing": USAGE, USAGE, USAGE;
    /// The answer to the question of a command was not yes.
    ConsentDeclined "consent-declined": USAGE, USAGE, USAGE;

    // The consumer.
    /// A consumer's database lacks tables, functions or permissions, or its encoding is not UTF-8.
    InboxUnsuitable "inbox-unsuitable": POSTGRES, POSTGRES, POSTGRES;
    /// A crash of the server would empty a table of the inbox.
    InboxTableUnlogged "inbox-table-unlogged": POSTGRES, POSTGRES, POSTGRES;
    /// The consumer does not exist.
    ConsumerNotFound "consumer-not-found": POSTGRES, POSTGRES, POSTGRES;
    /// A consumer could not be checked.
    ConsumerUnchecked "consumer-unchecked": POSTGRES, POSTGRES, POSTGRES;
    /// The subscription of a consumer harms the order or the retention of its events.
    SubscriptionUnsuitable "subscription-unsuitable": PUBSUB, PUBSUB, PUBSUB;
    /// A rebuild of a consumer is unfinished.
    RebuildUnfinished "rebuild-unfinished": POSTGRES, POSTGRES, POSTGRES;
    /// The inbox has forgotten events that its subscription may still deliver again.
    InboxPrunedTooFar "inbox-pruned-too-far": POSTGRES, POSTGRES, POSTGRES;
    /// Rows of the inbox would be deleted while Pub/Sub may still deliver their events again.
    RetentionTooShort "retention-too-short": USAGE, USAGE, USAGE;
    /// The handler function is missing or unsuitable.
    HandlerUnsuitable "handler-unsuitable": POSTGRES, POSTGRES, POSTGRES;
    /// The consumer is paused and does not catch up.
    ConsumerPaused "consumer-paused": POSTGRES, POSTGRES, POSTGRES;
    /// The database has several consumers, and the command names none.
    ConsumerAmbiguous "consumer-ambiguous": USAGE, USAGE, USAGE;
    /// The consumer exists and reads another subscription.
    ConsumerReadsAnotherSubscription "consumer-reads-another-subscription": USAGE, USAGE, USAGE;
    /// A consumer was paused, and a batch that began before has not ended.
    ConsumerBatchRunning "consumer-batch-running": USAGE, USAGE, USAGE;
    /// The handler fails for every event.
    HandlerFailed "handler-failed": POSTGRES, POSTGRES, POSTGRES;
    /// No handler can be generated for the table.
    ScaffoldTableUnsuitable "scaffold-table-unsuitable": USAGE, USAGE, USAGE;
    /// The consumer has applied no event of the ordering key.
    OrderingKeyNotFound "ordering-key-not-found": USAGE, USAGE, USAGE;
    /// Events of the ordering key were applied since it was shown.
    OrderingKeyChanged "ordering-key-changed": USAGE, USAGE, USAGE;
    /// The SQL that empties a read model failed.
    ResetSqlFailed "reset-sql-failed": USAGE, USAGE, USAGE;
    /// The new subscription of a rebuild is in use, or differs from the old one.
    RebuildSubscriptionUnsuitable "rebuild-subscription-unsuitable": USAGE, USAGE, USAGE;
    /// The filter of the subscription cannot be evaluated on rows of the outbox.
    RebuildSubscriptionFiltered "rebuild-subscription-filtered": USAGE, USAGE, USAGE;
    /// The topic does not retain the messages of a rebuild.
    RebuildBeyondRetention "rebuild-beyond-retention": USAGE, USAGE, USAGE;
    /// Another rebuild of the consumer has begun.
    RebuildConflict "rebuild-conflict": USAGE, USAGE, USAGE;
    /// Rows of the outbox cannot be applied again.
    RebuildRowsUnusable "rebuild-rows-unusable": USAGE, USAGE, USAGE;
    /// The tables of the schema cannot replace those in use.
    RebuildTablesUnsuitable "rebuild-tables-unsuitable": USAGE, USAGE, USAGE;
    /// A foreign key does not allow to replace the rows of a table in use.
    RebuildForeignKeyUnsuitable "rebuild-foreign-key-unsuitable": USAGE, USAGE, USAGE;
    /// A rebuild would lose events or decisions about them.
    RebuildLosesEvents "rebuild-loses-events": USAGE, USAGE, USAGE;
    /// The database has no outbox with rows.
    OutboxEmpty "outbox-empty": USAGE, USAGE, USAGE;
    /// The outbox has no published rows of the ordering keys.
    OrderingKeyWithoutRows "ordering-key-without-rows": USAGE, USAGE, USAGE;
    /// The subscription does not exist.
    SubscriptionNotFound "subscription-not-found": PUBSUB, PUBSUB, PUBSUB;
    /// The subscription exists with settings that cannot be changed as required.
    SubscriptionDiffers "subscription-differs": POSTGRES, POSTGRES, POSTGRES;

    // Events that a command names or compares.
    /// No event with this id is recorded there.
    EventNotFound "event-not-found": USAGE, USAGE, USAGE;
    /// No table that `trace` searched has the event.
    TraceFoundNothing "trace-found-nothing": UNEXPECTED, UNEXPECTED, UNEXPECTED;
    /// The event is finished and cannot be retried, edited or discarded.
    EventAlreadyFinished "event-already-finished": USAGE, USAGE, USAGE;
    /// The recorded message lacks its headers or a value, so it must be edited first.
    EventIncomplete "event-incomplete": USAGE, USAGE, USAGE;
    /// The event was published, and a consumer has not applied it.
    EventNotApplied "event-not-applied": UNEXPECTED, UNEXPECTED, UNEXPECTED;
    /// Dead rows wait for an operator.
    DeadRows "dead-rows": UNEXPECTED, UNEXPECTED, UNEXPECTED;
    /// Published events are missing in an inbox.
    AuditEventsMissing "audit-events-missing": UNEXPECTED, UNEXPECTED, UNEXPECTED;
    /// The selection of an audit has no settled event, so nothing was compared.
    AuditComparedNothing "audit-compared-nothing": USAGE, USAGE, USAGE;
    /// The consumers are in another database, and the command names none of them.
    InboxNotNamed "inbox-not-named": USAGE, USAGE, USAGE;
    /// The demo lost, repeated or reordered a row, or could not continue.
    DemoFailed "demo-failed": UNEXPECTED, UNEXPECTED, UNEXPECTED;

    // Pub/Sub.
    /// No usable Google Cloud credentials were found, or Pub/Sub rejects them.
    PubsubCredentialsMissing "pubsub-credentials-missing": PUBSUB, PUBSUB, PUBSUB;
    /// The account lacks a permission for Pub/Sub.
    PubsubPermissionMissing "pubsub-permission-missing": PUBSUB, PUBSUB, PUBSUB;
    /// The endpoint is not an address.
    PubsubEndpointInvalid "pubsub-endpoint-invalid": PUBSUB, PUBSUB, PUBSUB;
    /// Pub/Sub does not answer.
    PubsubUnreachable "pubsub-unreachable": PUBSUB, PUBSUB, PUBSUB;
    /// The certificates of a private authority for Pub/Sub cannot be used.
    PubsubRootsUnreadable "pubsub-roots-unreadable": PUBSUB, PUBSUB, PUBSUB;
    /// This machine has no certificate authorities.
    CertificateAuthoritiesMissing "certificate-authorities-missing": PUBSUB, PUBSUB, PUBSUB;
    /// Rows have ordering keys, and the endpoint is not regional.
    PubsubEndpointGlobal "pubsub-endpoint-global": PUBSUB, PUBSUB, PUBSUB;
    /// The schema of a topic does not fit the payload.
    TopicSchemaDiffers "topic-schema-differs": PUBSUB, PUBSUB, PUBSUB;
    /// A topic retains no acknowledged messages, so a consumer cannot read them again.
    TopicRetentionMissing "topic-retention-missing": PUBSUB, PUBSUB, PUBSUB;
    /// The outbox rows, and thus the topics, could not be read.
    TopicsUnknown "topics-unknown": PUBSUB, PUBSUB, PUBSUB;
    /// The OpenTelemetry collector cannot be used.
    CollectorUnusable "collector-unusable": UNEXPECTED, UNEXPECTED, UNEXPECTED;
    /// Pub/Sub rejects the name of a topic.
    TopicNameInvalid "topic-name-invalid": PUBSUB, PUBSUB, PUBSUB;
    /// A topic does not exist.
    TopicNotFound "topic-not-found": PUBSUB, PUBSUB, PUBSUB;
    /// Pub/Sub refuses a call for another reason.
    PubsubUnusable "pubsub-unusable": PUBSUB, PUBSUB, PUBSUB;

    // The command line and this machine.
    /// The configuration is invalid.
    ConfigurationInvalid "configuration-invalid": USAGE, USAGE, USAGE;
    /// An argument names an object that does not exist or cannot exist.
    ArgumentInvalid "argument-invalid": USAGE, USAGE, USAGE;
    /// No error has the code that `explain` was given.
    ErrorCodeUnknown "error-code-unknown": USAGE, USAGE, USAGE;
    /// A file cannot be read.
    FileUnreadable "file-unreadable": USAGE, USAGE, USAGE;
    /// Another process already uses a listen address.
    AddressInUse "address-in-use": UNEXPECTED, UNEXPECTED, UNEXPECTED;
    /// This machine lacks a resource.
    LocalResourceUnavailable "local-resource-unavailable": UNEXPECTED, UNEXPECTED, UNEXPECTED;
    /// The tables cannot store a number or text.
    ValueNotRecordable "value-not-recordable": UNEXPECTED, UNEXPECTED, UNEXPECTED;
    /// A signal ended the command early.
    Interrupted "interrupted": UNEXPECTED, UNEXPECTED, UNEXPECTED;
}

impl Code {
    /// Returns the exit code of a command that fails with this code.
    #[must_use]
    pub const fn exit(self) -> Exit {
        match self.action(ErrorContext::Command) {
            Action::Stop(exit) => exit,
            Action::Reconnect | Action::StandBy | Action::Wait => Exit::Unexpected,
        }
    }

    /// Returns the code that decides if several errors occur together.
    ///
    /// A promotion fixes a standby and its consequences. A lost slot is next, because other fixes
    /// may lose its rows. An error that stops the relay outweighs one that ends by itself.
    #[must_use]
    pub fn gravest(codes: impl Iterator<Item = Self>) -> Option<Self> {
        codes.min_by_key(|code| match (code, code.action(ErrorContext::FirstStart)) {
            // All other findings follow from these, or are about another outbox.
            (Self::ServerIsStandby | Self::OutboxUndefined | Self::OutboxDiffers, _) => 0,
            (_, Action::Stop(Exit::SlotLost)) => 1,
            (_, Action::Stop(_)) => 2,
            (_, Action::StandBy | Action::Reconnect | Action::Wait) => 3,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_its_variant_in_kebab_case() {
        for code in Code::ALL {
            let words = code.name().split('-').map(|word| {
                let (first, rest) = word.split_at(1);
                first.to_uppercase() + rest
            });
            assert_eq!(words.collect::<String>(), format!("{code:?}"));
        }
    }

    #[test]
    fn check_exits_as_run_would_stop_for_every_code() {
        for code in Code::ALL {
            let Action::Stop(checked) = code.action(ErrorContext::Command) else {
                panic!("{code:?}: a command that runs once cannot wait");
            };
            match code.action(ErrorContext::FirstStart) {
                Action::Stop(exit) => assert_eq!(checked, exit, "{code:?}"),
                // `run` waits for this condition. `check` must not report a lost slot or a usage
                // error.
                Action::Reconnect | Action::StandBy | Action::Wait => assert!(
                    matches!(checked, Exit::Unexpected | Exit::PostgresSetup | Exit::SlotHeld),
                    "{code:?}"
                ),
            }
        }
    }

    #[test]
    fn an_error_that_stops_a_running_relay_stops_its_start_with_the_same_exit_code() {
        for code in Code::ALL {
            if let Action::Stop(exit) = code.action(ErrorContext::Running) {
                assert_eq!(code.action(ErrorContext::FirstStart), Action::Stop(exit), "{code:?}");
            }
        }
    }

    #[test]
    fn a_running_relay_waits_for_a_state_that_another_command_ends_and_for_another_password() {
        let waits_for = [
            Code::DispatchTableMissing,
            Code::DispatchTableUnlogged,
            Code::DispatchPermissionMissing,
            Code::DispatchRowsHidden,
            Code::ServerRestored,
            Code::OperationUnfinished,
            Code::ReleaseInProgress,
            Code::SlotReleased,
            Code::SlotLost,
            Code::PositionsOfAnotherServer,
            Code::PositionsOfAnotherDatabase,
            Code::AuthenticationFailed,
            Code::PasswordMissing,
            Code::PasswordFileUnreadable,
        ];
        for code in Code::ALL {
            let action = code.action(ErrorContext::Running).awaiting_a_lost_slot();
            assert_eq!(action == Action::Wait, waits_for.contains(code), "{code:?}");
        }
        let first = Code::AuthenticationFailed.action(ErrorContext::FirstStart);
        assert_eq!(first.awaiting_a_lost_slot(), Action::Stop(Exit::PostgresSetup));
    }

    #[test]
    fn a_lost_slot_outweighs_everything_but_a_standby() {
        let gravest = |codes: &[Code]| Code::gravest(codes.iter().copied());
        assert_eq!(gravest(&[]), None);
        assert_eq!(gravest(&[Code::SlotsExhausted, Code::SlotLost]), Some(Code::SlotLost));
        assert_eq!(
            gravest(&[Code::ServerUnsuitable, Code::PositionsOfAnotherServer]),
            Some(Code::PositionsOfAnotherServer)
        );
        assert_eq!(gravest(&[Code::SlotLost, Code::ServerIsStandby]), Some(Code::ServerIsStandby));
    }
}
