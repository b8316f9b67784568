//! The loop: one task that owns the stream and all held messages. Only transactions run beside it.
//!
//! `turn` does the work that is possible now, and `consume` waits for the next event.

mod stream_events;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};
use walrelay_core::Random;
use walrelay_inbox_core::{AdaptiveBatchSize, Batch, Failure, Intake, IntakeLimits, Outcome};
use walrelay_pg_client::ConnectConfig;
use walrelay_pubsub::Subscriber;

use crate::apply::apply_batch::{Applied, Connection, Found, Registration};
use crate::apply::apply_error::ApplyError;
use crate::apply::apply_options::Plan;
use crate::apply::job::{Job, JobResult};
use crate::apply::loop_reporter::Observed;
use crate::apply::loop_state::{End, LoopState, PAUSED_TURN, PeriodicTask, Stored, TURN, seed};
use crate::apply::prune_step::PruneOrder;
use crate::apply::pull_stream::{PullStream, StreamEvent, Wanted, first_request};
use crate::apply::subscription_check::SubscriptionCheck;
use crate::event::Event;
use crate::health::{HeldTotals, Phase};
use crate::metrics::OutcomeLabel;
use crate::settings::{LEASE, Settings, Until};
use crate::trace::BatchFailure;

/// The interval of checks for stored events that are due.
const REDELIVER_EVERY: Duration = Duration::from_secs(1);
/// The wait before a retry with half as many stored events, when one event makes the others fail.
const DIVIDE_EVERY: Duration = Duration::from_millis(50);
/// The interval of reads of the consumer's row: pause, resume, new generation, reachable database.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const LOOK_OFTEN: Duration = Duration::from_secs(1);

pub(crate) struct Run {
    settings: Settings,
    connect: Arc<ConnectConfig>,
    intake: Intake<Event>,
    link: PullStream,
    check: SubscriptionCheck,
    plan: Arc<Plan>,
    subscription: String,
    jobs: FuturesUnordered<Job>,
    idle: Vec<Connection>,
    look: PeriodicTask,
    redeliver: PeriodicTask,
    prune: Option<(PruneOrder, PeriodicTask)>,
    stored: Stored,
    /// The number of stored events to retry at once.
    portion: AdaptiveBatchSize,
    wanted_end: End,
    is_paused: bool,
    course: LoopState,
    quiet_since: Instant,
    random: Random,
    observed: Observed,
}

impl Run {
    pub(crate) fn new(
        settings: Settings,
        subscriber: Subscriber,
        subscription: &str,
        plan: Plan,
        observed: Observed,
    ) -> Self {
        let mut random = Random::new(seed());
        let bounds = IntakeLimits {
            batch: settings.batch as usize,
            workers: settings.workers as usize,
            messages: settings.messages_held(),
            bytes: settings.max_in_flight_bytes,
            lease: LEASE,
            max_lease: settings.max_lease,
        };
        let first = first_request(&settings, subscription);
        let check = SubscriptionCheck::new(subscriber.clone(), subscription);
        let now = Instant::now();
        let prune = settings.retention.map(|retention| {
            let subscriber = subscriber.clone();
            let (consumer, subscription) = (settings.consumer.as_str().into(), subscription.into());
            let order = PruneOrder { consumer, subscriber, subscription, retention };
            (order, PeriodicTask::Due(now))
        });
        Self {
            connect: Arc::new(settings.connect.clone()),
            intake: Intake::new(bounds, Random::new(random.fork())),
            link: PullStream::new(subscriber, first, &settings.consumer, &mut random),
            check,
            plan: Arc::new(plan),
            subscription: subscription.to_owned(),
            jobs: FuturesUnordered::new(),
            idle: Vec::new(),
            look: PeriodicTask::Due(now), // An earlier run may have left rows.
            redeliver: PeriodicTask::Due(now),
            prune,
            stored: Stored::Perhaps,
            portion: AdaptiveBatchSize::of(settings.batch as usize),
            wanted_end: End::Over,
            is_paused: false,
            course: LoopState::On,
            quiet_since: now,
            settings,
            random,
            observed,
        }
    }

