//! `walrelay status`: prints the headline and the next step first, then the slot, its WAL and
//! dispatch state.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use walrelay_core::WalBudgetLimit;
use walrelay_errors::{Chain, Code, Coded};
use walrelay_inbox::operator::admin::registered;
use walrelay_outbox_admin::{AdminError, read_operation};
use walrelay_outbox_admin::{replays_of, report};
use walrelay_outbox_store::Outbox;
use walrelay_pg_client::{SqlClient, connect_sql};
use walrelay_pg_replication::read_retention;
use walrelay_relay::observe::report::rfc3339;
use walrelay_relay::shutdown::Shutdown;

use super::shared::cancellable::attended;
use super::shared::preconditions::{every_shard, refuse_other_shards};
use super::status_summary::{Standing, finishing, sections};
use crate::config::{OutputFormat, StatusConfig};
use crate::error::Error;
use crate::output::{ColourMode, Reader, Tone, print, print_part, show};

/// Timeout for the relay's answer, which comes from memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most bytes of the relay's answer: more than ten heavy keys of maximum length need.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Prints the report once, or repeatedly with `--watch`.
///
/// # Errors
///
/// Postgres cannot be reached, the slot is missing or lost, or dispatch state does not exist.
pub async fn execute(config: StatusConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let Some(interval) = config.watch else {
        return tokio::select! {
            done = once(&config, shutdown) => done,
            () = shutdown.requested() => Err(Error::Interrupted),
        };
    };
    // A signal is the normal end of `--watch`, so it is no error.
    tokio::select! {
        done = watch(&config, interval, shutdown) => done,
        () = shutdown.requested() => Ok(()),
    }
}

async fn once(config: &StatusConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let client = connect_sql(&config.database.connect).await?;
    let report = look(&client, config, shutdown).await;
    client.close().await;
    let StatusReport { fields: report, failure } = report.map_err(Error::for_read_only_command)?;
    print(&text(&report, config.format, ColourMode::of_output()))?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let shards = report.get("shards").and_then(Value::as_array);
    let mut all = shards.into_iter().flatten().filter_map(Value::as_object).chain([&report]);
    let Some(lost) = all.find(|one| one.get("lost") == Some(&Value::Bool(true))) else {
        return Ok(());
    };
    let text = |name| lost.get(name).and_then(Value::as_str);
    let how = match text("wal_status") {
        Some("lost") => "is invalidated",
        Some(_) => {
            "is another slot of the same name than the one on record, or one that pg_upgrade has carried over"
        }
        None => "no longer exists",
    };
    Err(Error::SlotLost { slot: text("slot").unwrap_or_default().to_owned(), how })
}

/// Reads the report. If a lock blocks the query, it logs the blocking sessions meanwhile.
async fn look(
    client: &SqlClient,
    config: &StatusConfig,
    shutdown: &Shutdown,
) -> Result<StatusReport, Error> {
    let connect = &config.database.connect;
    attended((connect, client), Box::pin(report_now(client, config)), shutdown).await
}

/// Reads the report of the slot or of all shards, and asks the relay if `--relay` was given.
async fn report_now(client: &SqlClient, config: &StatusConfig) -> Result<StatusReport, Error> {
    let outbox = &config.database.outbox;
    let shards = match outbox.shard.is_whole() {
        true => every_shard(client, outbox).await?,
        false => vec![outbox.clone()],
    };
    let (mut report, failure) = match shards.as_slice() {
        [one] => {
            refuse_other_shards(client, outbox).await?;
            match slot_report_with_summary(client, (one, config.wal_budget)).await {
                Ok(mut report) => {
                    insert_summary(&mut report, ShardNaming::Shard);
                    (report, None)
                }
                Err(error) if !is_about_the_slot(&error) => return Err(error),
                // Without a slot the report is its state and the next step. The command still fails.
                Err(error) => (report_without_slot(client, one, &error).await?, Some(error)),
            }
        }
        all => (report_of_all(client, (outbox, all), config.wal_budget).await?, None),
    };
    let rebuilds = unfinished_rebuilds(client).await;
    if !rebuilds.is_empty() {
        report.insert("rebuilds".into(), Value::Array(rebuilds));
    }
    if let Some(address) = config.relay {
        let asked = timeout(PATIENCE, ask(address)).await;
        let told = match asked.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
            Ok(told) => told,
            Err(error) => json!({ "unreachable": format!("{address}: {error}") }),
        };
        report.insert("relay".into(), told);
        if !report.contains_key("shards") && failure.is_none() {
            insert_summary(&mut report, ShardNaming::Shard);
        }
    }
    Ok(StatusReport { fields: report, failure })
}

