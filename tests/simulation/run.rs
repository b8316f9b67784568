//! One run: the relay's processes, one session after the other, and what happens to them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pgoutput_parser::{Decoder, Lsn};
use tokio::io::{DuplexStream, ReadHalf, WriteHalf, duplex};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use walrelay_core::{
    AttributeStyle, Budget, BudgetLimits, ColumnNames, Lanes, Router, RouterConfig, Template,
    Topic, Tracker, Window,
};
use walrelay_postgres::{PgError, ReplicationConnection, Startup, StreamSettings};
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::observe::observer::Observer;
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::pipeline::{self, Flow, PipelineError, Session};
use walrelay_relay::stream::publishes::Publishes;
use walrelay_relay::stream::recorded_rows::RecordedRows;
use walrelay_relay::stream::recorder::{Intervals, Recorder};
use walrelay_relay::stream::seams::{Publisher, Store};
use walrelay_testkit::seed::Seed;
use walrelay_testkit::walsender::{
    Log, OpenTransaction, OutboxTable, RowRecord, ScriptedServer, Watcher,
};

use crate::judge::{self, End, Event, Fault, Hex, Judge, Row, RowNumber, Status};
use crate::plan::{Action, Plan, RowKind, RowSpec, Scope};
use crate::pubsub::{PubSub, REQUEST_TIMEOUT, Sickness};
use crate::table::{self, SessionTable, Table};

/// What is put between the relay and the world: nothing, or a planted bug.
pub(crate) trait Fitting: Clone + Send + 'static {
    type Publisher: Publisher;
    type Store: Store;

    /// What the relay publishes to.
    fn publisher(&self, pubsub: PubSub) -> Self::Publisher;

    /// What the relay keeps its dispatch state in.
    fn store(&self, table: SessionTable) -> Self::Store;

    /// What the server's side of the connection is heard through.
    fn watcher(&self, judge: Judge) -> Watcher {
        Box::new(move |seen| judge.seen(seen))
    }

    /// What the driver of sessions leaves out.
    fn omits(&self, _step: Step) -> bool {
        false
    }
}

/// A step of the driver that a planted bug may leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Loading parked keys when a session opens.
    LoadParked,
    /// Loading what is recorded behind the slot's position.
    LoadRecorded,
    /// Waiting for requests that are out when a connection breaks.
    AwaitAnswers,
    /// Keeping to the budget.
    Budget,
}

/// No planted bug.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faithful;

impl Fitting for Faithful {
    type Publisher = PubSub;
    type Store = SessionTable;

    fn publisher(&self, pubsub: PubSub) -> PubSub {
        pubsub
    }

    fn store(&self, table: SessionTable) -> SessionTable {
        table
    }
}

/// The production session, with simulated ends.
type Simulated<F> = Session<
    ReadHalf<DuplexStream>,
    WriteHalf<DuplexStream>,
    <F as Fitting>::Publisher,
    <F as Fitting>::Store,
>;

/// Everything of a run but the relay.
struct World<F> {
    fitting: F,
    plan: Plan,
    judge: Judge,
    server: ScriptedServer,
    pubsub: PubSub,
    table: Table,
    connections: Mutex<JoinSet<()>>,
    seed: Mutex<Seed>,
    /// The running process is asked to stop with this.
    shutdown: Mutex<Shutdown>,
    crash: Notify,
    cut: Notify,
    /// Set at the very end: no process follows the one that stops.
    last: Shutdown,
    row_count: Mutex<RowNumber>,
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) findings: Vec<(Fault, String)>,
    pub(crate) story: String,
    pub(crate) stored: u64,
    pub(crate) repeated: u64,
}

const TABLE: OutboxTable = OutboxTable {
    relation_id: 16_400,
    schema: "public",
    name: "app_outbox",
    columns: &[
        ("id", 25),
        ("aggregatetype", 25),
        ("aggregateid", 25),
        ("event_type", 25),
        ("version", 20),
        ("schema_version", 23),
        ("payload", 3_802),
        ("headers", 3_802),
        ("occurred_at", 1_184),
    ],
};

