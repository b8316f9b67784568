//! The data path: replication socket → decoder → router → lanes → Pub/Sub → tracker → slot.
//!
//! One task runs this loop and owns everything in it; only publish calls and one command to
//! dispatch state run beside it. A row enters at `frames.next`, is decoded, routed, counted
//! (`tracker.open`), queued (`lanes.push`), sent (`publishes.start`), settled (`tracker.settle`),
//! and leaves when `feedback.confirm` tells the server the tracker's watermark.
//!
//! Invariants I1 … I9 are those of [`walrelay_core`].

use std::pin::pin;
use std::time::Duration;

use pgoutput_parser::{Change, Decoder, Frame, Insert, Position, XLogData};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};
use walrelay_core::{
    Budget, Claimed, FailureClass, Finished, LaneId, Lanes, Outcome, PublishFailure, Routed,
    Router, RowToRecord, Topic, Tracker, WalBudget,
};
use walrelay_outbox_store::{DUE_KEYS_MAX, Due, Store, Watch};
use walrelay_pg_client::PgError;
use walrelay_pg_replication::{Feedback, Frames};

use crate::failpoint;
use crate::observe::ignored_changes::OtherChange;
use crate::observe::observer::Observer;
use crate::shutdown::Shutdown;
use crate::stream::continuity::Continuity;
use crate::stream::extent::Extent;
use crate::stream::goal::Goal;
use crate::stream::mode::{Ended, Mode};
use crate::stream::pipeline_error::PipelineError;
use crate::stream::publishes::{Answer, Answered, Publishes, Unanswered};
use crate::stream::record::InFlight;
use crate::stream::recorded_rows::{Recorded, RecordedRows};
use crate::stream::recorder::{Claiming, Recorder, RecorderEvent};
use crate::stream::seams::Publisher;
use crate::stream::selected::Selected;
use crate::stream::wal_end::{Measured, WalEnd};

/// One connection's life: everything that starts anew from the slot when the connection ends.
#[derive(Debug)]
pub struct Session<R, W, P, S> {
    /// The socket's reading half.
    pub frames: Frames<R>,
    /// The socket's writing half.
    pub feedback: Feedback<W>,
    /// Publish calls out.
    pub publishes: Publishes<P>,
    /// Commands to dispatch state.
    pub recorder: Recorder<S>,
    /// Knows relations and the open transaction of the slot.
    pub decoder: Decoder,
    /// Where the server writes, measured beside the stream.
    pub wal_end: WalEnd,
    /// The rows in between.
    pub flow: Flow,
    /// Stop once it is reached, `--until-caught-up`.
    pub goal: Option<Goal>,
    /// How long rows in flight are waited for at the end, `--drain-timeout`.
    pub drain_timeout: Duration,
}

/// The rows between socket and Pub/Sub.
#[derive(Debug)]
pub struct Flow {
    /// Row to message.
    pub router: Router,
    /// Rows that dispatch state already has.
    pub recorded_rows: RecordedRows,
    /// Whether rows may have been passed over.
    pub continuity: Continuity,
    /// What is in flight, in commit order.
    pub tracker: Tracker,
    /// How much is in flight.
    pub budget: Budget,
    /// How much log may wait (I10).
    pub wal_budget: WalBudget,
    /// What waits, by key.
    pub lanes: Lanes,
    /// Where rows come in from.
    pub source: Source,
    /// How far the stream is taken in.
    pub extent: Extent,
    /// The last row that was read, or where the stream began.
    pub through: Position,
    /// The last look for due keys woke some that rested, so there may be others.
    pub may_find_more: bool,
    /// Metrics and health.
    pub observer: Observer,
}

/// A session that is over, and what the next one goes on with.
#[derive(Debug)]
pub struct Over {
    /// How it ended.
    pub ended: Result<Ended, PipelineError>,
    /// Publish calls without an answer: nothing of their keys may go out before they have one (I3).
    pub unanswered: Unanswered,
    /// What is left of the goal.
    pub goal: Option<Goal>,
}

/// Where rows come in from. It says whom to settle, and what it means that a position has been
/// seen before; everything behind [`Flow::admit`] is the same for all.
#[derive(Debug)]
pub enum Source {
    /// The slot: settling moves the watermark, and a row that dispatch state holds is settled.
    Slot,
    /// A copy of an anchor: settling moves how far the replay has come; whatever is not selected is
    /// settled, and nothing is recorded in dispatch state.
    Replay(Selected),
}

/// Frames and answers taken in one turn at most: status updates wait no longer than that (I5).
const TURN_MAX: usize = 256;

