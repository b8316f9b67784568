//! Runs a consumer under a fault, and counts the events that are lost or applied twice.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::sleep;

use crate::consumers::extent::ConsumerExtent;
use crate::consumers::place::Place;
use crate::description::{Peer, Variant};
use walrelay_bench::database::{Database, Server};
use walrelay_bench::failure::Failure;
use walrelay_bench::process::Process;

const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// A run ends when no event is applied or acknowledged for this long. The messages of a killed
/// consumer stay leased for up to a minute.
const STALL: Duration = Duration::from_secs(90);

/// The sink delivers the messages of the first deliveries again at once.
const REDELIVERY: &str = "on=delivery,first=3,expire";

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Fault {
    Redelivery,
    Kills,
}

impl Fault {
    pub(super) const ALL: [Self; 2] = [Self::Redelivery, Self::Kills];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Redelivery => "Pub/Sub delivers the first messages twice",
            Self::Kills => "kills under load",
        }
    }

    pub(super) fn is_injected(self, extent: ConsumerExtent) -> bool {
        self == Self::Redelivery || extent.kills > 0
    }
}

/// The result of one fault.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ConsumerFault {
    pub(super) fault: Fault,
    pub(super) events: u32,
    /// Deliveries beyond the first of each event.
    pub(super) redelivered: u64,
    #[serde(flatten)]
    pub(super) verdict: Verdict,
    /// From the first start to the last acknowledgement.
    pub(super) seconds: f64,
}

/// What the table shows after the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Verdict {
    /// Effects beyond one for each event.
    pub(super) applied_twice: u64,
    /// Events without an effect.
    pub(super) lost: u64,
    /// Keys whose state is not that of their newest event.
    pub(super) outdated_keys: u64,
}

pub(super) async fn run(
    server: &Server,
    variant: &Variant,
    consumer: &Peer,
    extent: ConsumerExtent,
    fault: Fault,
) -> Result<ConsumerFault, Failure> {
    let mut place = Place::create(server, extent.fault_events, 0).await?;
    if fault == Fault::Redelivery {
        place.sink.set_fault(REDELIVERY).await?;
    }
    let began = Instant::now();
    let mut process = place.start(consumer, variant)?;
    let kills = if fault == Fault::Kills { extent.kills } else { 0 };
    for number in 1..=kills {
        let wanted = extent.fault_events / (kills + 1) * number;
        wait_applied(&place, &process, wanted).await?;
        drop(process);
        process = place.start(consumer, variant)?;
    }
    wait_acknowledged(&mut place, &process).await?;
    let seconds = began.elapsed().as_secs_f64();
    drop(process);
    let delivered = place.sink.counts().await?.messages_delivered;
    let verdict = judge(&place.database).await;
    place.remove(server).await?;
    Ok(ConsumerFault {
        fault,
        events: extent.fault_events,
        redelivered: delivered.saturating_sub(extent.fault_events.into()),
        verdict: verdict?,
        seconds,
    })
}

async fn wait_applied(place: &Place, process: &Process, wanted: u32) -> Result<(), Failure> {
    let since = Instant::now();
    while place.applied().await? < wanted {
        process.check_alive()?;
        if since.elapsed() > STALL {
            return Err(format!("{wanted} events were not applied in time").into());
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Waits until every message is acknowledged, or until nothing happens any more.
async fn wait_acknowledged(place: &mut Place, process: &Process) -> Result<(), Failure> {
    let (mut seen, mut seen_at) = ((0, 0), Instant::now());
    while seen_at.elapsed() <= STALL {
        let now = (place.sink.counts().await?.stored_bytes, place.applied().await?);
        if now.0 == 0 {
            return Ok(());
        }
        if now != seen {
            (seen, seen_at) = (now, Instant::now());
        }
        process.check_alive()?;
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Compares the table with the outbox. Each event has one effect on the row of its key.
const VERDICT: &str = "
  SELECT coalesce(sum(greatest(s.events - e.events, 0)), 0)::bigint,
         coalesce(sum(greatest(e.events - coalesce(s.events, 0), 0)), 0)::bigint,
         count(*) FILTER (WHERE s.version IS DISTINCT FROM e.version)
    FROM (SELECT aggregateid AS id, count(*) AS events, max(version) AS version
            FROM app_outbox GROUP BY aggregateid) AS e
    LEFT JOIN bench_state AS s USING (id)";

async fn judge(database: &Database) -> Result<Verdict, Failure> {
    let row = database.client().query_one(VERDICT, &[]).await?;
    let count = |column: usize| -> Result<u64, Failure> {
        Ok(u64::try_from(row.try_get::<_, i64>(column)?)?)
    };
    Ok(Verdict { applied_twice: count(0)?, lost: count(1)?, outdated_keys: count(2)? })
}
