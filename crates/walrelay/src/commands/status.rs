//! `walrelay status`: first how it stands and what helps, then the slot, its log and dispatch state.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use walrelay_postgres::{SqlClient, connect_sql};
use walrelay_relay::observe::report::report;
use walrelay_relay::shutdown::Shutdown;

use super::standing::{Standing, sections};
use crate::config::{OutputFormat, StatusConfig};
use crate::error::Error;
use crate::output::{CLEAR, Paint, Tone, print};

/// A relay answers from memory: one that does not within this is not well.
const PATIENCE: Duration = Duration::from_secs(5);

/// More than the ten heaviest keys of the greatest length take.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Prints the report; again and again where that was asked for.
///
/// # Errors
///
/// Postgres cannot be reached, the slot is missing or lost, or there is no dispatch state.
pub async fn execute(config: StatusConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let Some(interval) = config.watch else {
        return tokio::select! {
            done = once(&config) => done,
            () = shutdown.requested() => Err(Error::Interrupted),
        };
    };
    // Whoever watches ends it by a signal, and has got what was asked for.
    tokio::select! {
        done = watch(&config, interval) => done,
        () = shutdown.requested() => Ok(()),
    }
}

async fn once(config: &StatusConfig) -> Result<(), Error> {
    let client = connect_sql(&config.database.connect).await?;
    let report = look(&client, config).await;
    client.close().await;
    let report = report?;
    print(&text(&report, config.format, Paint::of_output()))?;
    match report.get("lost") {
        Some(Value::Bool(true)) => {
            let slot = config.database.outbox.slot.clone();
            let how = match report.get("wal_status").and_then(Value::as_str) {
                Some("lost") => "is invalidated",
                Some(_) | None => "is another slot of the same name than the one on record",
            };
            Err(Error::SlotLost { slot, how })
        }
        Some(_) | None => Ok(()),
    }
}

/// The report, and what the relay itself says where it was named.
async fn look(client: &SqlClient, config: &StatusConfig) -> Result<Map<String, Value>, Error> {
    let mut report = report(client, &config.database.outbox.slot).await?;
    let standing = Standing::of(&report);
    report.insert("headline".into(), json!(standing.headline));
    report.insert("advice".into(), json!(standing.advice));
    if let Some(address) = config.relay {
        let asked = timeout(PATIENCE, ask(address)).await;
        let told = match asked.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
            Ok(told) => told,
            Err(error) => json!({ "unreachable": format!("{address}: {error}") }),
        };
        report.insert("relay".into(), told);
    }
    Ok(report)
}

/// What the relay's `/status` says of itself.
async fn ask(address: SocketAddr) -> std::io::Result<Value> {
    let mut socket = TcpStream::connect(address).await?;
    // HTTP/1.0: the answer is not chunked and ends with the connection.
    let request = format!("GET /status HTTP/1.0\r\nHost: {address}\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    socket.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    let text = String::from_utf8_lossy(&answer);
    let (_, body) = text.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::InvalidData)?;
    let status: Value = serde_json::from_str(body)?;
    status.get("relay").cloned().ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

/// In place on a terminal, one below the other elsewhere. What fails is shown and tried again: whoever
/// watches wants to see it come back.
async fn watch(config: &StatusConfig, interval: Duration) -> Result<(), Error> {
    let paint = Paint::of_output();
    let before = if std::io::stdout().is_terminal() { CLEAR } else { "" };
    let mut client = None;
    loop {
        let shown = match refresh(&mut client, config).await {
            Ok(report) => text(&report, config.format, paint),
            Err(error) => {
                client = None;
                format!("{}\n", paint.text(Tone::Bad, &error.report()))
            }
        };
        print(&format!("{before}{shown}"))?;
        sleep(interval).await;
    }
}

async fn refresh(
    client: &mut Option<SqlClient>,
    config: &StatusConfig,
) -> Result<Map<String, Value>, Error> {
    let client = match client {
        Some(connected) => connected,
        None => client.insert(connect_sql(&config.database.connect).await?),
    };
    look(client, config).await
}

fn text(report: &Map<String, Value>, format: OutputFormat, paint: Paint) -> String {
    match format {
        OutputFormat::Json => format!("{:#}\n", Value::Object(report.clone())),
        OutputFormat::Text => {
            format!("{}\n{}", Standing::of(report).text(paint), sections(report, paint))
        }
    }
}

/// A slot alone, as `slot show` prints it.
pub(super) fn render(report: &Map<String, Value>, format: OutputFormat) -> String {
    match format {
        OutputFormat::Json => format!("{:#}\n", Value::Object(report.clone())),
        OutputFormat::Text => sections(report, Paint::of_output()),
    }
}