/// Runs a session to its end. The database is let go of at once; what has no answer from Pub/Sub by
/// then is handed on, because the slot sends those rows again.
pub async fn run<R, W, P, S>(session: Session<R, W, P, S>, shutdown: &Shutdown) -> Over
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    P: Publisher,
    S: Store,
{
    // On the heap, or the future would hold the session three times: as argument, here, and ending.
    let mut session = Box::new(session);
    let ended = stream(&mut session, shutdown).await;
    Box::pin(session.end(ended)).await
}

/// The loop. Arms are in order of urgency; none above another can stay ready for ever.
async fn stream<R, W, P, S>(
    session: &mut Session<R, W, P, S>,
    shutdown: &Shutdown,
) -> Result<Ended, PipelineError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    P: Publisher,
    S: Store,
{
    let Session {
        frames,
        feedback,
        publishes,
        recorder,
        decoder,
        wal_end,
        flow,
        goal,
        drain_timeout,
    } = session;
    let mut mode = Mode::Streaming;
    let mut broken = None;
    let mut stop = pin!(shutdown.requested());
    flow.observer.began(publishes.waits_for(), flow.wal_budget.limit());

    loop {
        // What is confirmed is on record first, so that a start can tell this slot from another one.
        let noted = recorder.noted();
        let alarm = flow.next_alarm(mode);
        tokio::select! {
            biased;

            // The server is owed a status update: on our timer, or because it asked (I5).
            () = feedback.due(noted) => {
                failpoint::hit("before-confirm");
                feedback.confirm(noted).await?;
                flow.observer.confirmed(noted);
            }

            // Stop taking in; what is in flight is finished below.
            () = &mut stop, if mode == Mode::Streaming => {
                flow.observer.draining();
                mode = Mode::draining(Ended::Stopped, *drain_timeout);
            }

            // Pub/Sub stored a batch, or refused it: finished work comes before new work.
            answer = publishes.next() => flow.take_answers(answer, publishes),

            // Rows are durable in dispatch state, or come back from it.
            event = recorder.next() => {
                flow.recorder_answered(event.map_err(PipelineError::of_store)?, goal.as_mut())?;
                if flow.takes_another_look() {
                    recorder.look_again();
                }
            }

            // How much log waits for us is known again: too much, and rows are recorded (I10).
            measured = wal_end.next(), if mode == Mode::Streaming => flow.log_measured(measured, publishes),

            // Back-offs end.
            () = sleep_until(alarm.unwrap_or_else(Instant::now)), if alarm.is_some() => {}

            // Read only while there is room. Not reading is the back-pressure (I6).
            frame = frames.next(), if flow.may_read(mode) => {
                let taken = match frame {
                    Ok(frame) => flow.take_in(frame, decoder, feedback),
                    Err(error) => Err(flow.broken_off(error, decoder)),
                };
                match taken.and_then(|()| flow.take_in_buffered(frames, decoder, feedback, mode)) {
                    Err(error) if error.is_of_a_row() => {
                        flow.observer.finishing();
                        mode = mode.finishing(*drain_timeout);
                        broken = Some(error);
                    }
                    taken => taken?,
                }
                // Shutting down, a server has sent everything: it does not ask in mid-transaction.
                if feedback.server_wants_to_stop() && !flow.tracker.has_open_transaction() {
                    return Err(PipelineError::ServerStops);
                }
            }
        }

        mode = mode.of_goal(goal.as_ref(), flow.tracker.watermark(), *drain_timeout);
        flow.hold_beside(frames.buffered_bytes());
        flow.send(publishes, recorder, mode);
        if let Some(goal) = goal {
            recorder.look_for_all_spilled(goal.looks_for_spilled_before(flow.tracker.watermark()));
        }
        let Some((ended, until)) = mode.end() else { continue };
        if publishes.is_empty() && flow.is_over(mode, recorder) || Instant::now() >= until {
            return broken.map_or(Ok(ended), Err);
        }
    }
}

