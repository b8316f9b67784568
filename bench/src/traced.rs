//! Measures the drain of the same backlog without telemetry, and with a collector that receives a
//! span per request and the metrics.

use serde::Serialize;
use walrelay_testkit::collector::Collector;

use crate::database::{Database, Rows, Server};
use crate::drain::{self, RelayRound, RelayStart, start_relay_in};
use crate::failure::Failure;
use crate::sink::{Sink, SinkOptions};
use crate::statistics::median;

/// Puts every row into a sampled trace, which is the highest load for the exporter.
const TRACEPARENTS: &str = "ALTER TABLE app_outbox ALTER COLUMN headers SET DEFAULT
  jsonb_build_object('traceparent',
    '00-' || md5(random()::text) || '-' || substr(md5(random()::text), 1, 16) || '-01')";

/// A backlog of rows that carry a trace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traced {
    pub(crate) name: &'static str,
    pub(crate) rows: Rows,
    pub(crate) rounds: u32,
}

/// Both drains, run one after the other so that outside load is likely to affect both.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Round {
    pub(crate) off: RelayRound,
    pub(crate) on: RelayRound,
    /// The number of spans that the collector received.
    pub(crate) spans: usize,
}

/// A workload's result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TracedResult {
    pub(crate) name: &'static str,
    pub(crate) rows: u32,
    pub(crate) rounds: Vec<Round>,
}

impl TracedResult {
    fn of(&self, value: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(value))
    }

    /// Returns the median of the per-round ratios of the rates.
    pub(crate) fn share(&self) -> f64 {
        self.of(|it| it.on.measured.rows_per_second / it.off.measured.rows_per_second)
    }

    /// Returns the median of the per-round ratios of CPU time.
    pub(crate) fn cpu_share(&self) -> f64 {
        self.of(|it| it.on.cpu_seconds() / it.off.cpu_seconds())
    }

    pub(crate) fn rows_per_second(&self) -> f64 {
        self.of(|it| it.on.measured.rows_per_second)
    }
}

/// Loads the backlog once and drains it twice per round.
pub(crate) async fn run(
    server: &Server,
    traced: Traced,
    arguments: &[String],
) -> Result<TracedResult, Failure> {
    let Traced { name, rows, rounds: count } = traced;
    let mut database = server.create(&name.replace('-', "_")).await?;
    database.client().batch_execute(TRACEPARENTS).await?;
    database.load(rows).await?;
    let mut rounds = Vec::new();
    for round in 0..count {
        let collector = Collector::start();
        let sent = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint())];
        // The order alternates, so that neither variant always runs second.
        let (off, on) = if round % 2 == 0 {
            let off = drained(server, &mut database, rows, arguments, &[]).await?;
            (off, drained(server, &mut database, rows, arguments, &sent).await?)
        } else {
            let on = drained(server, &mut database, rows, arguments, &sent).await?;
            (drained(server, &mut database, rows, arguments, &[]).await?, on)
        };
        let spans = collector.kept().spans.len();
        if spans == 0 {
            return Err("the collector got no span".into());
        }
        rounds.push(Round { off, on, spans });
    }
    server.remove(database).await?;
    Ok(TracedResult { name, rows: rows.count, rounds })
}

async fn drained(
    server: &Server,
    database: &mut Database,
    rows: Rows,
    arguments: &[String],
    variables: &[(&str, String)],
) -> Result<RelayRound, Failure> {
    let slot = database.copy_slot().await?;
    let mut sink = Sink::start(SinkOptions::default()).await?;
    let relay = start_relay_in(RelayStart {
        relay: server.relay(),
        database,
        slot: &slot,
        sink: &sink,
        arguments,
        variables,
    })?;
    let round = drain::by(&mut sink, vec![relay], rows.count).await?;
    database.drop_slots(&slot).await?;
    Ok(round)
}
