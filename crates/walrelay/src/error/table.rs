//! Raises every error code from a constructed error, so that no code describes nothing.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, SystemTime};

use crate::config::Problem;
use pgoutput_parser::{Lsn, Position};
use walrelay_core::{CallCode, Template};
use walrelay_errors::{BoxedError, Code, Coded};
use walrelay_inbox::InboxError;
use walrelay_inbox_admin::RebuildError;
use walrelay_outbox_admin::archive::{ArchiveError, ArchiveProblem};
use walrelay_outbox_admin::protocols::ProtocolError;
use walrelay_outbox_replay::AdminError;
use walrelay_outbox_replay::replay::ReplayError;
use walrelay_outbox_store::{Shard, StoreError, StoreFailure};
use walrelay_pg_client::{PgError, QualifiedName, ServerError, SqlError, TlsError, UNSUPPORTED};
use walrelay_pg_replication::SlotError;
use walrelay_pubsub::{PubsubError, code_of_call};
use walrelay_relay::error::{RelayError, RepeatedSendFailure};
use walrelay_relay::stream::outbox_tables::OtherTable;
use walrelay_relay::stream::pipeline_error::{PipelineError, SendFailurePosition};

use crate::error::{DatabaseSide, Error};

fn text() -> String {
    "x".to_owned()
}

fn broken() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

/// An error of the client library. The parser of its addresses makes one without a server.
fn client_error() -> tokio_postgres::Error {
    "port=none".parse::<tokio_postgres::Config>().expect_err("no port")
}

fn server(sql_state: &str) -> PgError {
    PgError::Server(Box::new(ServerError { code: sql_state.to_owned(), ..ServerError::default() }))
}

fn of_postgres() -> Vec<PgError> {
    let tls = |source| PgError::Tls { host: text(), source };
    let states = [
        "55006", "42704", "42P01", "55000", "53400", "53300", "42501", "25006", "57P01", "3D000",
        "42602", "42601", "WR001", "28P01", "XX000",
    ];
    let others = vec![
        PgError::Resolve { host: text(), source: broken() },
        PgError::ConnectTimeout { address: text(), limit: Duration::ZERO },
        tls(TlsError::NotOffered),
        tls(TlsError::Handshake(io::ErrorKind::InvalidData.into())),
        tls(TlsError::RootPem { source: broken() }),
        tls(TlsError::Unexpected(0)),
        PgError::Pooler,
        PgError::SharedBackend,
        PgError::AuthenticationMethod { method: text(), why: UNSUPPORTED },
        PgError::PasswordMissing,
        PgError::PasswordSource { source: broken() },
        PgError::PasswordFile { path: "x".into(), source: broken() },
        PgError::Scram { source: broken() },
        PgError::WrongSession { wanted: "a primary" },
        PgError::PublicationSkipped(Box::default()),
        PgError::Disconnected,
        PgError::protocol("x"),
    ];
    states.map(server).into_iter().chain(others).collect()
}

fn of_tables() -> Vec<AdminError> {
    let store = |error: StoreError| AdminError::from(error);
    vec![
        SqlError::RowsHidden { tables: text(), role: text(), policies: text() }.into(),
        SqlError::UnexpectedValue { column: "x", value: text(), expected: "y" }.into(),
        SqlError::OutOfRange { what: "x", value: 1 }.into(),
        SlotError::SlotMissing { slot: text() }.into(),
        SlotError::SlotName { name: text() }.into(),
        store(StoreError::UnknownEvent { slot: text(), event_id: text() }),
        store(StoreError::WithoutHeaders { event_id: text() }),
        store(StoreError::AnchorMissing { anchor: text(), others: text() }),
        store(StoreError::AnchorLost { anchor: text() }),
        AdminError::SlotUnusable { slot: text(), problem: text() },
        AdminError::OtherShard { count: 2, wanted: Shard::WHOLE },
        AdminError::NoTimeColumn { table: text() },
        AdminError::NotLost { slot: text() },
        AdminError::ReleaseBegun { slot: text(), what: text() },
        AdminError::SlotReleased { slot: text() },
        AdminError::OtherDatabase { slot: text() },
        AdminError::HorizonTooOld { slot: text(), age: 2_000_000_000 },
        AdminError::TimeNeedless { slot: text() },
        AdminError::OutboxUndefined { slot: text(), others: Vec::new() },
        AdminError::OutboxDiffers { slot: text(), what: text() },
        AdminError::PublicationTaken { publication: text(), table: text() },
        AdminError::OperationUnfinished { slot: text(), what: text() },
        AdminError::InRecovery,
        AdminError::NoRoom(text()),
    ]
}