const SENDER_TIMEOUT: Duration = Duration::from_secs(15);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(7);
/// A server that shuts down is let go within this, whatever Pub/Sub does: the requests that are out
/// are awaited, and a stalled socket is noticed.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(60);
/// What the buffer between socket and decoder may hold beside the budget.
const READ_BUFFER_BYTES: usize = 256 << 10;
/// After everything is healed, this is enough for every back-off there is.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Runs a seed to its end.
pub(crate) async fn run<F: Fitting>(
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
    });
    judge.note(Event::Chaos(format!("{plan:#?}")));
    let server = ScriptedServer::new(TABLE, fitting.watcher(judge.clone()));
    let pubsub = PubSub::new(plan.pubsub, seed.fork(), judge.clone());
    let rules = table::Rules {
        on_dead: plan.lanes.on_dead,
        per_key_rows: plan.per_key_rows,
        lease: REQUEST_TIMEOUT + Duration::from_secs(15),
    };
    let table = Table::new(rules, plan.table, seed.fork(), judge.clone(), server.clone());
    let world = Arc::new(World {
        fitting,
        judge: judge.clone(),
        server,
        pubsub,
        table,
        connections: Mutex::new(JoinSet::new()),
        shutdown: Mutex::new(Shutdown::new()),
        crash: Notify::new(),
        cut: Notify::new(),
        last: Shutdown::new(),
        row_count: Mutex::new(0),
        plan,
        seed: Mutex::new(seed.fork()),
    });
    let life = async {
        tokio::join!(world.relay(), world.happen(seed.fork()));
    };
    if timeout(PATIENCE * 4, life).await.is_err() {
        judge.find(Fault::DidNotStop, "the run does not end");
    }
    let (stored, repeated) = judge.stored_counts();
    Outcome { findings: judge.findings(), story: judge.story(lines), stored, repeated }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// The relay's side: what `supervise` and `session::open` do in the service.
impl<F: Fitting> World<F> {
    /// Processes, one after the other.
    async fn relay(&self) {
        loop {
            let shutdown = Shutdown::new();
            *locked(&self.shutdown) = shutdown.clone();
            if self.last.is_requested() {
                return;
            }
            let end = tokio::select! {
                biased;
                () = self.crash.notified() => End::Broken,
                end = self.process(&shutdown) => end,
            };
            self.judge.process_gone(end);
            let pause = locked(&self.seed).time(Duration::ZERO, Duration::from_secs(2));
            tokio::select! {
                () = sleep(pause) => {}
                () = self.last.requested() => return,
            }
        }
    }

    /// Sessions until one ends well.
    async fn process(&self, shutdown: &Shutdown) -> End {
        loop {
            let opened = tokio::select! {
                opened = timeout(Duration::from_secs(10), self.open()) => opened,
                () = shutdown.requested() => return End::Graceful,
            };
            if let Ok(Ok(session)) = opened
                && let Some(end) = self.session(session, shutdown).await
            {
                return end;
            }
            let pause = locked(&self.seed).time(Duration::from_millis(20), Duration::from_secs(1));
            tokio::select! {
                () = sleep(pause) => {}
                () = shutdown.requested() => return End::Graceful,
            }
        }
    }

    /// One session; how the process ends, if it does.
    async fn session(&self, session: Simulated<F>, shutdown: &Shutdown) -> Option<End> {
        let asked_at = async {
            shutdown.requested().await;
            Instant::now()
        };
        let running = pipeline::run(session, shutdown);
        tokio::pin!(asked_at);
        tokio::pin!(running);
        let mut asked = None;
        let result = loop {
            tokio::select! {
                biased;
                at = &mut asked_at, if asked.is_none() => asked = Some(at),
                () = self.cut.notified(), if self.fitting.omits(Step::AwaitAnswers) => {
                    self.judge.session_ended(End::Broken, "dropped".into());
                    return None;
                }
                result = &mut running => break result,
            }
        };
        let drained = asked.is_none_or(|asked| asked.elapsed() < DRAIN_TIMEOUT);
        let end = if result.is_ok() && drained { End::Graceful } else { End::Broken };
        let how = match &result {
            Ok(ended) => format!("{ended:?}, {end:?}"),
            Err(error) => story_of(error),
        };
        self.judge.session_ended(end, how);
        if let Err(error) = &result
            && !matches!(error, PipelineError::Stream(_) | PipelineError::ServerStops)
        {
            self.judge.find(Fault::Altered, story_of(error));
        }
        result.is_ok().then_some(end)
    }

