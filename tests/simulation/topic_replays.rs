//! Replays to a separate topic. Processes of the production supervisor run over a copy of the
//! anchor, one after the other. Each resumes at the recorded position.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::io::DuplexStream;
use tokio::time::sleep;
use walrelay_core::{
    ColumnFilter, LanePolicy, Random, ReplaySelection, Template, WalRetentionLimit,
};
use walrelay_outbox_replay::replay::{
    CountingPublisher, DeadRows, Keeping, Progress, Replay, ReplayProgress, ReplayStore, Tally,
};
use walrelay_outbox_store::StoreFailure;
use walrelay_pg_replication::SystemIdentity;
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::server::{Connected, Database, Positions, Server};
use walrelay_relay::lifecycle::session::SessionSettings;
use walrelay_relay::lifecycle::supervisor::Supervisor;
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::mode::StopReason;
use walrelay_testkit::walsender::LIVE_SLOT;

use crate::bugs::ReplayBug;
use crate::harness::Harness;
use crate::judge::{End, Fault, Judge};
use crate::mutants::ReplayPublisher;
use crate::relay::{relay_settings, story_of};
use crate::replayer::Record;
use crate::table::Table;
use crate::world::{InboxDatabase, locked};

impl<F: Harness> InboxDatabase<F> {
    /// Begins a replay of a range between the anchor and the end of WAL, unless one is unfinished.
    pub(crate) fn begin_topic_replay(&self, first: u64, last: u64) {
        let mut record = locked(&self.replayer.record);
        if record.is_some() || !self.server.is_up() {
            return;
        }
        let number = {
            let mut count = locked(&self.replayer.count);
            *count += 1;
            *count
        };
        let (anchor, end) = (self.server.anchor(), self.server.wal_end());
        let at = |per_mille: u64| anchor + (end - anchor) * per_mille / 1_000;
        let (from, to) = (at(first), at(last));
        let (id, topic) = (format!("{number:08x}"), format!("projects/sim/topics/again{number}"));
        self.judge.replay_begins(&topic, &id, from, to);
        *record = Some(Record { id, topic, from, to, settled: (from, 0) });
        self.replayer.begun.notify_one();
    }

    /// Returns whether a replay is unfinished.
    pub(crate) fn has_topic_replay(&self) -> bool {
        locked(&self.replayer.record).is_some()
    }

    /// Runs processes of replays until the end of the run.
    pub(crate) async fn replay_to_topics(&self) {
        loop {
            tokio::select! {
                biased;
                () = self.last.requested() => return,
                () = self.replayer.begun.notified() => {}
            }
            while !self.last.is_requested() && self.resume_replay().await {}
        }
    }

    /// Runs a process that resumes the replay on record. Returns false if there is none.
    async fn resume_replay(&self) -> bool {
        let Some(record) = locked(&self.replayer.record).clone() else { return false };
        let shutdown = Shutdown::new();
        *locked(&self.replayer.shutdown) = shutdown.clone();
        let number = self.next_process();
        self.judge.replay_done_by(&record.topic, number);
        let is_done = tokio::select! {
            biased;
            () = self.replayer.crash.notified() => false,
            is_done = self.replay_once(&record, number, &shutdown) => is_done,
        };
        self.judge.process_gone(number, End::Broken);
        if is_done {
            *locked(&self.replayer.record) = None;
        }
        let pause = locked(&self.seed).time(Duration::ZERO, Duration::from_secs(2));
        sleep(pause).await;
        true
    }

    /// Runs one process. Returns whether it finished the replay.
    async fn replay_once(&self, record: &Record, number: u64, shutdown: &Shutdown) -> bool {
        let bug = self.fitting.replay_bug();
        let Record { id, topic, from, to, settled: (settled, rows) } = record.clone();
        let end = self.server.wal_end();
        let last = if bug == Some(ReplayBug::LeavesOut) { from + (to - from) / 2 } else { to };
        let replay = Replay {
            id,
            anchor_slot: "walrelay_anchor_a".to_owned(),
            selection: ReplaySelection {
                from: Lsn::new(from),
                to: Lsn::new(last),
                since: None,
                until: None,
                matching: ColumnFilter::default(),
            },
            start: Lsn::new(if bug == Some(ReplayBug::ForgetsItsPlace) { from } else { settled }),
            goal: Lsn::new((to + 1).min(end)),
            dead_rows: DeadRows::LeaveOut,
            keeping: Keeping::OnRecord,
        };
        let tally = Tally::resumed(rows, replay.start);
        let settings = self.replay_settings(&replay, &topic, bug);
        let publisher = ReplayPublisher::new(bug, self.pubsub.of_process(number));
        let noting = Noting {
            table: self.table.clone(),
            judge: self.judge.clone(),
            record: Arc::clone(&self.replayer.record),
            topic,
            bug,
        };
        let seed = locked(&self.seed).draw();
        let supervisor = Supervisor {
            settings: &settings,
            server: Copies { world: self, process: number, replay: &replay, tally: &tally, noting },
            publisher: CountingPublisher::new(Some(publisher), tally.clone()),
            metrics: Metrics::new(),
            health: Health::new(),
            random: Random::new(seed),
        };
        match Box::pin(supervisor.run(shutdown)).await {
            Ok(Some(StopReason::CaughtUp)) => true,
            // The process was stopped, or its first connection failed. Another process resumes the
            // replay.
            Ok(Some(StopReason::Stopped) | None) | Err(RelayError::AtFirst(_)) => false,
            Err(error) => {
                self.judge.find(Fault::GaveUp, story_of(&error));
                false
            }
        }
    }

