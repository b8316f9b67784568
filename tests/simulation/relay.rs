//! The relay's side of a run: what `supervise` and `session::open` do in the service.

use std::time::Duration;

use pgoutput_parser::{Decoder, Lsn};
use tokio::io::{DuplexStream, ReadHalf, WriteHalf, duplex};
use tokio::time::{Instant, sleep, timeout};
use walrelay_core::{
    AttributeStyle, Budget, BudgetLimits, ColumnNames, Lanes, Router, RouterConfig, Template,
    Topic, Tracker, Window,
};
use walrelay_postgres::{
    Holdings, PgError, ReplicationConnection, Startup, Store as _, StoreFailure, StreamSettings,
};
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::observe::observer::Observer;
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::pipeline::{self, Flow, PipelineError, Session};
use walrelay_relay::stream::publishes::Publishes;
use walrelay_relay::stream::recorded_rows::RecordedRows;
use walrelay_relay::stream::recorder::{Intervals, Recorder};

use crate::fitting::{Fitting, Step};
use crate::judge::{End, Event, Fault, Hex};
use crate::table::SessionTable;
use crate::world::{World, locked};

/// The production session, with simulated ends.
type Simulated<F> = Session<
    ReadHalf<DuplexStream>,
    WriteHalf<DuplexStream>,
    <F as Fitting>::Publisher,
    <F as Fitting>::Store,
>;

pub(crate) const SENDER_TIMEOUT: Duration = Duration::from_secs(15);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(7);

impl<F: Fitting> World<F> {
    /// Processes, one after the other.
    pub(crate) async fn relay(&self) {
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
        let mut store = self.fitting.store(SessionTable::new(self.table.clone()));
        let holdings = store.holdings(Lsn::new(confirmed_flush)).await;
        let Holdings { parked, mut recorded } = holdings.map_err(broken)?;
        let now = Instant::now().into_std();
        for key in parked.iter().filter(|_| !self.fitting.omits(Step::LoadParked)) {
            let due_in = key.next_attempt_in.unwrap_or_default().min(Duration::from_secs(5));
            lanes.load_parked(&Topic::from(key.topic.as_str()), &key.ordering_key, now + due_in);
        }
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
        let publisher = self.fitting.publisher(self.pubsub.clone());
        Ok(Session {
            frames,
            feedback,
            publishes: Publishes::new(publisher, Window::new(self.plan.window)),
            recorder: Recorder::new(store, intervals()),
            decoder: Decoder::new(),
            flow: Flow {
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

fn broken(_: StoreFailure) -> PgError {
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
