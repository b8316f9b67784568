//! One run of a seed, from its plan to its outcome.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::timeout;
use walrelay_relay::shutdown::Shutdown;
use walrelay_testkit::seed::Seed;
use walrelay_testkit::walsender::ScriptedServer;

use crate::events::PATIENCE;
use crate::harness::Harness;
use crate::instance::Instance;
use crate::judge::{self, Event, Fault, Judge};
use crate::plan::Plan;
use crate::pubsub::{PubSub, REQUEST_TIMEOUT};
use crate::relay::{SENDER_TIMEOUT, settings};
use crate::replayer::Replayer;
use crate::rows::TABLE;
use crate::table::{self, Table};
use crate::world::{InboxDatabase, locked};

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) findings: Vec<(Fault, String)>,
    pub(crate) story: String,
    pub(crate) stored: u64,
    pub(crate) repeated: u64,
    /// The number of processes that ended because they had caught up.
    pub(crate) caught_up: u64,
    /// The number of stored rows of replays in place.
    pub(crate) replayed: usize,
    /// The number of stored rows of replays to a topic.
    pub(crate) copies: usize,
    /// The number of finished resets.
    pub(crate) resets: u64,
}

/// The bytes that the buffer between socket and decoder may hold in addition to the budget.
const READ_BUFFER_BYTES: usize = 256 << 10;

/// Runs a seed to its end.
pub(crate) async fn run<F: Harness>(
    seed: u64,
    plan: Option<Plan>,
    fitting: F,
    lines: usize,
) -> Outcome {
    let mut seed = Seed::new(seed);
    let drawn = Plan::of(&mut seed);
    let plan = plan.unwrap_or(drawn);
    let judge = Judge::new(judge::Rules {
        dead_rows_hold: plan.lanes.on_dead == walrelay_core::OnDead::Hold,
        unsettled_bytes_max: plan.budget_bytes + READ_BUFFER_BYTES + plan.socket_bytes,
        request_messages_max: plan.lanes.batch_messages,
        request_bytes_max: plan.lanes.batch_bytes,
        status_timeout: SENDER_TIMEOUT,
        take_over_after: plan.take_over_after.unwrap_or_default(),
    });
    judge.note(Event::Chaos(format!("{plan:#?}")));
    let server = ScriptedServer::new(TABLE, fitting.watcher(judge.clone()));
    let pubsub = PubSub::new(plan.pubsub, seed.fork(), judge.clone());
    let rules = table::Rules {
        on_dead: plan.lanes.on_dead,
        per_key_rows: plan.per_key_rows,
        lease: REQUEST_TIMEOUT + Duration::from_secs(15),
        recorded_page: u32::try_from(plan.per_key_rows).unwrap_or(u32::MAX),
        before: u64::MAX,
    };
    let table = Table::new(rules, plan.table, seed.fork(), judge.clone(), server.clone());
    let mut settings = settings(&plan);
    fitting.adjust(&mut settings);
    let world = Arc::new(InboxDatabase {
        fitting,
        judge: judge.clone(),
        server,
        pubsub,
        table,
        settings,
        connections: Mutex::new(JoinSet::new()),
        instances: (0..plan.instances).map(|_| Instance::default()).collect(),
        processes: Mutex::new(0),
        caught_up: Mutex::new(0),
        last: Shutdown::new(),
        row_count: Mutex::new(0),
        dies_after: Mutex::new(None),
        replayer: Replayer::default(),
        plan,
        seed: Mutex::new(seed.fork()),
    });
    let relays = world.instances.iter().map(|instance| world.relay(instance));
    let life = async {
        tokio::join!(join_all(relays), world.replay_to_topics(), world.happen(seed.fork()));
    };
    if timeout(PATIENCE * 4, life).await.is_err() {
        judge.find(Fault::DidNotStop, "the run does not end");
    }
    let (stored, repeated) = judge.stored_counts();
    let caught_up = *locked(&world.caught_up);
    let (findings, story, replayed) =
        (judge.findings(), judge.story(lines), judge.replayed_count());
    let (copies, resets) = (judge.copies_count(), judge.resets_count());
    Outcome { findings, story, stored, repeated, caught_up, replayed, copies, resets }
}