fn of_the_relay() -> Vec<RelayError> {
    let position = Position { commit_lsn: Lsn::new(1), tx_index: 0 };
    let unsendable = RepeatedSendFailure {
        at: SendFailurePosition::Behind(position),
        attempts: 3,
        rows: text(),
        source: PgError::Disconnected,
    };
    vec![
        RelayError::Session(PipelineError::PublicationChanged { what: text() }),
        RelayError::Session(PipelineError::OtherTable(OtherTable {
            commit_lsn: Lsn::new(1),
            table: QualifiedName::new("public", "orders"),
            publication: text(),
        })),
        RelayError::Store(StoreFailure::NotRecorded(text())),
        RelayError::Unsendable(Box::new(unsendable)),
        RelayError::TakeOver { holder: text(), source: client_error() },
        RelayError::ServerRestored { wal_end: Lsn::new(1), read_to: Lsn::new(2) },
        RelayError::Survey(BoxedError::new(AdminError::InRecovery)),
        RelayError::Setup { code: Code::RecoveryPending, summary: text() },
    ]
}

fn of_the_inbox() -> Vec<InboxError> {
    let consumer = text;
    vec![
        InboxError::Inbox { problem: text() },
        InboxError::Unlogged { tables: vec![text()] },
        InboxError::Encoding { database: text(), encoding: text() },
        InboxError::Paused { consumer: consumer() },
        InboxError::Refused { problem: text() },
        InboxError::Unregistered { consumer: consumer() },
        InboxError::SeveralConsumers { names: text() },
        InboxError::OtherSubscription { consumer: consumer(), subscription: text() },
        InboxError::Handler { handler: text(), problem: text() },
        InboxError::Reset(client_error()),
        InboxError::AlreadyFinished { event_id: text(), action: "retried" },
        InboxError::UnknownKey { consumer: consumer(), ordering_key: text() },
        InboxError::KeyMoved { ordering_key: text() },
        InboxError::Table { table: text(), problem: "x" },
        InboxError::SubscriptionMissing { subscription: text() },
        InboxError::KeysNeeded,
        InboxError::RetentionTooShort {
            subscription: text(),
            older_than: Duration::ZERO,
            least: Duration::ZERO,
        },
        InboxError::OtherKind { subscription: text(), differs: text() },
    ]
}

fn of_pubsub() -> Vec<PubsubError> {
    vec![
        PubsubError::Endpoint { text: text(), problem: "x" },
        PubsubError::Credentials("x".into()),
        PubsubError::NoAuthorities,
        PubsubError::Roots { problem: text() },
        PubsubError::Setting { name: "x", problem: "y" },
        PubsubError::NoAnswer {
            endpoint: text(),
            action: "create",
            topic: text(),
            waited: Duration::ZERO,
            source: None,
        },
    ]
}

fn of_replays() -> Vec<ReplayError> {
    vec![
        ReplayError::NoAnchor { from: Lsn::new(1) },
        ReplayError::TooManyKeys,
        ReplayError::KeyIsPaused { other: text() },
        ReplayError::Missing { id: text(), slot: text() },
        ReplayError::OtherServer { id: text() },
        ReplayError::Running { id: text() },
        ReplayError::BehindDeadRow { id: text(), rows: 1 },
        ReplayError::Stopped { id: text(), published: 1 },
        ReplayError::OrderColumnMissing { table: QualifiedName::new("x", "x"), column: text() },
    ]
}