impl Flow {
    /// One frame of the slot: the first half of a row's way.
    fn take_in<W: AsyncWrite + Unpin>(
        &mut self,
        frame: Frame<'_>,
        decoder: &mut Decoder,
        feedback: &mut Feedback<W>,
    ) -> Result<(), PipelineError> {
        let Self { router, recorded_rows, continuity, tracker, source, extent, observer, .. } =
            self;
        let XLogData { wal_start: at, data, .. } = match frame {
            Frame::XLogData(data) => data,
            Frame::Keepalive(keepalive) => {
                feedback.note(&keepalive);
                if let Some(boundary) = decoder.boundary(&keepalive) {
                    tracker.observe(boundary);
                    recorded_rows.reached(boundary.lsn());
                }
                return Ok(());
            }
        };
        match decoder.decode(data).map_err(|it| PipelineError::Decode { at, source: it })? {
            Change::Insert(row) => {
                continuity.row();
                self.through = row.position;
                self.admit(&row)?;
            }
            Change::Begin(begin) if extent.ends_at(begin.final_lsn) => {
                *extent = Extent::Reached;
                feedback.received(begin.final_lsn);
                tracker.observe(begin.boundary_before());
                recorded_rows.reached(begin.final_lsn);
            }
            Change::Begin(begin) => {
                tracker.begin(begin.commit_timestamp);
                recorded_rows.begin(begin.final_lsn);
                if let Source::Replay(selected) = source {
                    selected.begin(&begin);
                }
            }
            Change::Commit(commit) => {
                feedback.received(commit.end_lsn);
                tracker.seal(commit.boundary(), continuity.commit());
                recorded_rows.reached(commit.end_lsn);
            }
            Change::Relation(relation) => {
                continuity.relation(relation.id);
                router.learn(relation)?;
            }
            // Events are inserts; retention deletes rows, and other relays of a table update them.
            Change::Update(_) => observer.ignored(OtherChange::Update, at),
            Change::Delete(_) => observer.ignored(OtherChange::Delete, at),
            Change::Truncate(_) => observer.ignored(OtherChange::Truncate, at),
            Change::Type(_) | Change::Origin(_) | Change::Message(_) => {}
        }
        Ok(())
    }

