//! Processes that recover, one after the other, each killed at a step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::DuplexStream;
use tokio::time::{sleep, timeout};
use walrelay_core::{Random, WalBudgetLimit};
use walrelay_errors::{Code, Coded as _};
use walrelay_outbox_replay::RecoveryCursor;
use walrelay_outbox_replay::recovery::{
    PlaceStore, Progress, ProgressReporting, TableStreamServer, hold_slot, run_recording_place,
};
use walrelay_pg_client::{PgError, ServerError};
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::server::{Connected, Server};
use walrelay_relay::lifecycle::session::{Purpose, SessionSettings};
use walrelay_relay::lifecycle::supervisor::Supervisor;
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::settings::Until;
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::mode::StopReason;
use walrelay_testkit::seed::Seed;

use super::bug::Bug;
use super::disk::CreatedSlot;
use super::publisher::TopicOf;
use super::slot::{SlotDatabase, SlotServer};
use super::table::{TableServer, described};
use super::world::{InboxDatabase, random_key};
use crate::judge::Fault;
use crate::relay::{settings, story_of};
use crate::world::locked;

/// The number of processes that may be killed. Later ones run to the end.
const KILLED_MAX: u64 = 6;
const PROCESSES_MAX: u64 = 20;

/// The longest time of a process, in virtual time.
const PATIENCE: Duration = Duration::from_secs(600);

/// The outcome of a run.
pub(super) struct Outcome {
    pub(super) findings: Vec<(Fault, String)>,
    /// The steps of all its processes.
    pub(super) steps: u64,
    /// The number of duplicate messages.
    pub(super) repeated: usize,
}

pub(super) struct Processes {
    world: Arc<InboxDatabase>,
}

impl Processes {
    pub(super) fn new(world: Arc<InboxDatabase>) -> Self {
        Self { world }
    }

    /// Runs processes until the recovery is finished.
    pub(super) async fn run(&self, mut dies_at: Option<u64>) -> Outcome {
        let InboxDatabase { disk, judge, steps, .. } = &*self.world;
        for process in 1..=PROCESSES_MAX {
            steps.arm(dies_at);
            tokio::select! {
                biased;
                () = steps.dies.notified() => {}
                () = self.world.write_beside() => {}
                () = self.recover(process) => {}
                () = sleep(PATIENCE) => judge.find(Fault::Unfinished, "a process"),
            }
            self.world.report_recorded();
            judge.process_gone();
            if disk.is_finished() {
                break;
            }
            let mut seed = locked(&self.world.seed).fork();
            if process < KILLED_MAX && seed.chance(250) {
                self.lose_slot(&mut seed).await;
            }
            let is_killed = process < KILLED_MAX && seed.chance(700);
            dies_at = is_killed.then(|| seed.between(1, 300));
            sleep(seed.time(Duration::ZERO, Duration::from_secs(2))).await;
        }
        steps.arm(None);
        match disk.is_finished() {
            true => self.stream().await,
            false => judge.find(Fault::Unfinished, "the recovery"),
        }
        let (findings, repeated) = judge.end();
        Outcome { findings, repeated, steps: steps.done() }
    }

    /// Drops the slot, and writes rows that no slot has.
    async fn lose_slot(&self, seed: &mut Seed) {
        self.world.disk.lose_slot(&self.world.in_dispatch_state());
        self.world.drop_slot().await;
        for _ in 0..seed.count(1, 40) {
            self.world.commit(random_key(seed));
        }
    }

    /// Creates the slot, unless the slot on record exists. Returns the part to publish, and the start
    /// of the slot.
    async fn slot(&self) -> (CreatedSlot, u64) {
        let InboxDatabase { disk, steps, server, dispatch, bug, .. } = &*self.world;
        if !disk.has_slot() {
            self.world.drop_slot().await;
            steps.pass().await;
            let point = server.wal_end();
            server.make_slot(point).expect("it is dropped");
            let made = disk.make_slot(point, *bug);
            steps.pass().await;
            disk.note_made(made, *bug);
            dispatch.begin_slot(point);
            steps.pass().await;
        }
        disk.part().expect("a slot is on record")
    }

    /// Publishes the rows of the slot, as the relay does after a recovery.
    async fn stream(&self) {
        let InboxDatabase { plan, judge, .. } = &*self.world;
        let mut settings = settings(plan);
        settings.until = Until::CaughtUp;
        let topic = TopicOf { world: Arc::clone(&self.world), commit_lsn: 0 };
        let ended = self.slot_supervisor(&settings, topic, (PROCESSES_MAX + 1, u64::MAX));
        match timeout(PATIENCE, ended.run(&Shutdown::new())).await {
            Ok(Ok(Some(StopReason::CaughtUp))) => {}
            Ok(Ok(Some(StopReason::Stopped) | None)) => judge.find(Fault::GaveUp, "stopped"),
            Ok(Err(error)) => judge.find(Fault::GaveUp, story_of(&error)),
            Err(_) => judge.find(Fault::Unfinished, "the rows of the slot"),
        }
        self.world.report_recorded();
    }