/// Returns whether the error reports the state of the slot. Any other error, such as a missing
/// permission, says nothing about the slot.
fn is_about_the_slot(error: &Error) -> bool {
    matches!(
        error.code(),
        Code::SlotMissing
            | Code::SlotLost
            | Code::UpgradeInProgress
            | Code::UpgradePrepared
            | Code::OperationUnfinished
    )
}

/// A report to print, and the error that the command ends with.
struct StatusReport {
    fields: Map<String, Value>,
    /// Why the slot could not be reported on, if it is missing, lost or being replaced.
    failure: Option<Error>,
}

/// Returns unfinished rebuilds of consumers in this database, or none if the role may not read
/// them.
async fn unfinished_rebuilds(client: &SqlClient) -> Vec<Value> {
    let consumers = registered(client, None).await.unwrap_or_default();
    let unfinished = consumers.into_iter().filter_map(|it| {
        let report = it.rebuild?.report(&it.consumer);
        Some(json!({ "consumer": it.consumer, "report": report }))
    });
    unfinished.collect()
}

/// Reads the report of one slot, with its summary.
async fn slot_report_with_summary(
    client: &SqlClient,
    (outbox, wal_budget): (&Outbox, WalBudgetLimit),
) -> Result<Map<String, Value>, Error> {
    let mut report = report(client, &outbox.slot).await?;
    let retention = read_retention(client).await?;
    report.insert("wal_budget_bytes".into(), json!(wal_budget.bytes(retention)));
    report.insert("wal_bound_bytes".into(), json!(retention.bytes()));
    if !outbox.shard.is_whole() {
        report.insert("shard".into(), json!(outbox.shard.to_string()));
    }
    insert_summary(&mut report, ShardNaming::Nothing);
    Ok(report)
}

/// Whether the advice names the shard.
#[derive(Clone, Copy)]
enum ShardNaming {
    /// The advice names no shard, because the summary of all shards names one.
    Nothing,
    /// The advice names the shard, if the report is about a shard.
    Shard,
}

fn insert_summary(report: &mut Map<String, Value>, naming: ShardNaming) {
    let standing = match (naming, report.get("shard").and_then(Value::as_str)) {
        (ShardNaming::Shard, Some(shard)) => Standing::of(report).of_shard(shard),
        (ShardNaming::Shard, None) | (ShardNaming::Nothing, _) => Standing::of(report),
    };
    report.insert("headline".into(), json!(standing.headline));
    report.insert("advice".into(), json!(standing.advice));
}

/// Reads the reports of all shards. An error of one shard does not hide the other shards.
async fn report_of_all(
    client: &SqlClient,
    (outbox, shards): (&Outbox, &[Outbox]),
    wal_budget: WalBudgetLimit,
) -> Result<Map<String, Value>, Error> {
    let (mut reports, mut standings) = (Vec::new(), Vec::new());
    for shard in shards {
        let name = shard.shard.to_string();
        let mut report = match slot_report_with_summary(client, (shard, wal_budget)).await {
            Ok(report) => report,
            Err(error @ (Error::Store(AdminError::Sql { .. }) | Error::Postgres(_))) => {
                return Err(error);
            }
            Err(error) => report_without_slot(client, shard, &error).await?,
        };
        report.insert("shard".into(), json!(name));
        standings.push((name, Standing::told(&report)));
        reports.push(Value::Object(report));
    }
    let mut report = Map::new();
    // A replay that reads the whole outbox belongs to no single shard.
    report.insert("replays".into(), replays_of(client, &outbox.slot).await?);
    let standing = Standing::worst_of_shards(&standings).or_abandoned_replay(&report);
    report.insert("headline".into(), json!(standing.headline));
    report.insert("advice".into(), json!(standing.advice));
    report.insert("shards".into(), Value::Array(reports));
    Ok(report)
}

/// Reports a slot that is missing, lost or being replaced: its state and the next step.
async fn report_without_slot(
    client: &SqlClient,
    shard: &Outbox,
    error: &Error,
) -> Result<Map<String, Value>, Error> {
    let mut advice = error.next_step();
    // The general hint covers every kind of operation, so it is replaced by the next step for this
    // one.
    if let Error::Store(AdminError::OperationUnfinished { slot, .. }) = error
        && let Some(begun) = read_operation(client, slot).await?
    {
        advice = finishing(&begun.finishing_command());
    }
    let report = json!({
        "slot": shard.slot,
        "active": false,
        "lost": error.code() == Code::SlotLost,
        "headline": Chain(error).to_string(),
        "advice": advice,
    });
    Ok(report.as_object().cloned().unwrap_or_default())
}