    /// Makes the run start paused.
    pub(crate) fn paused(mut self) -> Self {
        self.is_paused = true;
        self.look = PeriodicTask::Due(Instant::now() + LOOK_OFTEN);
        self
    }

    pub(crate) async fn consume(mut self, stop: impl Future<Output = ()>) -> End {
        let mut stop = std::pin::pin!(stop);
        tracing::info!(
            consumer = self.plan.consumer,
            subscription = self.subscription,
            generation = self.plan.generation,
            handler = self.plan.effect.to_string(),
            "consuming"
        );
        if let Until::CaughtUp { quiet_for } = self.settings.until {
            tracing::info!(
                ?quiet_for,
                "ends once nothing has come for this time, and nothing is held or due"
            );
        }
        if std::mem::take(&mut self.is_paused) {
            self.pause();
        }
        loop {
            let now = Instant::now();
            self.turn(now);
            if self.is_over(now) {
                break;
            }
            let (wanted, wake_at) = (self.wanted(), self.wake_at(now));
            tokio::select! {
                biased;
                () = &mut stop, if self.course == LoopState::On => self.drain("asked to stop"),
                Some((connection, done)) = self.jobs.next(), if !self.jobs.is_empty() => {
                    self.idle.push(connection);
                    self.done(done);
                }
                heard = self.link.heard(wanted) => match heard {
                    StreamEvent::Response(response) => self.received(&response),
                    StreamEvent::Ended(end) => self.stream_ended(end),
                    StreamEvent::Room => {}
                },
                state = self.check.answer() => {
                    self.observed.note_topic(&self.plan.consumer, &self.subscription, state);
                }
                () = sleep_until(wake_at) => {}
            }
        }
        let end = self.wanted_end;
        self.end().await;
        end
    }

    /// Does all work that is possible without waiting.
    fn turn(&mut self, now: Instant) {
        self.keep_stream(now);
        if self.course == LoopState::On {
            self.begin_jobs(now);
            if self.is_caught_up(now) {
                self.drain("caught up");
            }
            if self.catches_up() && self.observed.is_refused() {
                self.wanted_end = End::Refused;
                self.drain("the server refuses every event, and nothing will catch up");
            }
        }
        self.acknowledge();
        self.link.flush(now);
        self.observe(now);
    }

    fn acknowledge(&mut self) {
        let ids = self.intake.acknowledgements(usize::MAX);
        self.observed.metrics.acknowledged.inc_by(ids.len() as u64);
        self.link.acknowledge(ids);
    }

    fn keep_stream(&mut self, now: Instant) {
        if self.course == LoopState::On && !self.is_paused && self.link.open(now) {
            let renewed = self.intake.reopened(now.into_std());
            self.link.renew(renewed);
        } else if self.link.is_open() {
            let renewed = self.intake.renewals(now.into_std());
            self.observed.metrics.leases_renewed.inc_by(renewed.len() as u64);
            self.link.renew(renewed);
        } else {
            self.intake.lapse(now.into_std());
        }
    }