    fn slot_supervisor<'a>(
        &self,
        settings: &'a SessionSettings,
        publisher: TopicOf,
        (process, point): (u64, u64),
    ) -> Supervisor<'a, SlotServer, TopicOf> {
        Supervisor {
            settings,
            server: SlotServer { world: Arc::clone(&self.world), process, point },
            publisher,
            metrics: Metrics::new(),
            health: Health::new(),
            random: Random::new(locked(&self.world.seed).draw()),
        }
    }

    /// Runs one process until the recovery is finished.
    async fn recover(&self, process: u64) {
        while !self.world.disk.is_finished() {
            if !self.publish_part(process).await {
                return;
            }
        }
    }

    /// Publishes the rows of one part. Returns whether they are settled.
    async fn publish_part(&self, process: u64) -> bool {
        let InboxDatabase { disk, judge, steps, bug, plan, .. } = &*self.world;
        let (made, point) = self.slot().await;
        let place = disk.place(&made.snapshot(), *bug);
        let place = place.filter(|place| place.table_among(&[described()]).is_some());
        let place = place.filter(|_| *bug != Some(Bug::ForgetsItsPlace));
        judge.begins(&made);
        let progress = Progress::from(place);
        let mut settings = settings(plan);
        settings.until = Until::CaughtUp;
        settings.wal_budget = WalBudgetLimit::Off;
        settings.router.replay_id = Some("recovery".to_owned());
        let commit_lsn = made.consistent_point - 1;
        let topic = TopicOf { world: Arc::clone(&self.world), commit_lsn };
        let seed = locked(&self.world.seed).draw();
        let supervisor = Supervisor {
            settings: &settings,
            server: TableServer {
                world: Arc::clone(&self.world),
                process,
                made: made.clone(),
                progress: progress.clone(),
                serving: TableStreamServer::default(),
            },
            publisher: ProgressReporting::new(topic.clone(), progress.clone()),
            metrics: Metrics::new(),
            health: Health::new(),
            random: Random::new(seed),
        };
        let noting = Noting { world: Arc::clone(&self.world), made };
        let (stop, shutdown) = (Shutdown::new(), Shutdown::new());
        let running = Box::pin(supervisor.run(&stop));
        let filling = run_recording_place(running, (noting, &progress), (&stop, &shutdown));
        let mut of_holder = crate::relay::settings(plan);
        of_holder.purpose = Purpose::Record;
        let holder = self.slot_supervisor(&of_holder, topic, (process, point));
        let holding = async { Box::pin(holder.run(&stop)).await.map(drop) };
        let ended = match bug {
            Some(Bug::LeavesTheSlot) => filling.await,
            _ => hold_slot(filling, holding, &stop).await,
        };
        match ended {
            Ok(Some(StopReason::CaughtUp)) => {
                steps.pass().await;
                disk.finish_part();
                steps.pass().await;
                return true;
            }
            Ok(Some(StopReason::Stopped) | None) => judge.find(Fault::GaveUp, "stopped"),
            Err(error) => judge.find(Fault::GaveUp, story_of(&error)),
        }
        false
    }
}

/// The record of the recovery, as one process writes it.
struct Noting {
    world: Arc<InboxDatabase>,
    made: CreatedSlot,
}

impl PlaceStore for Noting {
    async fn note(&self, place: &RecoveryCursor) -> Result<(), RelayError> {
        let InboxDatabase { disk, judge, steps, bug, .. } = &*self.world;
        steps.pass().await;
        let mut place = place.clone();
        if *bug == Some(Bug::NotesWhatIsOnlyRead) {
            let behind = self.made.rows.iter().skip(place.number as usize + 25);
            if let Some(row) = behind.clone().next() {
                place.number += 25;
                place.row.key.aggregate_id = format!("k{:03}", row.key);
                place.row.order =
                    vec![Some(row.version.to_string()), Some(format!("e{}", row.number))];
            }
        }
        judge.noted(place.number);
        disk.note_place(self.made.snapshot(), place);
        steps.pass().await;
        Ok(())
    }
}

/// A server whose slot is dropped for a recovery while a relay connects.
struct Recovering {
    has_begun: AtomicBool,
}

impl Server for Recovering {
    type Socket = DuplexStream;
    type Database = SlotDatabase;

    async fn connect(&self) -> Result<Connected<DuplexStream, SlotDatabase>, RelayError> {
        if self.has_begun.swap(true, Ordering::Relaxed) {
            let (code, summary) = (Code::RecoveryPending, String::new());
            return Err(RelayError::Setup { code, summary });
        }
        let answer = ServerError { code: "42704".to_owned(), ..ServerError::default() };
        Err(RelayError::Connect(PgError::Server(Box::new(answer))))
    }
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_a_recovery_drops_while_a_relay_connects_is_looked_at_once_more() {
    let world = Arc::new(InboxDatabase::new(&mut Seed::new(0), None));
    let settings = settings(&world.plan);
    let relay = Supervisor {
        settings: &settings,
        server: Recovering { has_begun: AtomicBool::new(false) },
        publisher: TopicOf { world: Arc::clone(&world), commit_lsn: 0 },
        metrics: Metrics::new(),
        health: Health::new(),
        random: Random::new(0),
    };
    let error = relay.run(&Shutdown::new()).await.expect_err("no session began");
    assert_eq!(error.code(), Code::RecoveryPending, "{error}");
}
