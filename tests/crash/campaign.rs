//! Kills a relay repeatedly under load, and accounts for every duplicate.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use walrelay_testkit::checker::{self, Verdict};
use walrelay_testkit::process::Signal;
use walrelay_testkit::relay::Relay;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer, topic};

/// The way in which a relay ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RelayDeath {
    /// SIGKILL after some more rows.
    AtRandom,
    /// SIGKILL as soon as the relay streams.
    AtOnce,
    /// Before a status update is sent.
    BeforeConfirm,
    /// After Pub/Sub has replied and before the relay handles the reply.
    AfterReply,
    /// After rows are committed to dispatch state and before the slot is confirmed.
    AfterPark,
    /// After a key has left dispatch state and before any of its live rows is published.
    AfterUnpark,
    /// During a graceful stop, after everything is published and before the last status update.
    DuringFinalConfirm,
}

/// All ways, used one after the other.
pub(crate) const DEATHS: [RelayDeath; 7] = [
    RelayDeath::AtRandom,
    RelayDeath::BeforeConfirm,
    RelayDeath::AfterPark,
    RelayDeath::AfterUnpark,
    RelayDeath::AfterReply,
    RelayDeath::AtOnce,
    RelayDeath::DuringFinalConfirm,
];

impl RelayDeath {
    fn failpoint(self) -> Option<&'static str> {
        match self {
            Self::AtRandom | Self::AtOnce => None,
            Self::BeforeConfirm => Some("before-confirm"),
            Self::AfterReply => Some("after-reply"),
            Self::AfterPark => Some("after-park"),
            Self::AfterUnpark => Some("after-unpark"),
            Self::DuringFinalConfirm => Some("final-confirm"),
        }
    }
}

/// The result of a campaign.
#[derive(Debug, Default)]
pub(crate) struct Account {
    pub(crate) rows_count: u32,
    pub(crate) kills_count: usize,
    /// For each kill, the number of republished messages and the number of rows at risk.
    pub(crate) duplicates: Vec<(usize, usize)>,
    pub(crate) longest_pause: Duration,
    pub(crate) verdict: Verdict,
}

impl Account {
    /// Panics unless the promise was kept and every duplicate is accounted for.
    pub(crate) fn assert_kept(&self) {
        self.verdict.assert_clean();
        for (kill, (came, unconfirmed)) in self.duplicates.iter().enumerate() {
            assert!(
                came <= unconfirmed,
                "after kill {kill} {came} rows came again, but only {unconfirmed} were unconfirmed"
            );
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let came: Vec<usize> = self.duplicates.iter().map(|(came, _)| *came).collect();
        let most = came.iter().max().unwrap_or(&0);
        let bound = self.duplicates.iter().map(|(_, unconfirmed)| unconfirmed).max().unwrap_or(&0);
        let total: usize = came.iter().sum();
        let tenths = (10 * total).checked_div(came.len()).unwrap_or(0);
        writeln!(out, "rows                    {:>9}", self.rows_count)?;
        writeln!(out, "kills                   {:>9}", self.kills_count)?;
        writeln!(out, "lost                    {:>9}", self.verdict.lost.len())?;
        writeln!(out, "out of order            {:>9}", self.verdict.reordered.len())?;
        writeln!(out, "duplicates per kill     {:>7}.{} (most {most})", tenths / 10, tenths % 10)?;
        writeln!(out, "unconfirmed at a kill   {bound:>9} at most")?;
        write!(out, "longest pause           {:>7} ms", self.longest_pause.as_millis())
    }
}

/// The stored messages, read incrementally.
#[derive(Debug, Default)]
struct Ledger {
    read_count: usize,
    seen: HashSet<String>,
    duplicates_count: usize,
    /// The number of rows by commit position, because several rows share a commit.
    rows: BTreeMap<u64, usize>,
}

impl Ledger {
    fn read_on(&mut self, world: &InboxDatabase) {
        let messages = world.pubsub.emulator().published(&topic("video.events"));
        for message in &messages[self.read_count..] {
            let id = message.attribute("event_id").unwrap_or_default();
            if self.seen.insert(id.to_owned()) {
                let at = position(message.attribute("commit_lsn").unwrap_or_default());
                *self.rows.entry(at).or_default() += 1;
            } else {
                self.duplicates_count += 1;
            }
        }
        self.read_count = messages.len();
    }

