//! Reads the status report: from the databases, and from the relay.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use walrelay_core::WalBudgetLimit;
use walrelay_errors::{Chain, Code, Coded};
use walrelay_inbox::InboxError;
use walrelay_inbox_admin::admin::registered;
use walrelay_inbox_admin::consumer_status::{ConsumerStatus, consumer_status};
use walrelay_outbox_admin::protocols::{every_shard, refuse_other_shards};
use walrelay_outbox_admin::{
    ConsumerBacklog, NextStep, RebuildReport, RelayAnswer, Severity, StatusReport, StepScope,
    read_status, read_table_sizes,
};
use walrelay_outbox_replay::{
    AdminError, SlotOperation, TopicReplay, named_definition, read_operation, visible_replays,
};
use walrelay_outbox_store::{
    Outbox, RelayRow, is_same_origin, read_anchors, read_recorded_system_identifier, read_relay_row,
};
use walrelay_pg_client::{SqlClient, connect_shared};
use walrelay_pg_replication::read_retention;
use walrelay_relay::observe::report::{ServiceReport, SlotReport};
use walrelay_relay::shutdown::Shutdown;

use super::super::shared::cancellable::attended;
use crate::config::{DatabaseConfig, InboxPlace};
use crate::error::fixes::protocol::finishing_command;
use crate::error::{Error, explain};
use crate::status::{Summary, finishing_step};

pub(super) struct StatusSources {
    pub(super) database: DatabaseConfig,
    /// HTTP address of the relay.
    pub(super) relay: Option<SocketAddr>,
    /// Consumers in other databases.
    pub(super) inboxes: Vec<InboxPlace>,
    /// The relay's `--wal-budget`.
    pub(super) wal_budget: WalBudgetLimit,
}

/// Timeout for the relay's answer, which comes from memory.
const RELAY_TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of the relay's answer: more than ten heavy keys of maximum length need.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// A report to print, and the error that the command ends with.
pub(super) struct StatusReading {
    pub(super) report: StatusReport,
    /// Why the slot could not be reported on, if it is missing, lost or being replaced.
    pub(super) failure: Option<Error>,
}

/// Reads the report. If a lock blocks the query, it logs the blocking sessions meanwhile.
pub(super) async fn read(
    client: &SqlClient,
    sources: &StatusSources,
    shutdown: &Shutdown,
) -> Result<StatusReading, Error> {
    let connect = &sources.database.connect;
    attended(connect, client, Box::pin(report_now(client, sources)), shutdown).await
}

/// Reads the report of the slot or of all shards, and asks the relay if `--relay` was given.
async fn report_now(client: &SqlClient, sources: &StatusSources) -> Result<StatusReading, Error> {
    let outbox = &sources.database.outbox;
    refuse_slot_of_others(client, outbox).await?;
    let shards = match outbox.shard.is_whole() {
        true => every_shard(client, outbox).await?,
        false => vec![outbox.clone()],
    };
    let relay = match sources.relay {
        Some(address) => Some(relay_answer(address).await),
        None => None,
    };
    let StatusReading { report, failure } = match shards.as_slice() {
        [one] => {
            refuse_other_shards(client, outbox).await?;
            let found = slot_report(client, one, sources.wal_budget).await;
            match found.map(|report| StatusReport { relay: relay.clone(), ..report }) {
                Ok(report) => StatusReading { report: with_summary(report), failure: None },
                Err(error) if !is_about_the_slot(&error) => return Err(error),
                // Without a slot the report is its state and the next step. The command still fails.
                Err(error) => {
                    let report = report_without_slot(client, one, &error).await?;
                    let failure = Some(failure_of(&report, one, error));
                    StatusReading { report, failure }
                }
            }
        }
        all => StatusReading {
            report: report_of_all(client, outbox, all, sources.wal_budget).await?,
            failure: None,
        },
    };
    let mut rebuilds = unfinished_rebuilds(client).await;
    let report = StatusReport {
        consumers: backlogs(client, &sources.inboxes, &mut rebuilds).await,
        rebuilds,
        tables: read_table_sizes(client, &outbox.tables).await?,
        relay,
        ..report
    };
    let report = Summary::in_report(&report).with_consumers(&report).into_report(report);
    Ok(StatusReading { report, failure })
}