    /// Returns the settings of the command, with the request limits that the plan draws.
    fn replay_settings(
        &self,
        replay: &Replay,
        topic: &str,
        bug: Option<ReplayBug>,
    ) -> SessionSettings {
        let mut relay = relay_settings(&self.plan);
        relay.max_attempts = 1;
        relay.router.topic = Template::parse(topic).expect("a template");
        let mut settings = replay.session_settings(&relay, self.plan.window.max);
        settings.window = self.plan.window;
        let LanePolicy { park_after, max_attempts, on_dead, .. } = settings.lanes;
        settings.lanes = LanePolicy { park_after, max_attempts, on_dead, ..self.plan.lanes };
        match bug {
            Some(ReplayBug::ForgetsItsMark) => settings.router.replay_id = None,
            Some(ReplayBug::StreamsTheLiveSlot) => settings.outbox.slot = LIVE_SLOT.to_owned(),
            Some(
                ReplayBug::ForgetsItsPlace
                | ReplayBug::LeavesOut
                | ReplayBug::NotesTooMuch
                | ReplayBug::RetriesBehindTheNext,
            )
            | None => {}
        }
        settings
    }
}

/// The progress of a replay, in the table.
#[derive(Clone)]
struct Noting {
    table: Table,
    judge: Judge,
    record: Arc<Mutex<Option<Record>>>,
    topic: String,
    bug: Option<ReplayBug>,
}

impl Progress for Noting {
    async fn note(&mut self, progress: ReplayProgress) -> Result<(), StoreFailure> {
        let ReplayProgress { settled, rows, .. } = progress;
        let write = || {
            let mut record = locked(&self.record);
            let Some(record) = record.as_mut().filter(|record| record.topic == self.topic) else {
                return;
            };
            let settled = match self.bug {
                Some(ReplayBug::NotesTooMuch) => record.to,
                _ => settled.as_u64(),
            };
            record.settled = (record.settled.0.max(settled), rows);
            self.judge.replay_noted(&self.topic, settled);
        };
        self.table.command("note a replay", write).await
    }
}

/// The scripted server, with a separate copy of the anchor for each connection.
struct Copies<'a, F> {
    world: &'a InboxDatabase<F>,
    process: u64,
    replay: &'a Replay,
    tally: &'a Tally,
    noting: Noting,
}

/// An ordinary connection to the scripted server.
struct CopyDatabase {
    replay: Replay,
    anchor: u64,
    tally: Tally,
    noting: Noting,
}

impl<F: Harness> Server for Copies<'_, F> {
    type Socket = DuplexStream;
    type Database = CopyDatabase;

    async fn connect(&self) -> Result<Connected<DuplexStream, CopyDatabase>, RelayError> {
        let replication = self.world.connect(self.process).await?;
        let (replay, tally) = (self.replay.clone(), self.tally.clone());
        let (anchor, noting) = (self.world.server.anchor(), self.noting.clone());
        Ok(Connected { replication, database: CopyDatabase { replay, anchor, tally, noting } })
    }
}

impl Database for CopyDatabase {
    type Store = ReplayStore<Noting>;

    async fn settled(&mut self) -> Result<Lsn, RelayError> {
        Ok(self.replay.start.max(self.tally.settled()))
    }

    async fn positions(&mut self) -> Result<Positions, RelayError> {
        let (confirmed_flush, wal_end) = (Lsn::new(self.anchor), self.replay.goal);
        Ok(Positions { confirmed_flush, wal_end, retention: WalRetentionLimit::Unlimited })
    }

    async fn into_store(self, _: SystemIdentity) -> Result<Self::Store, RelayError> {
        let Self { replay: Replay { dead_rows, .. }, tally, noting, .. } = self;
        Ok(ReplayStore { progress: Some(noting), dead_rows, tally, marks: None })
    }
}
