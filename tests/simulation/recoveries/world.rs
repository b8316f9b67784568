//! The state that survives the processes of a run: the disk, Pub/Sub, dispatch state and the judge.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use walrelay_core::{OnDead, WalBudgetLimit};
use walrelay_testkit::seed::Seed;
use walrelay_testkit::walsender::ScriptedServer;

use super::bug::Bug;
use super::disk::{Disk, Steps};
use super::judge::RecoveryJudge;
use crate::judge::{self, Judge, Status};
use crate::plan::Plan;
use crate::rows::TABLE;
use crate::table::{self, Table};

const KEYS: u32 = 6;

/// The WAL budget of the session that holds the slot.
pub(super) const BUDGET_BYTES: u64 = 64 << 10;

/// The key and the rows that Pub/Sub refuses.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) failing_key: Option<String>,
    pub(super) failing_until: Instant,
    pub(super) poison: BTreeSet<u32>,
}

/// The world of a run, without its processes.
pub(super) struct InboxDatabase {
    pub(super) disk: Disk,
    pub(super) topic: Topic,
    pub(super) judge: RecoveryJudge,
    pub(super) steps: Steps,
    pub(super) bug: Option<Bug>,
    pub(super) plan: Plan,
    pub(super) seed: Mutex<Seed>,
    /// Dispatch state.
    pub(super) dispatch: Table,
    pub(super) server: ScriptedServer,
    pub(super) connections: Mutex<JoinSet<()>>,
}

impl InboxDatabase {
    pub(super) fn new(seed: &mut Seed, bug: Option<Bug>) -> Self {
        let rows = seed.count(100, 500);
        let mut plan = Plan::calm([]);
        plan.lanes.batch_messages = 5;
        plan.wal_budget = WalBudgetLimit::Bytes(BUDGET_BYTES);
        let server = ScriptedServer::new(TABLE, Box::new(|_| {}));
        let rules = table::Rules {
            on_dead: OnDead::Continue,
            per_key_rows: 500,
            lease: Duration::from_secs(25),
            recorded_page: 500,
            before: u64::MAX,
        };
        let others = Judge::new(judge::Rules {
            dead_rows_hold: false,
            unsettled_bytes_max: usize::MAX,
            request_messages_max: usize::MAX,
            request_bytes_max: usize::MAX,
            status_timeout: Duration::MAX,
            take_over_after: Duration::MAX,
        });
        let dispatch =
            Table::new(rules, table::Intervals::HEALTHY, seed.fork(), others, server.clone());
        let topic = Topic {
            failing_key: seed.chance(500).then(|| format!("k{:03}", random_key(seed))),
            failing_until: Instant::now() + seed.time(Duration::ZERO, Duration::from_secs(20)),
            poison: (0..seed.count(0, 2))
                .map(|_| u32::try_from(seed.count(0, rows)).expect("few rows"))
                .collect(),
        };
        let (judge, steps) = (RecoveryJudge::default(), Steps::default());
        server.drop_slot().expect("nobody holds it");
        let (disk, connections) = (Disk::default(), Mutex::new(JoinSet::new()));
        let mut rows_of = seed.fork();
        let seed = Mutex::new(seed.fork());
        let world =
            Self { disk, topic, judge, steps, bug, plan, seed, dispatch, server, connections };
        for _ in 0..rows {
            world.commit(random_key(&mut rows_of));
        }
        world
    }

    /// Returns the numbers of the rows in dispatch state.
    pub(super) fn in_dispatch_state(&self) -> BTreeSet<u32> {
        use Status::{Dead, Discarded, Published, Retrying};
        self.dispatch.rows(&[Retrying, Dead, Published, Discarded]).into_iter().collect()
    }

    /// Reports to the judge which rows are in dispatch state.
    pub(super) fn report_recorded(&self) {
        self.judge.recorded(self.in_dispatch_state());
        self.judge.dead(self.dispatch.rows(&[Status::Dead]));
    }
}

/// Draws the key of a new row.
pub(super) fn random_key(seed: &mut Seed) -> u32 {
    u32::try_from(seed.between(0, u64::from(KEYS) - 1)).expect("few keys")
}