/// Reads the relay's own state from its `/status`.
async fn ask(address: SocketAddr) -> std::io::Result<Value> {
    let mut socket = TcpStream::connect(address).await?;
    // With HTTP/1.0 the answer is not chunked, and ends with the connection.
    let request = format!("GET /status HTTP/1.0\r\nHost: {address}\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    socket.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    let text = String::from_utf8_lossy(&answer);
    let (_, body) = text.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::InvalidData)?;
    let status: Value = serde_json::from_str(body)?;
    status.get("relay").cloned().ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

/// Shows report after report until the reader is gone: on a terminal in place, elsewhere one below
/// the other. Errors are shown and retried, so that the user sees when the server is back.
async fn watch(
    config: &StatusConfig,
    interval: Duration,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let place = match std::io::stdout().is_terminal() {
        true => Place::Terminal(ColourMode::of_output()),
        false => Place::Pipe,
    };
    let mut client = None;
    loop {
        let report = refresh(&mut client, config, shutdown).await;
        if report.is_err() {
            client = None;
        }
        let shown = watched(&report, config.format, (place, SystemTime::now()));
        let reader = match place {
            Place::Terminal(_) => show(&shown)?,
            Place::Pipe => print_part(&shown)?,
        };
        if reader == Reader::Gone {
            return Ok(());
        }
        sleep(interval).await;
    }
}

/// Where the reports of `--watch` go.
#[derive(Clone, Copy)]
enum Place {
    /// Each report replaces the one before.
    Terminal(ColourMode),
    /// Each report follows the one before.
    Pipe,
}

/// Formats one of many reports. In a pipe each text report starts with its time, and each JSON
/// report is one line.
fn watched(
    report: &Result<Map<String, Value>, Error>,
    format: OutputFormat,
    (place, now): (Place, SystemTime),
) -> String {
    let shown = |paint: ColourMode| match report {
        Ok(report) => text(report, format, paint),
        Err(error) => format!("{}\n", paint.text(Tone::Bad, &error.report())),
    };
    match (place, format) {
        (Place::Terminal(paint), _) => shown(paint),
        (Place::Pipe, OutputFormat::Text) => {
            format!("--- {}\n{}", rfc3339(now), shown(ColourMode::PlainHarness))
        }
        (Place::Pipe, OutputFormat::Json) => {
            let mut line = match report {
                Ok(report) => report.clone(),
                Err(error) => [("error".to_owned(), json!(error.report()))].into_iter().collect(),
            };
            line.insert("at".into(), json!(rfc3339(now)));
            format!("{}\n", Value::Object(line))
        }
    }
}

async fn refresh(
    client: &mut Option<SqlClient>,
    config: &StatusConfig,
    shutdown: &Shutdown,
) -> Result<Map<String, Value>, Error> {
    let client = match client {
        Some(connected) => connected,
        None => client.insert(connect_sql(&config.database.connect).await?),
    };
    look(client, config, shutdown).await.map(|report| report.fields)
}

fn text(report: &Map<String, Value>, format: OutputFormat, paint: ColourMode) -> String {
    match format {
        OutputFormat::Json => format!("{:#}\n", Value::Object(report.clone())),
        OutputFormat::Text => {
            format!("{}\n{}", Standing::told(report).text(paint), sections(report, paint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_in_a_pipe_have_their_time_and_those_in_json_a_line_each() {
        let report = json!({ "headline": "streaming", "advice": null, "dispatch": {} });
        let found = Ok(report.as_object().unwrap().clone());
        let piped = |told: &Result<_, _>, format| {
            watched(told, format, (Place::Pipe, SystemTime::UNIX_EPOCH))
        };
        let text = piped(&found, OutputFormat::Text);
        assert!(text.starts_with("--- 1970-01-01T00:00:00Z\nstreaming\n"), "{text}");
        for told in [&found, &Err(Error::Interrupted)] {
            let line = piped(told, OutputFormat::Json);
            assert_eq!(line.lines().count(), 1, "{line}");
            let value: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(value["at"], "1970-01-01T00:00:00Z");
        }
    }
}