    async fn open(&self) -> Result<Simulated<F>, PgError> {
        if !self.server.is_up() {
            return Err(PgError::EndedByServer);
        }
        let (ours, theirs) = duplex(self.plan.socket_bytes);
        let (server, manners) = (self.server.clone(), self.plan.manners);
        let seed = locked(&self.seed).fork();
        {
            let mut connections = locked(&self.connections);
            while connections.try_join_next().is_some() {}
            connections.spawn(async move { server.serve(theirs, manners, seed).await });
        }
        let startup = Startup {
            user: "walrelay",
            database: "app",
            application_name: "walrelay",
            password: None,
            options: "",
        };
        let mut replication = ReplicationConnection::handshake(ours, &startup).await?;
        replication.identify_system().await?;
        let stream = StreamSettings::for_sender_timeout(Some(SENDER_TIMEOUT));
        let publications = ["walrelay".to_owned()];
        let (frames, mut feedback) =
            replication.start("walrelay", &publications, Lsn::ZERO, &stream).await?;

        // Only now, as in the service: read before, another relay could park rows in between.
        let confirmed_flush = self.server.confirmed_flush();
        feedback.received(Lsn::new(confirmed_flush));
        let lanes_seed = locked(&self.seed).draw();
        let mut lanes = Lanes::new(self.plan.lanes, lanes_seed);
        let parked = self.table.parked_keys().await.map_err(broken)?;
        let now = Instant::now().into_std();
        for key in parked.iter().filter(|_| !self.fitting.omits(Step::LoadParked)) {
            let due_in = key.due_in.min(Duration::from_secs(5));
            lanes.load_parked(&Topic::from(key.topic.as_str()), &key.ordering_key, now + due_in);
        }
        let mut recorded = self.table.recorded_since(confirmed_flush).await.map_err(broken)?;
        self.judge.note(Event::Opened {
            confirmed_flush: Hex(confirmed_flush),
            parked: parked.len(),
            recorded: recorded.len(),
        });
        if self.fitting.omits(Step::LoadRecorded) {
            recorded.clear();
        }
        let budget_bytes = match self.fitting.omits(Step::Budget) {
            true => usize::MAX / 2,
            false => self.plan.budget_bytes,
        };
        let store = self.fitting.store(SessionTable::new(self.table.clone()));
        let publisher = self.fitting.publisher(self.pubsub.clone());
        Ok(Session {
            frames,
            feedback,
            publishes: Publishes::new(publisher, Window::new(self.plan.window)),
            recorder: Recorder::new(store, intervals()),
            flow: Flow {
                decoder: Decoder::new(),
                router: Router::new(router()),
                recorded_rows: RecordedRows::new(recorded),
                tracker: Tracker::new(),
                budget: Budget::new(BudgetLimits::of_bytes(budget_bytes)),
                lanes,
                observer: Observer::new(Metrics::new(), Health::new()),
            },
            goal: None,
            drain_timeout: DRAIN_TIMEOUT,
        })
    }
}

/// The service's intervals, and a retention short enough to matter.
fn intervals() -> Intervals {
    let retention = Duration::from_secs(5);
    Intervals { prune: Duration::from_secs(7), ..Intervals::with_retention(retention) }
}

fn story_of(error: &PipelineError) -> String {
    let mut story = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause {
        story.push_str(": ");
        story.push_str(&deeper.to_string());
        cause = deeper.source();
    }
    story
}

fn broken(_: walrelay_relay::stream::seams::StoreFailure) -> PgError {
    PgError::EndedByServer
}

