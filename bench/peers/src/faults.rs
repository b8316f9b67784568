//! Runs a peer under load and one fault, and judges the result.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::check::{self, Verdict};
use crate::description::{Peer, Variant};
use crate::extent::{Extent, Patience, REPLY_MILLIS};
use crate::fault_kind::{FaultKind, KILL_INTERVAL};
use crate::live::START_LIMIT;
use crate::producer::{Stream, key_name, produce};
use crate::supervisor::{POLL_INTERVAL, Supervisor, arrivals, wait_quiet};
use crate::workplace::Workplace;
use walrelay_bench::database::Server;
use walrelay_bench::failure::Failure;
use walrelay_bench::sink::Keeping;

const ROWS_PER_SECOND: u32 = 500;
const KEYS: u64 = 50;

/// The size of the poison row's payload. Pub/Sub refuses messages over 10,000,000 bytes.
const POISON_BYTES: i32 = 10_500_000;

/// The key that is refused, and the key of the poison row.
const REFUSED_KEY: &str = "order-7";

/// A row number that no other row has.
const POISON_ROW: i64 = 1_000_000_000;

/// The result of one fault.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FaultFigures {
    pub(crate) kind: FaultKind,
    pub(crate) fault_seconds: f64,
    pub(crate) rows: u64,
    pub(crate) verdict: Verdict,
    /// From the end of the fault, or of the load if that was later, to the last new row.
    pub(crate) caught_up_seconds: f64,
    /// Whether rows were still arriving at the end of the run, because the peer is slower than the
    /// load.
    pub(crate) is_behind: bool,
    /// The restarts that the peer or its liveness probe caused.
    pub(crate) restarts: u32,
    /// How long rows of other keys waited at most while one key was refused.
    pub(crate) others_waited_seconds: f64,
    /// The rows of other keys than the refused one that were never stored.
    pub(crate) lost_of_other_keys: u64,
    /// What a person must do, where rows were not stored.
    pub(crate) remedy: Option<String>,
}

/// A peer, and the fault that it meets.
pub(crate) struct FaultRun<'a> {
    pub(crate) peer: &'a Peer,
    pub(crate) variant: &'a Variant,
    pub(crate) kind: FaultKind,
    pub(crate) extent: Extent,
}

/// Runs the fault. The server is the run's own.
pub(crate) fn run(
    runtime: &Runtime,
    mut server: Server,
    run: &FaultRun<'_>,
) -> Result<FaultFigures, Failure> {
    let created = Workplace::create(&server, run.peer, run.variant, Keeping::Log);
    let mut place = runtime.block_on(created)?;
    let done = runtime.block_on(measure(&mut server, &mut place, run));
    runtime.block_on(place.remove(None))?;
    done
}

async fn measure(
    server: &mut Server,
    place: &mut Workplace,
    run: &FaultRun<'_>,
) -> Result<FaultFigures, Failure> {
    let FaultRun { peer, kind, extent, .. } = *run;
    let mut supervisor = Supervisor::start(place)?;
    let stream = |rows| Stream { rows, rows_per_second: ROWS_PER_SECOND, keys: KEYS };
    produce(place.database.url(), stream(0..KEYS)).await?;
    let starting = Patience { stall: START_LIMIT, limit: START_LIMIT };
    wait_quiet(place, &mut supervisor, KEYS, starting).await?;

    let seconds = kind.load_seconds(extent);
    let rows = KEYS + u64::from(ROWS_PER_SECOND * seconds);
    let url = place.database.url().to_owned();
    let mut load = JoinSet::new();
    load.spawn(async move { produce(&url, stream(KEYS..rows)).await });
    let length = Duration::from_secs(seconds.into());
    let fault_seconds = inject(server, place, &mut supervisor, kind, length).await?;
    let fault_ended = Instant::now();
    loop {
        supervisor.tick(place).await?;
        if let Some(done) = load.try_join_next() {
            done??;
            break;
        }
        sleep(POLL_INTERVAL).await;
    }
    let load_ended = Instant::now();
    let quiet = wait_quiet(place, &mut supervisor, rows, extent.patience()).await?;

    let all = arrivals(&mut place.sink).await?;
    let others = all.iter().filter(|it| key_name(it.row, KEYS) != REFUSED_KEY);
    let waited = others.map(|it| it.stored_at - it.inserted_at).fold(0.0, f64::max);
    let key_of = |row| row % KEYS;
    let verdict = check::judge(0..rows, &all, key_of);
    let is_other = |row: &u64| key_name(*row, KEYS) != REFUSED_KEY;
    Ok(FaultFigures {
        kind,
        fault_seconds,
        rows,
        lost_of_other_keys: check::judge((0..rows).filter(is_other), &all, key_of).lost,
        remedy: (verdict.lost > 0 && !quiet.is_behind).then(|| peer.remedy(kind)),
        verdict,
        is_behind: quiet.is_behind,
        caught_up_seconds: quiet
            .last_new
            .saturating_duration_since(fault_ended.max(load_ended))
            .as_secs_f64(),
        restarts: supervisor.restarts,
        others_waited_seconds: waited,
    })
}

/// Injects the fault while the load runs. Returns how long the fault lasted.
async fn inject(
    server: &mut Server,
    place: &mut Workplace,
    supervisor: &mut Supervisor,
    kind: FaultKind,
    length: Duration,
) -> Result<f64, Failure> {
    run_for(place, supervisor, length / 10).await?;
    let began = Instant::now();
    match kind {
        FaultKind::Kills => {
            for _ in 0..length.as_secs() * 8 / 10 / KILL_INTERVAL.as_secs() {
                supervisor.kill();
                run_for(place, supervisor, KILL_INTERVAL).await?;
            }
        }
        FaultKind::KeyUnavailable => {
            place.sink.set_fault(&format!("key={REFUSED_KEY},reject=UNAVAILABLE")).await?;
            run_for(place, supervisor, length / 2).await?;
            heal(place).await?;
        }
        FaultKind::PubsubAway => {
            place.sink.refuse_all().await?;
            run_for(place, supervisor, length * 2 / 3).await?;
            heal(place).await?;
        }
        FaultKind::PoisonRow => {
            let sql = "SELECT peer_emit($1, $2, $3)";
            let client = place.database.client();
            client.execute(sql, &[&POISON_ROW, &REFUSED_KEY, &POISON_BYTES]).await?;
        }
        FaultKind::PostgresRestart => server.restart()?,
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Ends all faults but the usual reply delay.
async fn heal(place: &mut Workplace) -> Result<(), Failure> {
    place.sink.heal().await?;
    place.sink.set_fault(&format!("delay={REPLY_MILLIS}ms")).await
}

async fn run_for(
    place: &Workplace,
    supervisor: &mut Supervisor,
    length: Duration,
) -> Result<(), Failure> {
    let until = Instant::now() + length;
    while Instant::now() < until {
        supervisor.tick(place).await?;
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