fn archive_error(problem: ArchiveProblem) -> ArchiveError {
    let location = "s3://bucket".parse().expect("a location");
    ArchiveError::new("open", location, problem, text())
}

fn of_protocols() -> Vec<ProtocolError> {
    vec![
        ProtocolError::PruneDenied { table: text(), source: Box::new(PgError::Disconnected) },
        ProtocolError::Archive(archive_error(ArchiveProblem::Credentials)),
        ProtocolError::Archive(archive_error(ArchiveProblem::Missing)),
        ProtocolError::Archive(archive_error(ArchiveProblem::Permission)),
        ProtocolError::Archive(archive_error(ArchiveProblem::Unreachable)),
        ProtocolError::Archive(archive_error(ArchiveProblem::Other)),
        ProtocolError::NoOutbox { table: text() },
        ProtocolError::WalLevel { level: text() },
        ProtocolError::PublicationMissing { publication: text() },
        ProtocolError::TopicMissing { topic: text() },
        ProtocolError::SlotUnrecorded { slot: text() },
        ProtocolError::TimeUnknown { time: SystemTime::UNIX_EPOCH, earliest: None },
        ProtocolError::ReshardRunning,
        ProtocolError::AnchorsInTheWay { slot: text(), names: Vec::new() },
        ProtocolError::AnchorExists { anchor: text() },
        ProtocolError::DropLosesRows { slot: text(), rows: 1 },
        ProtocolError::RecordLosesRows { slot: text(), rows: 1 },
        ProtocolError::UnsendableRowBefore { at: text(), answer: text() },
        ProtocolError::AnchorAhead { anchor: text(), here: Lsn::new(2), to: Lsn::new(1) },
        ProtocolError::SlotExists { slot: text() },
        ProtocolError::TopicTemplate {
            template: text(),
            error: Template::parse("{").expect_err("no template"),
        },
        ProtocolError::EarlierRows { slot: text(), rows: Vec::new() },
        ProtocolError::AttributeColumnMissing { table: text(), column: text() },
        ProtocolError::UnpublishedColumnMissing { table: text(), column: text() },
        ProtocolError::UnpublishedColumnNeverNull { table: text(), column: text() },
        ProtocolError::ConditionRefused { problem: text() },
    ]
}

fn of_rebuilds() -> Vec<RebuildError> {
    let (consumer, subscription) = (text, text);
    vec![
        RebuildError::SubscriptionDiffers { subscription: subscription() },
        RebuildError::TopicWithoutRows { topic: text(), is_filtered: false },
        RebuildError::FilterOnPosition { subscription: subscription(), attribute: "tx_index" },
        RebuildError::TopicRetainsNothing { consumer: consumer(), topic: text() },
        RebuildError::TimeInFuture { since: SystemTime::UNIX_EPOCH },
        RebuildError::RebuildRunning { consumer: consumer(), holder: None },
        RebuildError::ForeignKeyConflicts { keys: Vec::new() },
        RebuildError::RowsUnusable { rows: 1, named: Vec::new() },
        RebuildError::SchemaEmpty { schema: text() },
        RebuildError::KeyEventsLost { edited: 1, discarded: 0, lost: 0, failure: None },
        RebuildError::KeysWithoutRows,
    ]
}