    /// Returns the number of stored rows whose transaction is not confirmed.
    fn unconfirmed_count(&self, confirmed_flush: u64) -> usize {
        self.rows.range(confirmed_flush..).map(|(_, count)| count).sum()
    }
}

fn position(text: &str) -> u64 {
    let (high, low) = text.split_once('/').expect("a position");
    let part = |digits| u64::from_str_radix(digits, 16).expect("hexadecimal digits");
    (part(high) << 32) | part(low)
}

/// Returns a random number below `limit`.
fn random_below(limit: u64) -> u64 {
    RandomState::new().build_hasher().finish() % limit
}

/// Kills relays under load until `is_enough`, then waits until every row has arrived.
pub(crate) async fn kill_until(
    world: &InboxDatabase,
    pace: Duration,
    mut is_enough: impl FnMut(usize) -> bool,
) -> Account {
    let producer = Producer::start(world.url(), pace);
    let mut ledger = Ledger::default();
    let mut account = Account::default();
    let mut unconfirmed: Option<usize> = None;
    while !is_enough(account.kills_count) {
        let death = DEATHS[account.kills_count % DEATHS.len()];
        let before = ledger.duplicates_count;
        die(world, death).await;
        world.wait_slot_free(DEADLINE).await;
        account.kills_count += 1;

        ledger.read_on(world);
        if let Some(unconfirmed) = unconfirmed {
            account.duplicates.push((ledger.duplicates_count - before, unconfirmed));
        }
        unconfirmed = Some(at_risk(world, &ledger).await);
    }
    account.rows_count = producer.stop().await;
    let before = ledger.duplicates_count;
    world.catch_up().await;
    ledger.read_on(world);
    account.duplicates.push((ledger.duplicates_count - before, unconfirmed.unwrap_or_default()));
    account.longest_pause = longest_pause(world);
    account.verdict = checker::check(&world.committed().await, &world.pubsub.stored());
    account
}

/// Returns the number of rows that may be republished: stored, but neither confirmed nor recorded
/// as published.
async fn at_risk(world: &InboxDatabase, ledger: &Ledger) -> usize {
    let sql = "SELECT event_id FROM app_outbox_dispatch WHERE status = 'retrying'";
    let parked = world.client().query(sql, &[]).await.expect("dispatch state can be read");
    let redelivered =
        parked.iter().filter(|row| ledger.seen.contains(row.get::<_, &str>(0))).count();
    ledger.unconfirmed_count(world.confirmed_flush().await) + redelivered
}

/// Runs a relay from its start to its death.
async fn die(world: &InboxDatabase, death: RelayDeath) {
    // The relay passes the failpoint many times, and dies at a random pass.
    let command = world.relay(["--park-after", "200ms"]);
    let command = match death.failpoint() {
        Some(place @ ("after-park" | "after-unpark" | "final-confirm")) => {
            command.env("WALRELAY_FAILPOINT", place)
        }
        Some(place) => {
            command.env("WALRELAY_FAILPOINT", &format!("{place}={}", 1 + random_below(20)))
        }
        None => command,
    };
    let is_parking = death == RelayDeath::AfterPark;
    let fault = is_parking.then(|| world.pubsub.fault("key=v-3,reject=UNAVAILABLE"));
    let mut relay = command.start();
    match death {
        RelayDeath::BeforeConfirm
        | RelayDeath::AfterReply
        | RelayDeath::AfterPark
        | RelayDeath::AfterUnpark => {}
        RelayDeath::AtOnce => {
            relay.wait_for_line(DEADLINE, "\"streaming\"").await;
            relay.kill();
        }
        RelayDeath::AtRandom => {
            wait_for_more(world, 1 + random_below(300)).await;
            relay.kill();
        }
        RelayDeath::DuringFinalConfirm => {
            wait_for_more(world, 1 + random_below(100)).await;
            relay.signal(Signal::Terminate);
        }
    }
    let code = wait_dead(&mut relay).await;
    assert_eq!(code, None, "it should have been killed at {death:?}: {:#?}", relay.lines());
    if let Some(fault) = fault {
        world.pubsub.emulator().clear_fault(fault);
    }
}

async fn wait_dead(relay: &mut Relay) -> Option<i32> {
    relay.wait_ended(DEADLINE).await.code()
}

pub(crate) async fn wait_for_more(world: &InboxDatabase, count: u64) {
    let goal = world.pubsub.stored_count() + count;
    world.pubsub.wait_stored(DEADLINE, goal).await;
}

/// Returns the longest time without a stored message.
fn longest_pause(world: &InboxDatabase) -> Duration {
    let messages = world.pubsub.emulator().published(&topic("video.events"));
    let times = messages.windows(2).map(|pair| {
        pair[1].publish_time().duration_since(pair[0].publish_time()).unwrap_or_default()
    });
    times.max().unwrap_or_default()
}

/// Waits until all rows are confirmed and dispatch state is empty, and then checks the result.
pub(crate) async fn settle_and_check(world: &InboxDatabase, producer: Producer) -> Verdict {
    let rows_count = producer.stop().await;
    assert!(rows_count > 0, "the producer has committed nothing");
    world.wait_confirmed(DEADLINE).await;
    wait_until(DEADLINE, "dispatch state to be done", async || {
        (world.dispatch_count("retrying").await == 0).then_some(())
    })
    .await;
    checker::check(&world.committed().await, &world.pubsub.stored())
}
