//! The events of a run that happen to the relay, and the end of the run.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use walrelay_testkit::seed::Seed;

use crate::harness::Harness;
use crate::instance::Instance;
use crate::judge::{Event, Fault, Hex, RowNumber, Status};
use crate::plan::{Action, RowKind, Scope};
use crate::pubsub::InjectedFailure;
use crate::rows::RowPlanNames;
use crate::world::{InboxDatabase, locked};

/// The relay must release a server that shuts down within this time, even if Pub/Sub is down. The
/// time covers the requests in flight and the detection of a stalled socket.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(60);
/// Rows of healthy keys must be stored within this time while other keys fail.
const FLOW_PATIENCE: Duration = Duration::from_secs(2);
/// The WAL of a few seconds, by which a slot may lag.
const FLOW_LAG: u64 = 32 << 10;
/// After all faults are healed, this time is enough for every back-off.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15 * 60);

impl<F: Harness> InboxDatabase<F> {
    pub(crate) async fn happen(&self, mut seed: Seed) {
        let started = Instant::now();
        for (at, action) in self.plan.timeline.clone() {
            sleep_until(started + at).await;
            self.land();
            self.continue_replays(&mut seed);
            self.act(action, &mut seed).await;
            if self.judge.has_findings() {
                break;
            }
        }
        self.judge.note(Event::Chaos("healed".into()));
        self.pubsub.heal();
        self.table.heal();
        self.server.start();
        self.server.stall(Instant::now());
        self.instances.iter().for_each(|instance| instance.freeze(None));
        if !self.judge.has_findings() {
            self.finish(&mut seed).await;
        }
        self.last.request();
        self.replayer.crash.notify_waiters();
        for instance in &self.instances {
            instance.crash.notify_waiters();
            locked(&instance.shutdown).request();
        }
    }

    fn land(&self) {
        self.pubsub.deliver_abandoned_requests();
        self.table.apply_late_commands();
    }

    /// Ends the run after all faults are healed. The relay must finish in time and stop in time,
    /// and must not publish any row again after that.
    async fn finish(&self, seed: &mut Seed) {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_done() {
            if Instant::now() > deadline || self.judge.has_findings() {
                return self.find_undone();
            }
            sleep(Duration::from_secs(1)).await;
            self.land();
            self.continue_replays(seed);
            self.attend(seed);
        }
        // A graceful stop and a restart must not publish any row twice.
        self.act(Action::StopAll, seed).await;
        sleep(Duration::from_secs(5)).await;
        self.land();
        let before = self.judge.stored_counts();
        sleep(Duration::from_secs(10)).await;
        if self.judge.stored_counts() != before {
            self.judge.find(Fault::Repeated, "after a graceful stop");
        }
    }

    fn find_undone(&self) {
        self.judge.check_done();
        for (topic, key, through) in self.table.holds() {
            let text = format!("{key} of {topic} is to be held: {through:?}");
            self.judge.find(Fault::ParkedForEver, text);
        }
        if self.table.has_reset() {
            self.judge.find(Fault::Unfinished, "a reset");
        }
        if self.has_topic_replay() && !self.judge.has_findings() {
            self.judge.find(Fault::Unfinished, "a replay to a topic");
        }
        let (confirmed, end) = (self.server.confirmed_flush(), self.server.wal_end());
        if confirmed < end && !self.judge.has_findings() {
            let text = format!("{:?} of {:?}", Hex(confirmed), Hex(end));
            self.judge.find(Fault::ConfirmedNever, text);
        }
    }

    fn is_done(&self) -> bool {
        self.judge.is_done()
            && !self.table.has_holds()
            && !self.table.has_reset()
            && !self.has_topic_replay()
            && self.server.confirmed_flush() >= self.server.wal_end()
    }

