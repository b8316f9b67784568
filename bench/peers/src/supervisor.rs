//! Restarts a peer as an orchestrator does: after its exit, and when its liveness probe fails.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use walrelay_testkit::http_get;

use crate::check::Arrival;
use crate::extent::Patience;
use crate::workplace::Workplace;
use walrelay_bench::failure::Failure;
use walrelay_bench::process::Process;
use walrelay_bench::sink::Sink;

/// The pause before an ended process is started again, for every peer the same.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// The probe as Kubernetes runs it by default: every 10 s, three failures end the process.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBE_LIMIT: Duration = Duration::from_secs(1);
const PROBE_FAILURES_MAX: u32 = 3;

/// No probe counts before the process has run this long.
const PROBE_GRACE: Duration = Duration::from_secs(20);

pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A running peer.
pub(crate) struct Supervisor {
    process: Option<Process>,
    ended_at: Instant,
    probed_at: Instant,
    probe_failures: u32,
    /// The restarts that nobody but the peer or its probe caused.
    pub(crate) restarts: u32,
}

impl Supervisor {
    pub(crate) fn start(place: &Workplace) -> Result<Self, Failure> {
        let now = Instant::now();
        let process = Some(place.start()?);
        Ok(Self { process, ended_at: now, probed_at: now, probe_failures: 0, restarts: 0 })
    }

    /// Kills the process at once, as a lost host would. The next tick starts it again.
    pub(crate) fn kill(&mut self) {
        self.process = None;
        self.ended_at = Instant::now();
    }

    /// Starts an ended process again and probes a running one.
    pub(crate) async fn tick(&mut self, place: &Workplace) -> Result<(), Failure> {
        let Some(process) = &self.process else {
            if self.ended_at.elapsed() >= RESTART_PAUSE {
                self.process = Some(place.start()?);
                self.probe_failures = 0;
            }
            return Ok(());
        };
        let started = process.started();
        if process.check_alive().is_err() {
            self.restarts += 1;
            self.kill();
            return Ok(());
        }
        if let Some((address, path)) = &place.liveness
            && self.probed_at.elapsed() >= PROBE_INTERVAL
            && started.elapsed() >= PROBE_GRACE
        {
            self.probed_at = Instant::now();
            let answer = timeout(PROBE_LIMIT, http_get(address, path)).await;
            let is_alive = matches!(answer, Ok(Ok((200, _))));
            self.probe_failures = if is_alive { 0 } else { self.probe_failures + 1 };
            if self.probe_failures >= PROBE_FAILURES_MAX {
                self.restarts += 1;
                self.kill();
            }
        }
        Ok(())
    }
}

/// How a wait for rows ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quiet {
    /// The time when the last new row was seen.
    pub(crate) last_new: Instant,
    /// Whether rows were still arriving at the limit.
    pub(crate) is_behind: bool,
}

/// Waits until `rows` different rows are stored, until nothing new arrives, or until the limit.
///
/// # Errors
///
/// Fails when not a single row is stored in that time.
pub(super) async fn wait_quiet(
    place: &mut Workplace,
    supervisor: &mut Supervisor,
    rows: u64,
    patience: Patience,
) -> Result<Quiet, Failure> {
    let Patience { stall, limit } = patience;
    let began = Instant::now();
    let mut progress = Progress { stored: 0, distinct: 0, at: began };
    while progress.distinct < rows && progress.at.elapsed() <= stall && began.elapsed() <= limit {
        supervisor.tick(place).await?;
        progress.update(&mut place.sink, rows, stall).await?;
        sleep(POLL_INTERVAL).await;
    }
    if progress.stored == 0 {
        let restarts = supervisor.restarts;
        let waited = began.elapsed().as_secs();
        return Err(format!("nothing was published within {waited} s, {restarts} restarts").into());
    }
    let is_behind = progress.distinct < rows && progress.at.elapsed() <= stall;
    Ok(Quiet { last_new: progress.at, is_behind })
}

/// The messages and the different rows seen so far.
struct Progress {
    stored: u64,
    distinct: u64,
    /// The time of the last new row.
    at: Instant,
}

impl Progress {
    async fn update(&mut self, sink: &mut Sink, rows: u64, stall: Duration) -> Result<(), Failure> {
        let stored = sink.counts().await?.messages_stored;
        if stored == self.stored {
            return Ok(());
        }
        self.stored = stored;
        // Reading all messages is slow, so they are read only when all rows may be there, and when
        // all that arrives may be repetition.
        if stored < rows && self.at.elapsed() < stall / 2 {
            self.at = Instant::now();
            return Ok(());
        }
        let distinct = distinct_rows(&arrivals(sink).await?);
        if distinct > self.distinct {
            (self.distinct, self.at) = (distinct, Instant::now());
        }
        Ok(())
    }
}

fn distinct_rows(arrivals: &[Arrival]) -> u64 {
    let mut rows: Vec<u64> = arrivals.iter().map(|it| it.row).collect();
    rows.sort_unstable();
    rows.dedup();
    u64::try_from(rows.len()).unwrap_or(u64::MAX)
}

/// Returns the rows in all stored messages. A message without a row, such as a heartbeat, is left
/// out.
pub(crate) async fn arrivals(sink: &mut Sink) -> Result<Vec<Arrival>, Failure> {
    let stored = sink.published().await?;
    let parsed =
        stored.iter().filter_map(|it| Arrival::parse(it.data.as_deref()?, it.published_at));
    Ok(parsed.collect())
}