    /// What has been read beyond the first frame, as much as one turn takes.
    fn take_in_buffered<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        frames: &mut Frames<R>,
        decoder: &mut Decoder,
        feedback: &mut Feedback<W>,
        mode: Mode,
    ) -> Result<(), PipelineError> {
        for _ in 1..TURN_MAX {
            if !self.may_read(mode) {
                break;
            }
            let another = frames.buffered().map_err(|error| self.broken_off(error, decoder))?;
            let Some(another) = another else { break };
            self.take_in(another, decoder, feedback)?;
        }
        Ok(())
    }

    /// The stream ends here; where the server can never continue it, that is a place in the WAL.
    fn broken_off(&self, error: PgError, decoder: &Decoder) -> PipelineError {
        PipelineError::of_stream(error, decoder.next_position(), self.through)
    }

    /// One row, from whatever source: it is settled already, or joins its key's lane.
    fn admit(&mut self, row: &Insert<'_>) -> Result<(), PipelineError> {
        if self.is_settled(row)? {
            let ticket = self.tracker.open();
            self.tracker.settle(ticket);
            return Ok(());
        }
        let Routed { message, fault, headers_left_out } = self.router.route(row)?;
        let ticket = self.tracker.open();
        self.budget.take(message.memory());
        self.observer.row_read(headers_left_out);
        match fault {
            None => self.lanes.push(message, ticket),
            Some(fault) => {
                let failure = fault.into_failure();
                self.lanes.push_dead(message, ticket, &failure, Instant::now().into_std());
            }
        }
        Ok(())
    }

    /// What it means that a row stands where one has stood before.
    fn is_settled(&mut self, row: &Insert<'_>) -> Result<bool, PipelineError> {
        let Self { router, recorded_rows, observer, source, .. } = self;
        if let Source::Replay(selected) = source {
            return Ok(!selected.has(row, router)?);
        }
        match recorded_rows.at(row.position, || router.event_id(row))? {
            // In dispatch state since before a restart: settled, whatever became of it (I2).
            Recorded::ThisRow => Ok(true),
            Recorded::OtherRows => {
                observer.stands_where_others_did(row.position);
                Ok(false)
            }
            Recorded::Nothing => Ok(false),
        }
    }

    /// The second half: whatever may go out goes out.
    fn send<P: Publisher, S: Store>(
        &mut self,
        publishes: &mut Publishes<P>,
        recorder: &mut Recorder<S>,
        mode: Mode,
    ) {
        let Self { recorded_rows, tracker, budget, lanes, observer, source, through, .. } = self;
        let now = Instant::now().into_std();
        lanes.wake(now);
        // A replay records nothing: what fails there waits, and so does what is behind it.
        if matches!(source, Source::Slot)
            && let Some(share) = budget.failing_share()
        {
            lanes.relieve(share, now);
        }
        while publishes.has_room() {
            let Some(batch) = lanes.next_batch(now) else { break };
            publishes.start(batch);
        }
        let effects = lanes.effects();
        observer.rows_to_record(&effects.rows_to_record);
        observer.finished(&effects.finished);
        recorder.park(&mut effects.rows_to_record);
        recorder.finish(&mut effects.finished);
        let in_flight = if tracker.is_settled() { InFlight::Nothing } else { InFlight::Rows };
        recorder.settled(tracker.watermark(), in_flight);
        if tracker.waits_for_intact() {
            recorder.watch_soon();
        }
        if recorder.looks_for_due() {
            recorder.leave_out(lanes.topics_at_rest(now));
        }
        if let Some(from) = recorded_rows.next_page() {
            recorder.read_recorded(from);
        }
        // What cannot go out yet is not claimed: its lease would end while it waits.
        let may_claim = mode == Mode::Streaming
            && publishes.waits_for() == 0
            && recorded_rows.have_come()
            && recorder.may_claim();
        if may_claim && lanes.has_claims() {
            let room = budget.room_for_reload();
            let keys = if room > 0 { lanes.claims(CLAIM_KEYS_MAX, now) } else { Vec::new() };
            if !keys.is_empty() {
                recorder.claim(Claiming { keys, bytes_max: room, through: *through });
            }
        }
        observer.levels(tracker.watermark(), budget, lanes);
    }

    /// An answer, and those that are here already.
    fn take_answers<P: Publisher>(&mut self, first: Answered, publishes: &mut Publishes<P>) {
        match first {
            Answered::Ours(answer) => self.answered(answer),
            Answered::Before(answer) => {
                self.observer.answered_late(&answer, publishes.waits_for());
            }
        }
        for _ in 1..TURN_MAX {
            let Some(another) = publishes.next_ready() else { break };
            self.answered(another);
        }
    }

    fn answered(&mut self, (batch, answer): Answer) {
        let now = Instant::now().into_std();
        self.observer.answered(&batch, &answer, now);
        failpoint::hit("after-reply");
        match answer {
            Ok(message_ids) => self.lanes.stored(batch, message_ids, now),
            Err(failure) => self.lanes.refused(batch, &failure, now),
        }
        let effects = self.lanes.effects();
        for (ticket, memory) in effects.settled.drain(..) {
            self.tracker.settle(ticket);
            self.budget.release(memory);
        }
    }

    /// The server writes its log there.
    fn log_measured<P: Publisher>(&mut self, measured: Measured, publishes: &mut Publishes<P>) {
        let Self { tracker, wal_budget, lanes, observer, through, .. } = self;
        let now = Instant::now().into_std();
        if let Some(before) = wal_budget.follow(measured.retention) {
            observer.retention_changed(before, wal_budget);
        }
        let held = wal_budget.held(measured.wal_end, tracker.watermark());
        let spill = wal_budget.judge(held, lanes.delivery(now));
        lanes.spill(spill, now);
        observer.log_measured(held, wal_budget, spill);
        // Calls that nobody answers hold the log like rows that wait.
        let read_to = tracker.observed().max(through.commit_lsn);
        let overdue = publishes.give_up(|call| wal_budget.gives_up(call, read_to, now));
        overdue.into_iter().for_each(|batch| self.answered((batch, Err(given_up()))));
    }

    /// Dispatch state answered.
    fn recorder_answered(
        &mut self,
        event: RecorderEvent,
        goal: Option<&mut Goal>,
    ) -> Result<(), PipelineError> {
        let now = Instant::now().into_std();
        match event {
            RecorderEvent::Parked(rows_to_record) => {
                failpoint::hit("after-park");
                rows_to_record.into_iter().for_each(|row_to_record| self.parked(row_to_record));
            }
            RecorderEvent::Finished(finished) => {
                finished.iter().for_each(|row| self.budget.release(row.message.memory()));
                let is_stored = |row: &Finished| matches!(row.outcome, Outcome::Published { .. });
                if let Some(goal) = goal.filter(|_| finished.iter().any(is_stored)) {
                    goal.redelivered();
                }
            }
            RecorderEvent::Claimed(claims) => {
                claims.into_iter().for_each(|(lane, claimed)| self.claimed(lane, claimed, now));
            }
            RecorderEvent::NotClaimed(lanes) => {
                let again_at = now + CLAIM_PAUSE;
                lanes.into_iter().for_each(|lane| self.lanes.claim_failed(lane, again_at));
            }
            RecorderEvent::Recorded(page) => self.recorded_rows.learn(page, &self.lanes),
            RecorderEvent::Due(Due { keys, has_more }) => {
                let resting_keys = self.lanes.resting_keys();
                for (topic, ordering_key) in &keys {
                    self.lanes.mark_due(topic, ordering_key, now);
                }
                self.may_find_more = self.lanes.resting_keys() < resting_keys;
                if let Some(goal) = goal
                    && !has_more
                    && keys.len() < DUE_KEYS_MAX / 2
                {
                    goal.looked(&keys, |topic, key| self.lanes.rests(topic, key, now));
                }
            }
            RecorderEvent::Heads(heads) => {
                for head in heads.iter().filter(|head| !head.is_timed) {
                    let topic = Topic::from(head.topic.as_str());
                    self.lanes.mark_untimed(&topic, &head.ordering_key, now);
                }
            }
            RecorderEvent::Spilled(waits) => {
                if let Some(goal) = goal.filter(|_| !waits) {
                    goal.found_nothing_spilled();
                }
            }
            RecorderEvent::Surveyed(survey) => self.observer.surveyed(*survey),
            RecorderEvent::Watched(Watch::Intact { up_to }) => self.tracker.intact(up_to),
            RecorderEvent::Watched(Watch::Changed { what }) => {
                return Err(PipelineError::PublicationChanged { what });
            }
            RecorderEvent::Watched(Watch::Changing)
            | RecorderEvent::Settled(_)
            | RecorderEvent::Pruned(_)
            | RecorderEvent::Condition
            | RecorderEvent::Noted => {}
        }
        Ok(())
    }

    /// Whether keys that rest are looked for at once: others were found, and there is room again.
    fn takes_another_look(&mut self) -> bool {
        let looks = self.may_find_more && self.lanes.has_room_to_wake();
        self.may_find_more &= !looks;
        looks
    }

    /// The next rows of a parked key have come, or there are none and it is live again.
    fn claimed(&mut self, lane: LaneId, claimed: Claimed, now: std::time::Instant) {
        let memories = claimed.rows.iter().map(|(message, _)| message.memory());
        memories.for_each(|memory| self.budget.take(memory));
        let parked_keys = self.lanes.parked_keys();
        self.lanes.claimed(lane, claimed, now);
        if self.lanes.parked_keys() < parked_keys {
            failpoint::hit("after-unpark");
        }
    }

    /// A row is durable in dispatch state, and so settled (I2).
    fn parked(&mut self, row_to_record: RowToRecord) {
        self.budget.release(row_to_record.message.memory());
        let Position { commit_lsn, .. } = row_to_record.message.position();
        self.wal_budget.recorded(commit_lsn, row_to_record.message.body().len());
        self.tracker.settle(row_to_record.ticket);
        if let Some(lane) = row_to_record.lane {
            self.lanes.appended(lane);
        }
    }

    /// What takes memory beside the rows (I6).
    fn hold_beside(&mut self, read_buffer_bytes: usize) {
        let keys_and_rows = self.lanes.resting_memory() + self.recorded_rows.memory();
        self.budget.hold_beside(keys_and_rows + read_buffer_bytes);
    }

    fn may_read(&self, mode: Mode) -> bool {
        let can_take_in = self.extent != Extent::Reached
            && self.budget.has_room()
            && self.recorded_rows.know_the_next();
        match mode {
            // Rows of keys that are parked would be recorded all the same.
            Mode::Streaming => can_take_in && !self.wal_budget.is_futile(),
            Mode::Draining { .. } => can_take_in && self.tracker.has_open_transaction(),
            Mode::Finishing { .. } => false,
        }
    }

    fn next_alarm(&self, mode: Mode) -> Option<Instant> {
        let due = self.lanes.next_due().map(Instant::from_std);
        match mode {
            Mode::Streaming => due,
            Mode::Draining { until, .. } | Mode::Finishing { until } => {
                Some(due.map_or(until, |due| due.min(until)))
            }
        }
    }

    /// Whether all that the end waits for is settled and on record.
    fn is_over<S: Store>(&self, mode: Mode, recorder: &Recorder<S>) -> bool {
        let is_settled = match mode {
            Mode::Streaming => false,
            Mode::Draining { .. } => self.tracker.is_settled(),
            // The transaction of the row that cannot be read stays open.
            Mode::Finishing { .. } => self.budget.rows() == 0,
        };
        is_settled && recorder.is_idle()
    }
}

/// Parked keys read back by one command.
const CLAIM_KEYS_MAX: usize = 256;

/// How long keys rest that could not be read back.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);

/// What became of a call that the log does not wait for any longer: as of one that outlived
/// `--publish-timeout`.
fn given_up() -> PublishFailure {
    let why = "no answer, and the log that waits nears --wal-budget";
    PublishFailure::new(FailureClass::Transient, "DEADLINE_EXCEEDED", why)
}

#[cfg(test)]
mod tests;