    /// Acts as an operator who handles dead rows.
    fn attend(&self, seed: &mut Seed) {
        // A topic with invalid rows only looks like one that refuses every row.
        for row in self.table.rows(&[Status::Retrying]) {
            if self.pubsub.is_poison(row) && seed.chance(50) {
                self.table.discard(row);
            }
        }
        for row in self.table.rows(&[Status::Dead]) {
            let is_hopeless = self.pubsub.is_poison(row) || self.judge.is_unroutable(row);
            match is_hopeless {
                true if seed.chance(300) => self.table.discard(row),
                true => {}
                false => self.table.retry(|other, _| other == row),
            }
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each thing that can happen")]
    async fn act(&self, action: Action, seed: &mut Seed) {
        let now = Instant::now();
        if !matches!(action, Action::Commit { .. }) {
            self.judge.note(Event::Chaos(format!("{action:?}")));
        }
        match action {
            Action::Commit { rows } => self.commit(&rows, seed),
            Action::CommitRows { rows } => self.commit_rows(&rows),
            Action::Foreign { bytes } => self.server.write(|log| log.write(bytes)),
            Action::Checkpoint => self.server.checkpoint(),
            Action::Cut => {
                self.server.cut();
                self.fitting.connections_cut();
            }
            Action::Stall { time } => {
                self.judge.silence_excused(now + time);
                self.server.stall(now + time);
            }
            Action::ServerCrash { down, recovery } => {
                self.server.crash();
                self.judge.server_crashed();
                sleep(down).await;
                self.server.start_in_recovery(Instant::now() + recovery);
            }
            Action::ServerShutdown { down } => {
                if self.server.shut_down(SHUTDOWN_PATIENCE).await {
                    self.judge.find(Fault::ShutdownBlocked, "the server waits for the relay");
                }
                sleep(down).await;
                self.server.start();
            }
            Action::ProcessCrash => self.some_instance(seed).crash.notify_waiters(),
            Action::Freeze { time } => {
                self.judge.silence_excused(now + time);
                self.some_instance(seed).freeze(Some(now + time));
            }
            Action::Stop => locked(&self.some_instance(seed).shutdown).request(),
            Action::StopAll => {
                self.instances.iter().for_each(|instance| locked(&instance.shutdown).request());
            }
            Action::InjectFailure { scope, class, time } => {
                let RowPlanNames { topic, key } = self.names(seed);
                self.pubsub.inject_failure(InjectedFailure {
                    topic: (scope != Scope::Everything).then_some(topic),
                    key: (scope == Scope::Key).then_some(key),
                    until: now + time,
                    class,
                });
            }
            Action::FailingBurst { key, rows, class, time } => {
                let names = self.named_or_drawn(key, seed);
                self.pubsub.inject_failure(InjectedFailure {
                    topic: Some(names.topic.clone()),
                    key: Some(names.key.clone()),
                    until: now + time,
                    class,
                });
                self.commit_run(&names, rows, RowKind::Good);
            }
            Action::PoisonRun { rows } => {
                let names = self.names(seed);
                self.commit_run(&names, rows, RowKind::Poison);
            }
            Action::ExpectFlow { key } => self.expect_flow(key),
            Action::ExpectLagWithin { bytes } => self.expect_lag_within(bytes),
            Action::ExpectNoneDead => {
                let dead = self.table.rows(&[Status::Dead]);
                if !dead.is_empty() {
                    self.judge.find(Fault::DiedInOutage, format!("rows {dead:?}"));
                }
            }
            Action::TableDown { time } => self.table.goes_down(now + time),
            Action::RetryDead => {
                let dead = self.table.rows(&[Status::Dead]);
                self.table.retry(|row, _| dead.contains(&row));
            }
            Action::RetryTopic => {
                let RowPlanNames { topic, .. } = self.names(seed);
                self.table.retry(|_, other| other == topic);
            }
            Action::RetryOne => {
                let chosen = self.open_row(seed);
                self.table.retry(|row, _| Some(row) == chosen);
            }
            Action::ReplayInPlace { key } => {
                self.begin_replay(&self.named_or_drawn(key, seed));
            }
            Action::Reset { per_mille, dies_after } => self.begin_reset(per_mille, dies_after),
            Action::ReplayToTopic { first, last } => self.begin_topic_replay(first, last),
            Action::KillReplay => self.replayer.crash.notify_waiters(),
            Action::StopReplay => locked(&self.replayer.shutdown).request(),
            Action::DiscardOne => {
                self.open_row(seed).into_iter().for_each(|row| self.table.discard(row));
            }
        }
    }

    fn some_instance(&self, seed: &mut Seed) -> &Instance {
        seed.pick(&self.instances)
    }

    /// Checks that failing keys delay no other key: the rows of this key are stored, and the slot
    /// moves on.
    fn expect_flow(&self, key: u64) {
        let late = self.judge.rows_not_stored(&format!("k{key}"), FLOW_PATIENCE);
        if !late.is_empty() {
            self.judge.find(Fault::DelayedByOthers, format!("rows {late:?} of a key that is well"));
        }
        let lag = self.server.wal_end().saturating_sub(self.server.confirmed_flush());
        if lag > FLOW_LAG {
            self.judge.find(Fault::DelayedByOthers, format!("the slot is {lag} bytes behind"));
        }
    }

    /// Checks the lag of the slot, however long Pub/Sub is down.
    fn expect_lag_within(&self, bytes: u64) {
        let lag = self.server.wal_end().saturating_sub(self.server.confirmed_flush());
        if lag > bytes {
            self.judge.find(Fault::OverWalBudget, format!("{lag} bytes of log wait"));
        }
    }

    /// Returns a random row of the table that an operator might handle.
    fn open_row(&self, seed: &mut Seed) -> Option<RowNumber> {
        let open = self.table.rows(&[Status::Dead, Status::Retrying]);
        (!open.is_empty()).then(|| *seed.pick(&open))
    }
}