/// Returns whether the error reports the state of the slot. Any other error, such as a missing
/// permission, says nothing about the slot.
/// Refuses a slot that no outbox of the schema has, where there are outboxes: the figures would be those of
/// another one. Before the first set-up, the report says what is missing.
async fn refuse_slot_of_others(client: &SqlClient, outbox: &Outbox) -> Result<(), Error> {
    let (_, definition) = named_definition(client, Some(outbox.base_slot())).await?;
    let is_of_others = |error: &AdminError| matches!(error, AdminError::OutboxUndefined { others, .. } if !others.is_empty());
    match definition.err().filter(is_of_others) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

fn is_about_the_slot(error: &Error) -> bool {
    matches!(
        error.code(),
        Code::SlotMissing
            | Code::SlotLost
            | Code::ReleaseInProgress
            | Code::SlotReleased
            | Code::OperationUnfinished
    )
}

/// Returns unfinished rebuilds of consumers in this database, or none if the role may not read
/// them.
async fn unfinished_rebuilds(client: &SqlClient) -> Vec<RebuildReport> {
    let consumers = registered(client, None).await.unwrap_or_default();
    let unfinished = consumers.into_iter().filter_map(|it| {
        let report = it.rebuild?.report();
        Some(RebuildReport { consumer: it.consumer, report })
    });
    unfinished.collect()
}

/// Returns the backlog of the named consumers, or of the consumers in the database of the outbox. A
/// backlog that cannot be read is reported with its reason. Adds the unfinished rebuilds of named
/// consumers.
async fn backlogs(
    client: &SqlClient,
    inboxes: &[InboxPlace],
    rebuilds: &mut Vec<RebuildReport>,
) -> Vec<ConsumerBacklog> {
    let mut backlogs = Vec::new();
    for place in inboxes {
        let status = async {
            let there = connect_shared(&place.connect).await.map_err(InboxError::Connect)?;
            let status = consumer_status(&there, &place.consumer).await;
            there.close().await;
            status
        };
        let status = status.await;
        let report = status.as_ref().ok().and_then(|it| it.rebuild.clone());
        let consumer = &place.consumer;
        let is_known = rebuilds.iter().any(|it| it.consumer == *consumer);
        if let Some(report) = report.filter(|_| !is_known) {
            rebuilds.push(RebuildReport { consumer: consumer.clone(), report });
        }
        backlogs.push(backlog(consumer, status));
    }
    if inboxes.is_empty() {
        for consumer in registered(client, None).await.unwrap_or_default() {
            let status = consumer_status(client, &consumer.consumer).await;
            backlogs.push(backlog(&consumer.consumer, status));
        }
    }
    backlogs
}

fn backlog(consumer: &str, status: Result<ConsumerStatus, InboxError>) -> ConsumerBacklog {
    let consumer = consumer.to_owned();
    match status {
        Ok(status) => ConsumerBacklog {
            consumer,
            error: None,
            paused: status.paused,
            retrying: status.events.retrying,
            dead: status.events.dead,
            keys_held: status.keys_held,
            oldest_waiting_seconds: status.oldest_waiting_seconds,
            received_last_minute: status.received_last_minute,
        },
        Err(error) => {
            let error = Some(Chain(&error).to_string());
            ConsumerBacklog { consumer, error, ..ConsumerBacklog::default() }
        }
    }
}

/// Reads the report of one slot, without a summary.
async fn slot_report(
    client: &SqlClient,
    outbox: &Outbox,
    wal_budget: WalBudgetLimit,
) -> Result<StatusReport, Error> {
    let report = read_status(client, &outbox.slot, finishing_command).await?;
    let retention = read_retention(client).await?;
    Ok(StatusReport {
        wal_budget_bytes: wal_budget.bytes(retention),
        wal_limit_bytes: retention.bytes(),
        shard: (!outbox.shard.is_whole()).then(|| outbox.shard.to_string()),
        ..report
    })
}

/// Adds the summary to the report of one slot. If the slot is a shard, the next step names it.
fn with_summary(report: StatusReport) -> StatusReport {
    let summary = Summary::of(&report);
    let summary = match &report.shard {
        Some(shard) => summary.of_shard(shard),
        None => summary,
    };
    summary.into_report(report)
}

/// Reads the reports of all shards. An error of one shard does not hide the other shards.
async fn report_of_all(
    client: &SqlClient,
    outbox: &Outbox,
    shards: &[Outbox],
    wal_budget: WalBudgetLimit,
) -> Result<StatusReport, Error> {
    let mut reports = Vec::new();
    for shard in shards {
        let report = match slot_report(client, shard, wal_budget).await {
            Ok(report) => Summary::of(&report).into_report(report),
            Err(error @ (Error::Store(AdminError::Sql { .. }) | Error::Postgres(_))) => {
                return Err(error);
            }
            Err(error) => report_without_slot(client, shard, &error).await?,
        };
        reports.push(StatusReport { shard: Some(shard.shard.to_string()), ..report });
    }
    let summary = Summary::worst_of_shards(&reports);
    let oldest = reports.iter().filter_map(|shard| shard.oldest_unpublished_seconds);
    let report = StatusReport {
        oldest_unpublished_seconds: oldest.max_by(f64::total_cmp),
        // A replay that reads the whole outbox belongs to no single shard.
        replays: TopicReplay::among(&visible_replays(client, &outbox.slot).await?),
        shards: reports,
        ..StatusReport::default()
    };
    Ok(summary.or_abandoned_replay(&report).into_report(report))
}

/// Returns the error of a report, whose fix is the report's next step.
fn failure_of(report: &StatusReport, shard: &Outbox, error: Error) -> Error {
    match &report.next_step {
        Some(step) if step.code.as_deref() == Some(Code::PositionsOfAnotherDatabase.name()) => {
            AdminError::OtherDatabase { slot: shard.slot.clone() }.into()
        }
        Some(_) | None => error,
    }
}

/// Reports a slot that is missing, lost or being replaced: its state and the next step.
async fn report_without_slot(
    client: &SqlClient,
    shard: &Outbox,
    error: &Error,
) -> Result<StatusReport, Error> {
    let headline = Chain(error).to_string();
    let row = read_relay_row(client, &shard.slot).await.unwrap_or_default();
    let state = SlotReport {
        slot: shard.slot.clone(),
        lost: error.code() == Code::SlotLost,
        settled_transactions: row.as_ref().and_then(RelayRow::horizon_age),
        ..SlotReport::default()
    };
    let begun = if let Error::Store(AdminError::OperationUnfinished { slot, .. }) = error {
        read_operation(client, slot).await?
    } else {
        None
    };
    let needs_time = match row {
        Some(row) => needs_time(client, shard, &row).await.unwrap_or(false),
        None => false,
    };
    let step = match &begun {
        Some(SlotOperation::Release(_)) | None if needs_time => {
            let code = Code::PositionsOfAnotherDatabase;
            NextStep::of(code, explain::fix(code))
        }
        // The general hint covers every kind of operation, so it is replaced by the next step for
        // this one.
        Some(begun @ SlotOperation::Resharding(_)) => {
            let step = finishing_step(&finishing_command(begun));
            NextStep { scope: StepScope::AllShards, ..step }
        }
        Some(begun) => finishing_step(&finishing_command(begun)),
        None => {
            let from_anchor = reset_instead(client, &shard.slot, error).await;
            NextStep::of(error.code(), error.next_step() + &from_anchor)
        }
    };
    let (severity, next_step) = (Severity::Bad, Some(step));
    let report = StatusReport { headline, severity, next_step, ..StatusReport::of_slot(state) };
    Ok(Summary::in_report(&report).with_old_horizon(&report).into_report(report))
}

/// Returns the other cure of a lost slot, if an anchor has the WAL since.
async fn reset_instead(client: &SqlClient, slot: &str, error: &Error) -> String {
    if error.code() != Code::SlotLost {
        return String::new();
    }
    let anchors = read_anchors(client, slot).await.unwrap_or_default();
    match anchors.iter().rfind(|anchor| !anchor.slot.is_lost()) {
        Some(anchor) => format!(
            " Or stream the rows again, each at its position: `walrelay slot reset --to-anchor {}`.",
            anchor.name
        ),
        None => String::new(),
    }
}

/// Returns whether a recovery needs a time. The record of the slot came with a dump or a copy of the
/// database, or is too old.
async fn needs_time(client: &SqlClient, outbox: &Outbox, row: &RelayRow) -> Result<bool, Error> {
    let Outbox { slot, tables, .. } = outbox;
    let here = read_recorded_system_identifier(client, slot).await?;
    Ok(row.is_horizon_too_old()
        || (here != row.system_identifier && !is_same_origin(client, slot, tables).await?))
}

/// Asks the relay. A relay that does not answer is a part of the report.
async fn relay_answer(address: SocketAddr) -> RelayAnswer {
    let asked = timeout(RELAY_TIMEOUT, ask(address)).await;
    match asked.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
        Ok(ServiceReport { relay, .. }) => RelayAnswer { unreachable: None, report: Some(relay) },
        Err(error) => {
            RelayAnswer { unreachable: Some(format!("{address}: {error}")), report: None }
        }
    }
}

/// Reads the relay's own state from its `/status`.
async fn ask(address: SocketAddr) -> std::io::Result<ServiceReport> {
    let mut socket = TcpStream::connect(address).await?;
    // With HTTP/1.0 the answer is not chunked, and ends with the connection.
    let request = format!("GET /status HTTP/1.0\r\nHost: {address}\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    socket.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    let text = String::from_utf8_lossy(&answer);
    let (_, body) = text.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::InvalidData)?;
    Ok(serde_json::from_str(body)?)
}
