//! The relay's side of a run: processes that the production supervisor runs, some of them
//! concurrently.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_core::{
    AttributeStyle, ColumnNames, EditedMessages, Random, RouterConfig, SystemIdentifierMode,
    Template,
};
use walrelay_outbox_store::{Outbox, Shard};
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::session::SessionSettings;
use walrelay_relay::lifecycle::supervisor::Supervisor;
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::settings::{RelaySettings, Until};
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::mode::StopReason;
use walrelay_testkit::walsender::LIVE_SLOT;

use crate::database::SimulatedServer;
use crate::harness::Harness;
use crate::instance::Instance;
use crate::judge::{End, Fault};
use crate::plan::Plan;
use crate::world::{InboxDatabase, locked};

pub(crate) const SENDER_TIMEOUT: Duration = Duration::from_secs(15);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(7);

impl<F: Harness> InboxDatabase<F> {
    /// Runs the processes of one instance, one after the other.
    pub(crate) async fn relay(&self, instance: &Instance) {
        loop {
            let shutdown = Shutdown::new();
            *locked(&instance.shutdown) = shutdown.clone();
            if self.last.is_requested() {
                return;
            }
            let number = self.next_process();
            let end = tokio::select! {
                biased;
                () = instance.crash.notified() => End::Broken,
                end = instance.freezable(self.process(number, &shutdown)) => end,
            };
            self.judge.process_gone(number, end);
            let pause = locked(&self.seed).time(Duration::ZERO, Duration::from_secs(2));
            tokio::select! {
                () = sleep(pause) => {}
                () = self.last.requested() => return,
            }
        }
    }

    /// Returns the number of a new process.
    pub(crate) fn next_process(&self) -> u64 {
        let mut processes = locked(&self.processes);
        *processes += 1;
        *processes
    }

    /// Runs sessions until one ends without an error.
    async fn process(&self, number: u64, shutdown: &Shutdown) -> End {
        let (began, due) = (Instant::now(), self.table.due());
        let log_end = self.server.wal_end();
        let seed = locked(&self.seed).draw();
        let supervisor = Supervisor {
            settings: &self.settings,
            server: SimulatedServer { world: self, process: number },
            publisher: self.fitting.publisher(self.pubsub.of_process(number)),
            metrics: Metrics::new(),
            health: Health::new(),
            random: Random::new(seed),
        };
        let asked = Mutex::new(None);
        let asking = async {
            shutdown.requested().await;
            *locked(&asked) = Some(Instant::now());
            std::future::pending::<RunResult>().await
        };
        let result = tokio::select! {
            biased;
            result = asking => result,
            result = supervisor.run(shutdown) => result,
        };
        let asked_at = *locked(&asked);
        let is_drained = asked_at.is_some_and(|at: Instant| at.elapsed() < DRAIN_TIMEOUT);
        match result {
            Ok(Some(StopReason::Stopped)) if is_drained => End::Graceful,
            Ok(Some(StopReason::CaughtUp)) => {
                *locked(&self.caught_up) += 1;
                self.judge.caught_up(began, &self.table.untouched(due, began));
                if self.table.has_spilled_before(log_end) {
                    self.judge.find(Fault::EndedEarly, "spilled rows wait that were there before");
                }
                End::Broken
            }
            Ok(_) => End::Broken,
            // The first connection failed. A service manager would start the process again.
            Err(RelayError::AtFirst(_)) => End::Broken,
            Err(error) => {
                self.judge.find(Fault::GaveUp, story_of(&error));
                End::Broken
            }
        }
    }
}

type RunResult = Result<Option<StopReason>, RelayError>;

/// Returns the settings of the service, with the values that the plan draws.
pub(crate) fn settings(plan: &Plan) -> SessionSettings {
    let relay = relay_settings(plan);
    let mut settings = SessionSettings::of(&relay, plan.window.max, Until::Stopped);
    settings.window = plan.window;
    settings.lanes = plan.lanes;
    settings.intervals.prune = Duration::from_secs(7);
    settings
}

pub(crate) fn relay_settings(plan: &Plan) -> RelaySettings {
    RelaySettings {
        outbox: Outbox {
            slot: LIVE_SLOT.into(),
            publication: "walrelay".into(),
            tables: Vec::new(),
            shard: Shard::WHOLE,
        },
        router: router(),
        park_after: plan.lanes.park_after,
        max_attempts: plan.lanes.max_attempts,
        on_dead: plan.lanes.on_dead,
        max_in_flight_bytes: plan.budget_bytes,
        wal_budget: plan.wal_budget,
        drain_timeout: DRAIN_TIMEOUT,
        take_over_after: plan.take_over_after,
        status_interval: Duration::from_secs(10),
        wal_sender_timeout: SENDER_TIMEOUT,
        // Short enough to have an effect during a run.
        dispatch_retention: Duration::from_secs(5),
        rate: None,
    }
}

pub(crate) fn story_of(error: &RelayError) -> String {
    walrelay_errors::Chain(error).to_string()
}

fn router() -> RouterConfig {
    RouterConfig {
        project: "sim".into(),
        topic: Template::parse("{aggregatetype}.events").expect("a template"),
        ordering_key: Template::parse("{aggregateid}").expect("a template"),
        columns: ColumnNames::default(),
        style: AttributeStyle::Default,
        replay_id: None,
        edited: EditedMessages::default(),
        log_name: SystemIdentifierMode::Untold,
    }
}