fn of_the_shell() -> Vec<Error> {
    let denied = || Box::new(Error::Interrupted);
    vec![
        Error::MayNotLook { side: DatabaseSide::Outbox, grant: None, source: denied() },
        Error::MayNotLook { side: DatabaseSide::Inbox, grant: None, source: denied() },
        Error::slot_lost("s", "is gone"),
        Error::Config(vec![Problem {
            option: text(),
            value: None,
            origin: None,
            allowed: text(),
            code: Code::ConfigurationInvalid,
        }]),
        Error::refused(Code::DemoFailed, text()),
        Error::Listen {
            address: ([127, 0, 0, 1], 1).into(),
            source: io::ErrorKind::AddrInUse.into(),
        },
        Error::Io { action: text(), source: broken() },
        Error::File { path: text(), source: broken() },
        Error::refused(Code::AuditEventsMissing, text()),
        Error::refused(Code::AuditComparedNothing, text()),
        Error::refused(Code::InboxNotNamed, text()),
        Error::refused(Code::TraceFoundNothing, text()),
        Error::refused(Code::EventNotApplied, text()),
        Error::Interrupted,
        Error::refused(Code::ConsumerBatchRunning, text()),
        Error::refused(Code::ConsentMissing, text()),
        Error::refused(Code::ConsentDeclined, text()),
        Error::refused(Code::IdempotencyKeyTaken, text()),
        Error::refused(Code::EventRefused, text()),
        Error::refused(Code::ErrorCodeUnknown, text()),
    ]
}

/// The codes that only a finding of `check`, a log message or a mapping within another crate gives.
/// Tests of their crates raise them.
const ONLY_IN_FINDINGS: [Code; 33] = [
    Code::ServerStalled,
    Code::PartitionsMissing,
    Code::DefaultPartitionUsed,
    Code::ServerTooOld,
    Code::ReplicationPermissionMissing,
    Code::DatabaseEncodingUnchecked,
    Code::WalRetentionUnsuitable,
    Code::WalSenderTimeoutOff,
    Code::WalBudgetTooLarge,
    Code::PayloadTypeConverted,
    Code::OutboxColumnMissing,
    Code::DispatchTableMissing,
    Code::DispatchTableUnlogged,
    Code::DispatchPermissionMissing,
    Code::DispatchRowsHidden,
    Code::PublicationUnsuitable,
    Code::SlotAtRisk,
    Code::SlotRecordLeftOver,
    Code::PositionsOfAnotherServer,
    Code::AnchorAtRisk,
    Code::ConsumerUnchecked,
    Code::SubscriptionUnsuitable,
    Code::RebuildUnfinished,
    Code::InboxPrunedTooFar,
    Code::DeadRows,
    Code::PubsubEndpointGlobal,
    Code::TopicRetentionMissing,
    Code::TopicSchemaDiffers,
    Code::TopicsUnknown,
    Code::CollectorUnusable,
    Code::TopicNameInvalid,
    // A statement's error in the consumer's database, which needs a server.
    Code::ConsumerPermissionMissing,
    Code::RowUnreadable,
];

#[test]
fn every_code_is_raised_by_a_constructed_error_or_a_finding() {
    let mut raised: BTreeSet<&str> = BTreeSet::new();
    let mut raise = |errors: &mut dyn Iterator<Item = Error>| {
        raised.extend(errors.map(|error| error.code().name()));
    };
    raise(&mut of_postgres().into_iter().map(Error::Postgres));
    raise(&mut of_tables().into_iter().map(Error::Store));
    raise(&mut of_the_relay().into_iter().map(Error::Relay));
    raise(&mut of_the_inbox().into_iter().map(Error::Inbox));
    raise(&mut of_pubsub().into_iter().map(Error::PubSub));
    raise(&mut of_replays().into_iter().map(Error::from));
    raise(&mut of_protocols().into_iter().map(Error::from));
    raise(&mut of_rebuilds().into_iter().map(Error::from));
    raise(&mut of_the_shell().into_iter());
    raised.extend(CallCode::ALL.map(|code| code_of_call(code).name()));
    raised.extend(ONLY_IN_FINDINGS.map(Code::name));
    let declared: BTreeSet<&str> = Code::ALL.iter().map(|code| code.name()).collect();
    let unraised: Vec<_> = declared.difference(&raised).collect();
    assert!(unraised.is_empty(), "no constructed error has these codes: {unraised:?}");
}