fn router() -> RouterConfig {
    RouterConfig {
        project: "sim".into(),
        topic: Template::parse("{aggregatetype}.events").expect("a template"),
        ordering_key: Template::parse("{aggregateid}").expect("a template"),
        columns: ColumnNames::default(),
        style: AttributeStyle::Default,
        replay_id: None,
    }
}

// The world's side: everything that happens to the relay, and the end.
impl<F: Fitting> World<F> {
    async fn happen(&self, mut seed: Seed) {
        let started = Instant::now();
        for (at, action) in self.plan.timeline.clone() {
            sleep_until(started + at).await;
            self.land();
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
        if !self.judge.has_findings() {
            self.finish(&mut seed).await;
        }
        self.last.request();
        self.crash.notify_waiters();
        locked(&self.shutdown).request();
    }

    fn land(&self) {
        self.pubsub.land_strays();
        self.table.land_late();
    }

    /// With everything healed: done in time, stopped in time, and nothing repeated after that.
    async fn finish(&self, seed: &mut Seed) {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_done() {
            if Instant::now() > deadline || self.judge.has_findings() {
                return self.find_undone();
            }
            sleep(Duration::from_secs(1)).await;
            self.land();
            self.attend(seed);
        }
        // A graceful stop, and a start after it: no row may come twice.
        self.act(Action::Stop, seed).await;
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
        let (confirmed, end) = (self.server.confirmed_flush(), self.server.wal_end());
        if confirmed < end && !self.judge.has_findings() {
            let text = format!("{:?} of {:?}", Hex(confirmed), Hex(end));
            self.judge.find(Fault::ConfirmedNever, text);
        }
    }

    fn is_done(&self) -> bool {
        self.judge.is_done() && self.server.confirmed_flush() >= self.server.wal_end()
    }

    /// An operator who looks after what is dead.
    fn attend(&self, seed: &mut Seed) {
        for row in self.table.rows(&[Status::Dead]) {
            let is_hopeless = self.pubsub.is_poison(row) || self.judge.is_unroutable(row);
            match is_hopeless {
                true if seed.chance(300) => self.table.discard(row),
                true => {}
                false => self.table.retry(|other, _| other == row),
            }
        }
    }

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
                self.cut.notify_waiters();
            }
            Action::Stall { time } => {
                self.judge.silence_excused(now + time);
                self.server.stall(now + time);
            }
            Action::ServerCrash { down } => {
                self.server.crash();
                self.judge.server_crashed();
                sleep(down).await;
                self.server.start();
            }
            Action::ServerShutdown { down } => {
                if self.server.shut_down(SHUTDOWN_PATIENCE).await {
                    self.judge.find(Fault::ShutdownBlocked, "the server waits for the relay");
                }
                sleep(down).await;
                self.server.start();
            }
            Action::ProcessCrash => self.crash.notify_waiters(),
            Action::Stop => locked(&self.shutdown).request(),
            Action::Sick { scope, class, time } => {
                let RowPlanNames { topic, key } = self.names(seed);
                self.pubsub.falls_sick(Sickness {
                    topic: (scope != Scope::Everything).then_some(topic),
                    key: (scope == Scope::Key).then_some(key),
                    until: now + time,
                    class,
                });
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
            Action::DiscardOne => {
                self.open_row(seed).into_iter().for_each(|row| self.table.discard(row));
            }
        }
    }

    /// A row of the table that an operator might look at.
    fn open_row(&self, seed: &mut Seed) -> Option<RowNumber> {
        let open = self.table.rows(&[Status::Dead, Status::Retrying]);
        (!open.is_empty()).then(|| *seed.pick(&open))
    }

    fn commit_rows(&self, specs: &[RowSpec]) {
        let mut transaction = self.server.write(Log::begin);
        let rows: Vec<_> = specs.iter().map(|spec| self.row_of(*spec)).collect();
        for row in &rows {
            let columns = columns(row);
            self.server.write(|log| log.insert(&mut transaction, columns, RowRecord::Own));
        }
        self.seal(transaction, rows);
    }

    fn names(&self, seed: &mut Seed) -> RowPlanNames {
        let topic = topic_name(seed.between(1, self.plan.rows.topics));
        RowPlanNames { topic, key: format!("k{}", seed.between(1, self.plan.rows.keys)) }
    }

    /// Transactions whose rows interleave; they commit in any order, some not at all.
    fn commit(&self, row_counts: &[usize], seed: &mut Seed) {
        let mut left = row_counts.to_vec();
        let mut open: Vec<_> =
            row_counts.iter().map(|_| (self.server.write(Log::begin), Vec::new())).collect();
        while left.iter().any(|count| *count > 0) {
            let index = seed.count(0, left.len() - 1);
            if left[index] == 0 {
                continue;
            }
            left[index] -= 1;
            let row = self.row(seed);
            let record = if seed.chance(200) { RowRecord::Shared } else { RowRecord::Own };
            let (transaction, rows) = &mut open[index];
            self.server.write(|log| log.insert(transaction, columns(&row), record));
            rows.push(row);
        }
        while !open.is_empty() {
            let (transaction, rows) = open.swap_remove(seed.count(0, open.len() - 1));
            if seed.chance(100) {
                self.server.write(|log| log.roll_back(transaction));
                continue;
            }
            self.seal(transaction, rows);
        }
    }

    /// Commits, and tells the judge what.
    fn seal(&self, transaction: OpenTransaction, mut rows: Vec<Row>) {
        let (commit_lsn, end_lsn) = self.server.write(|log| log.commit(transaction));
        for (row, tx_index) in rows.iter_mut().zip(0..) {
            (row.commit_lsn, row.end_lsn, row.tx_index) = (commit_lsn, end_lsn, tx_index);
        }
        self.judge.committed(rows);
    }

    fn row(&self, seed: &mut Seed) -> Row {
        let RowPlanNames { topic, mut key } = self.names(seed);
        let plan = self.plan.rows;
        if seed.chance(plan.unkeyed_per_mille) {
            key.clear();
        }
        let kind =
            match (seed.chance(plan.poison_per_mille), seed.chance(plan.unroutable_per_mille)) {
                (_, true) => RowKind::Unroutable,
                (true, false) => RowKind::Poison,
                (false, false) => RowKind::Good,
            };
        self.new_row(topic, key, kind, seed.count(0, plan.payload_bytes_max))
    }

    fn row_of(&self, RowSpec { key, kind }: RowSpec) -> Row {
        self.new_row(topic_name(1), format!("k{key}"), kind, 10)
    }

    fn new_row(&self, topic: String, key: String, kind: RowKind, padding: usize) -> Row {
        let number = {
            let mut count = locked(&self.row_count);
            *count += 1;
            *count
        };
        if kind == RowKind::Poison {
            self.pubsub.poison(number);
        }
        Row {
            number,
            topic,
            key,
            payload: format!("{{\"row\":{number},\"padding\":\"{}\"}}", "x".repeat(padding)),
            is_unroutable: kind == RowKind::Unroutable,
            commit_lsn: 0,
            end_lsn: 0,
            tx_index: 0,
        }
    }
}

struct RowPlanNames {
    topic: String,
    key: String,
}

fn topic_name(number: u64) -> String {
    format!("projects/sim/topics/t{number}.events")
}

fn columns(row: &Row) -> Vec<Option<String>> {
    let aggregate_type = row.topic.trim_start_matches("projects/sim/topics/");
    let headers = if row.is_unroutable { "[\"no object\"]" } else { "{\"trace\":\"none\"}" };
    vec![
        Some(format!("e{}", row.number)),
        Some(aggregate_type.trim_end_matches(".events").into()),
        Some(row.key.clone()),
        Some("made_up".into()),
        Some(row.number.to_string()),
        Some("1".into()),
        Some(row.payload.clone()),
        Some(headers.into()),
        Some("2026-01-01 12:00:00.000001+00".into()),
    ]
}
