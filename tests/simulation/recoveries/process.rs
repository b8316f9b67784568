//! Processes that recover, one after the other, each killed at a step.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_core::{OnDead, Random, WalBudgetLimit};
use walrelay_postgres::FillingPlace;
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::supervisor::Supervisor;
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::recovery::{Followed, NotePlace, Progress, Serving, run_noting};
use walrelay_relay::settings::Until;
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::mode::Ended;
use walrelay_testkit::seed::Seed;
use walrelay_testkit::walsender::ScriptedServer;

use super::disk::{Disk, Made, Steps};
use super::judge::RecoveryJudge;
use super::publisher::{Topic, TopicOf};
use super::table::{TableServer, described};
use super::{Bug, Outcome, World};
use crate::judge::{self, Fault, Judge, Status};
use crate::plan::Plan;
use crate::relay::{settings, story_of};
use crate::rows::TABLE;
use crate::table::{self, Table};
use crate::world::locked;

/// Processes that may be killed; those after them are not.
const KILLED_MAX: u64 = 6;
const PROCESSES_MAX: u64 = 20;
const KEYS: u32 = 6;

impl World {
    pub(super) fn new(seed: &mut Seed, bug: Option<Bug>) -> Self {
        let disk = Disk::default();
        let rows = seed.count(100, 500);
        (0..rows).for_each(|_| disk.commit(a_key(seed)));
        let mut plan = Plan::calm([]);
        plan.lanes.batch_messages = 5;
        let server = ScriptedServer::new(TABLE, Box::new(|_| {}));
        let rules = table::Rules {
            on_dead: OnDead::Continue,
            per_key_rows: 500,
            lease: Duration::from_secs(25),
            recorded_page: 500,
        };
        let others = Judge::new(judge::Rules {
            dead_rows_hold: false,
            unsettled_bytes_max: usize::MAX,
            request_messages_max: usize::MAX,
            request_bytes_max: usize::MAX,
            status_timeout: Duration::MAX,
            take_over_after: Duration::MAX,
        });
        let dispatch = Table::new(rules, table::Intervals::HEALTHY, seed.fork(), others, server);
        let topic = Topic {
            sick_key: seed.chance(500).then(|| format!("k{:03}", a_key(seed))),
            sick_until: Instant::now() + seed.time(Duration::ZERO, Duration::from_secs(20)),
            poison: (0..seed.count(0, 2))
                .map(|_| u32::try_from(seed.count(0, rows)).expect("few rows"))
                .collect(),
        };
        let (judge, steps) = (RecoveryJudge::default(), Steps::default());
        let seed = Mutex::new(seed.fork());
        Self { disk, topic, judge, steps, bug, plan, seed, dispatch }
    }

    /// Numbers of the rows that dispatch state has.
    pub(super) fn in_dispatch_state(&self) -> BTreeSet<u32> {
        use Status::{Dead, Discarded, Published, Retrying};
        self.dispatch.rows(&[Retrying, Dead, Published, Discarded]).into_iter().collect()
    }
}

fn a_key(seed: &mut Seed) -> u32 {
    u32::try_from(seed.between(0, u64::from(KEYS) - 1)).expect("few keys")
}

pub(super) struct Processes {
    world: Arc<World>,
}

impl Processes {
    pub(super) fn new(world: Arc<World>) -> Self {
        Self { world }
    }

    /// Until the recovery is finished.
    pub(super) async fn run(&self, mut dies_at: Option<u64>) -> Outcome {
        let World { disk, judge, steps, .. } = &*self.world;
        for process in 1..=PROCESSES_MAX {
            steps.arm(dies_at);
            tokio::select! {
                biased;
                () = steps.dies.notified() => {}
                () = self.recover(process) => {}
            }
            judge.recorded(self.world.in_dispatch_state());
            judge.process_gone();
            if disk.is_finished() {
                break;
            }
            let mut seed = locked(&self.world.seed).fork();
            if process < KILLED_MAX && seed.chance(250) {
                disk.lose_slot();
                (0..seed.count(1, 40)).for_each(|_| disk.commit(a_key(&mut seed)));
            }
            let is_killed = process < KILLED_MAX && seed.chance(700);
            dies_at = is_killed.then(|| seed.between(1, 300));
            sleep(seed.time(Duration::ZERO, Duration::from_secs(2))).await;
        }
        let (findings, repeated) = judge.end(disk.is_finished());
        Outcome { findings, repeated, steps: steps.done() }
    }

    /// The slot, unless one is on record and there.
    async fn slot(&self) -> Made {
        let World { disk, steps, .. } = &*self.world;
        if let Some(made) = disk.made() {
            return made;
        }
        steps.pass().await;
        let made = disk.make_slot();
        steps.pass().await;
        disk.note_made(made.clone());
        steps.pass().await;
        made
    }

    /// One process.
    async fn recover(&self, process: u64) {
        let World { disk, judge, steps, bug, plan, .. } = &*self.world;
        let made = self.slot().await;
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
                serving: Serving::default(),
            },
            publisher: Followed::new(topic, progress.clone()),
            metrics: Metrics::new(),
            health: Health::new(),
            random: Random::new(seed),
        };
        let noting = Noting { world: Arc::clone(&self.world), made };
        let (stop, shutdown) = (Shutdown::new(), Shutdown::new());
        let running = Box::pin(supervisor.run(&stop));
        match run_noting(running, (noting, &progress), (&stop, &shutdown)).await {
            Ok(Some(Ended::CaughtUp)) => {
                steps.pass().await;
                disk.finish();
            }
            Ok(Some(Ended::Stopped) | None) => judge.find(Fault::GaveUp, "stopped"),
            Err(error) => judge.find(Fault::GaveUp, story_of(&error)),
        }
    }
}

/// The record of the recovery, as one process writes it.
struct Noting {
    world: Arc<World>,
    made: Made,
}

impl NotePlace for Noting {
    async fn note(&self, place: &FillingPlace) -> Result<(), RelayError> {
        let World { disk, judge, steps, bug, .. } = &*self.world;
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