    fn begin_jobs(&mut self, now: Instant) {
        if self.look.is_due(now) {
            self.look = PeriodicTask::Running;
            self.begin(|mut connection, plan| async move {
                let found = connection.look(&plan).await;
                (connection, JobResult::Looked(found))
            });
        }
        if self.is_paused {
            return;
        }
        if self.redeliver.is_due(now) && self.may_redeliver() {
            self.redeliver = PeriodicTask::Running;
            let limit = i32::try_from(self.portion.size()).unwrap_or(i32::MAX);
            self.begin(move |mut connection, plan| async move {
                let ended = connection.redeliver(&plan, limit).await;
                (connection, JobResult::Redelivered(now, ended))
            });
        }
        if let Some((order, task)) = &mut self.prune
            && task.is_due(now)
        {
            *task = PeriodicTask::Running;
            let order = order.clone();
            self.begin(move |mut connection, _| async move {
                let ended = order.step(&mut connection).await;
                (connection, JobResult::Pruned(ended))
            });
        }
        while let Some(batch) = self.intake.next_batch(now.into_std()) {
            let Batch { id, messages, standing } = batch;
            let traced = self.observed.begin(&self.subscription, &messages);
            self.begin(move |mut connection, plan| async move {
                let ended = connection.apply(&plan, &messages, standing).await;
                (connection, JobResult::Batch { id, began: now, events: messages, traced, ended })
            });
        }
    }

    /// Returns whether to retry stored events. In an outage, one batch or a redelivery is the probe.
    fn may_redeliver(&self) -> bool {
        !self.intake.is_away() || self.intake.messages() == 0
    }

    fn begin<F>(&mut self, job: impl FnOnce(Connection, Arc<Plan>) -> F)
    where
        F: Future<Output = (Connection, JobResult)> + Send + 'static,
    {
        let connection =
            self.idle.pop().unwrap_or_else(|| Connection::new(Arc::clone(&self.connect)));
        self.jobs.push(Box::pin(job(connection, Arc::clone(&self.plan))));
    }

    fn done(&mut self, done: JobResult) {
        let now = Instant::now();
        match done {
            JobResult::Batch { id, began, events, traced, ended } => {
                if let Some(end) = traced {
                    end(BatchFailure::of(&ended));
                }
                let outcome = self.batch_ended(&events, began, now, ended);
                self.intake.settle(id, &outcome, now.into_std());
                if let Outcome::Failed(failure) = outcome {
                    self.failed(failure, now);
                }
            }
            JobResult::Redelivered(began, ended) => {
                if let Some(failure) = self.redelivered(&ended, began, now) {
                    self.failed(failure, now);
                }
            }
            JobResult::Looked(found) => self.looked(found, now),
            JobResult::Pruned(step) => {
                if let Some((order, task)) = &mut self.prune {
                    let next_in = step.report(order.retention, &self.observed.metrics);
                    *task = PeriodicTask::Due(now + next_in);
                }
            }
        }
    }

    fn batch_ended(
        &mut self,
        events: &[Arc<Event>],
        began: Instant,
        now: Instant,
        ended: Result<Vec<Applied>, ApplyError>,
    ) -> Outcome {
        self.observed.metrics.batch_seconds.observe((now - began).as_secs_f64());
        let (name, outcome) = match ended {
            Ok(applied) => {
                self.note_applied(events, &applied);
                ("committed", Outcome::Committed(applied.iter().map(Applied::fate).collect()))
            }
            Err(error) => {
                let failure = error.failure();
                self.observed.complain(failure, &error.to_string(), events);
                (failure.name(), Outcome::Failed(failure))
            }
        };
        self.observed.metrics.batches.get_or_create(&OutcomeLabel { outcome: name }).inc();
        outcome
    }

    fn note_applied(&mut self, events: &[Arc<Event>], applied: &[Applied]) {
        self.observed.note_committed(applied);
        let time = SystemTime::now();
        for (event, its) in events.iter().zip(applied) {
            self.observed.metrics.event(its.result);
            self.observed.note_version(event, its);
            let is_applied = matches!(its.result, "done" | "late");
            let stored = event.publish_time.and_then(|at| time.duration_since(at).ok());
            let seconds = is_applied.then(|| stored.unwrap_or_default().as_secs_f64());
            self.observed.metrics.event_of_type(event.event_type.as_deref(), its.result, seconds);
            match its.result {
                "done" | "late" => {
                    self.observed.metrics.stored_to_commit_seconds.observe(seconds.unwrap_or(0.0));
                }
                "retrying" | "dead" if its.error_code.is_some() => {
                    self.stored = Stored::Perhaps;
                    self.observed.note_stored(&self.plan.consumer, &event.event_id, its);
                }
                _ => {}
            }
        }
    }

    fn failed(&mut self, failure: Failure, now: Instant) {
        if failure.may_be_its_own() {
            return;
        }
        if failure == Failure::Paused {
            self.pause();
        }
        if self.look != PeriodicTask::Running {
            self.look = PeriodicTask::Due(now);
        }
    }

    fn redelivered(
        &mut self,
        ended: &Result<Vec<Applied>, ApplyError>,
        began: Instant,
        now: Instant,
    ) -> Option<Failure> {
        let mut next = now + REDELIVER_EVERY;
        let failure = match ended {
            Ok(applied) => {
                // Fewer slow failures at once, so that a fixed event need not wait for them.
                self.portion.took(applied.len(), now - began);
                self.stored = match applied.is_empty() {
                    true => Stored::Nothing,
                    false => Stored::Perhaps,
                };
                for it in applied {
                    self.observed.metrics.event(it.result);
                    let event_type = it.event_type.as_deref();
                    self.observed.metrics.event_of_type(event_type, it.result, None);
                }
                Observed::note_redelivered(&self.plan.consumer, applied);
                self.observed.note_redelivery();
                if applied.iter().any(Applied::is_new) {
                    self.intake.others_passed();
                    self.observed.note_working();
                }
                if self.intake.messages() == 0 {
                    // No held message could show that the outage is over.
                    self.observed.note_idle();
                }
                if Applied::any_row_changed(applied) {
                    // Events queued behind these, or beyond the limit, may follow at once.
                    next = now;
                }
                None
            }
            Err(error) => {
                let failure = error.failure();
                let size = self.portion.size();
                if failure.may_be_its_own() && size > 1 {
                    // One event may make the others fail. Alone, it gets a later due time.
                    self.portion.failed(size);
                    next = now + DIVIDE_EVERY;
                    tracing::debug!(%error, size, "stored events are tried again, half as many");
                } else {
                    self.observed.complain(failure, &error.to_string(), &[]);
                }
                Some(failure)
            }
        };
        self.redeliver = PeriodicTask::Due(next);
        failure
    }

    fn looked(&mut self, found: Result<Found, ApplyError>, now: Instant) {
        match found {
            Ok(Found { registration, hidden, stuck, waiting }) => {
                self.observed.health.set_stuck(stuck);
                self.observed.note_waiting(&self.plan.consumer, waiting);
                self.observed.note_row(&self.plan.consumer, registration.as_ref(), hidden);
                if let Some(row) = registration {
                    self.observed.note_rebuild(row.rebuild.as_ref());
                    self.registered(&row);
                }
            }
            Err(error) => self.observed.complain(error.failure(), &error.to_string(), &[]),
        }
        // A run that catches up logs the pending rows of the last check at its end.
        let is_often = self.is_paused || self.catches_up();
        let every = if is_often { LOOK_OFTEN } else { LOOK_EVERY };
        self.look = PeriodicTask::Due(now + every);
    }

    /// Stops applying events until an operator resumes the consumer.
    fn pause(&mut self) {
        if !std::mem::replace(&mut self.is_paused, true) {
            Observed::note_pause(&self.plan.consumer);
        }
        if self.catches_up() && self.course == LoopState::On {
            self.wanted_end = End::Paused;
            self.drain("the consumer is paused, and will not catch up");
        }
    }

    fn resume(&mut self) {
        if std::mem::replace(&mut self.is_paused, false) {
            tracing::info!("resumed: events are applied again");
        }
    }

    fn registered(&mut self, row: &Registration) {
        if row.paused {
            self.pause();
        } else {
            self.resume();
        }
        let is_moved =
            self.settings.subscription.is_none() && row.subscription != self.subscription;
        if is_moved && self.course == LoopState::On {
            self.wanted_end = End::Moved;
            self.drain("the consumer reads another subscription now");
        }
        if row.generation != self.plan.generation {
            tracing::info!(generation = row.generation, "a new generation has begun");
            self.plan = Arc::new(Plan { generation: row.generation, ..(*self.plan).clone() });
        }
    }

    fn wanted(&self) -> Wanted {
        match self.course == LoopState::On && !self.is_paused && self.intake.has_room() {
            true => Wanted::Responses,
            false => Wanted::Nothing,
        }
    }

    /// Returns whether the run ends once it has caught up.
    const fn catches_up(&self) -> bool {
        matches!(self.settings.until, Until::CaughtUp { .. })
    }

    fn is_caught_up(&mut self, now: Instant) -> bool {
        let Until::CaughtUp { quiet_for } = self.settings.until else { return false };
        // A stream that has not answered yet says nothing about the subscription.
        let is_quiet = self.intake.messages() == 0
            && self.stored == Stored::Nothing
            && self.link.is_open()
            && self.link.has_answered();
        if !is_quiet {
            self.quiet_since = now;
            return false;
        }
        // A running check of the inbox does not restart the quiet time.
        let is_settled = self.jobs.is_empty() && self.link.is_settled();
        is_settled && now - self.quiet_since >= quiet_for
    }

    fn drain(&mut self, why: &'static str) {
        let until = Instant::now() + self.settings.drain_timeout;
        tracing::info!(why, out = self.jobs.len(), "draining: finishing the running batches");
        self.course = LoopState::Draining { until };
        self.observed.health.set_phase(Phase::Draining);
    }

    fn is_over(&self, now: Instant) -> bool {
        match self.course {
            LoopState::On => false,
            LoopState::Draining { until } => self.jobs.is_empty() || until <= now,
        }
    }

    /// Sends the last acknowledgements, and nacks the messages that were never sent (C8).
    async fn end(mut self) {
        if !self.jobs.is_empty() {
            let out = self.jobs.len();
            tracing::warn!(out, "not everything ended in time; what was out is delivered again");
        }
        self.jobs.clear();
        self.acknowledge();
        let returned = self.intake.give_up();
        self.link.close(returned).await;
        for connection in self.idle {
            connection.close().await;
        }
        match self.wanted_end {
            End::Over | End::Paused | End::Refused => self.observed.note_end(),
            End::Moved => tracing::info!("going on with the other subscription"),
        }
    }

    fn wake_at(&self, now: Instant) -> Instant {
        // Work that is due and cannot start yet is retried a moment later, not at once.
        let moment = if self.is_paused { PAUSED_TURN } else { TURN };
        self.next_due(now).max(now + moment)
    }

    fn next_due(&self, now: Instant) -> Instant {
        // The heartbeat needs a turn every second.
        let mut at = now + LOOK_OFTEN;
        let mut sooner = |other: Option<Instant>| at = other.map_or(at, |other| at.min(other));
        sooner(self.intake.wake_at(now.into_std()).map(Instant::from_std));
        if let LoopState::Draining { until } = self.course {
            sooner(Some(until));
            return at;
        }
        sooner(self.link.wake_at().filter(|_| !self.is_paused));
        sooner(self.look.wake_at());
        sooner(self.redeliver.wake_at().filter(|_| !self.is_paused && self.may_redeliver()));
        at
    }

    fn observe(&self, now: Instant) {
        self.observed.health.beat();
        if self.course == LoopState::On {
            let phase = if self.is_paused { Phase::Paused } else { Phase::Consuming };
            self.observed.health.set_phase(phase);
        }
        let holdings = HeldTotals {
            messages: self.intake.messages(),
            bytes: self.intake.bytes(),
            keys: self.intake.keys(),
            batches: self.intake.batches_out(),
            oldest: self.intake.oldest(now.into_std()),
        };
        self.observed.note_holdings(holdings);
        self.observed.health.set_generation(&self.subscription, self.plan.generation);
    }
}
