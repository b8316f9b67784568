//! The data path: replication socket → decoder → router → lanes → Pub/Sub → tracker → slot.
//!
//! One task runs this loop and owns its state. Only Publish calls and one dispatch command at a
//! time run beside it. A row enters at `frames.next`, is decoded, routed, counted (`tracker.open`),
//! queued (`lanes.push`), sent (`publishes.start`) and settled (`tracker.settle`). It leaves when
//! `feedback.confirm` sends the tracker's watermark to the server.
//!
//! The invariants I1 … I11 are defined in [`walrelay_core`].

use std::pin::pin;
use std::time::Duration;

use pgoutput_parser::{Decoder, Lsn, Position};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};
use walrelay_core::{
    Budget, ClaimAnswer, Delivery, Finished, LaneId, Lanes, Outcome, Router, RowToRecord, Topic,
    Tracker, WalBudget,
};
use walrelay_outbox_store::{DUE_KEYS_MAX, Due, PublicationCheck, Store};
use walrelay_pg_replication::{Feedback, Frames};

use crate::failpoint;
use crate::observe::observer::Observer;
use crate::observe::server_stall::ServerStalls;
use crate::shutdown::Shutdown;
use crate::stream::already_recorded::AlreadyRecorded;
use crate::stream::catch_up_target::CatchUpTarget;
use crate::stream::continuity::Continuity;
use crate::stream::dispatch_writer::{ClaimRequest, DispatchEvent, DispatchWriter};
use crate::stream::mode::{SessionMode, StopReason};
use crate::stream::outbox_tables::TableSelection;
use crate::stream::pipeline_error::PipelineError;
use crate::stream::publish_calls::{
    Answer, CallReply, PublishCalls, UnansweredCalls, cancelled_for_wal,
};
use crate::stream::publisher::Publisher;
use crate::stream::replay_filter::ReplayFilter;
use crate::stream::stop_position::StopPosition;
use crate::stream::unsent_wal::Arrived;
use crate::stream::wal_end::{Measured, WalEnd};
use crate::stream::watermark_journal::InFlight;

/// The state of one connection, which the next connection rebuilds from the slot.
#[derive(Debug)]
pub struct Session<R, W, P, S> {
    /// The reading half of the socket.
    pub frames: Frames<R>,
    /// The writing half of the socket.
    pub feedback: Feedback<W>,
    pub publishes: PublishCalls<P>,
    pub recorder: DispatchWriter<S>,
    /// Knows the relations and the open transaction of the slot.
    pub decoder: Decoder,
    pub wal_end: WalEnd,
    pub flow: Flow,
    /// The session stops once this goal is reached, `--until-caught-up`.
    pub goal: Option<CatchUpTarget>,
    /// How long the end waits for rows in flight, `--drain-timeout`.
    pub drain_timeout: Duration,
}

/// The rows between the socket and Pub/Sub.
#[derive(Debug)]
pub struct Flow {
    pub router: Router,
    pub recorded_rows: AlreadyRecorded,
    pub tables: TableSelection,
    pub continuity: Continuity,
    /// The rows in flight, in commit order.
    pub tracker: Tracker,
    pub budget: Budget,
    /// The limit of retained WAL (I10).
    pub wal_budget: WalBudget,
    pub server_stalls: ServerStalls,
    /// The queued rows, by key.
    pub lanes: Lanes,
    pub source: Source,
    pub extent: StopPosition,
    /// The position of the last row that was read, or the start of the stream.
    pub through: Position,
    /// Whether the last query for due keys woke compact parked keys, so there may be more.
    pub may_have_more_due_keys: bool,
    pub observer: Observer,
}

/// A session that is over, and the state for the next one.
#[derive(Debug)]
pub struct SessionEnd {
    pub ended: Result<StopReason, PipelineError>,
    /// The Publish calls without a reply. No row of their keys may be sent before the replies (I3).
    pub unanswered: UnansweredCalls,
    pub goal: Option<CatchUpTarget>,
    /// The last position that was read or settled.
    pub read_to: Lsn,
}

/// The source of rows. It decides how rows are settled, and whether a known position needs
/// publishing. The code behind `Flow::admit` is the same for all sources.
#[derive(Debug)]
pub enum Source {
    /// The slot. Settling moves the watermark, and a row in dispatch state is settled.
    Slot,
    /// The slot, while another session publishes earlier rows. It is read only near the WAL budget.
    /// Each row is recorded, and no row is claimed or published.
    HeldSlot,
    /// A copy of an anchor. Settling moves the progress of the replay, and rows outside of the
    /// selection are settled. Nothing is recorded in dispatch state.
    Replay(ReplayFilter),
}

/// The maximum number of frames and replies per loop iteration. It bounds the delay of status
/// updates (I5).
const TURN_MAX: usize = 256;

/// Runs a session to its end. The database connection is released at once. Publish calls without a
/// reply are handed to the next session, because the slot sends their rows again.
pub async fn run<R, W, P, S>(session: Session<R, W, P, S>, shutdown: &Shutdown) -> SessionEnd
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    P: Publisher,
    S: Store,
{
    // Boxed, because the future would otherwise contain the session three times.
    let mut session = Box::new(session);
    let ended = stream(&mut session, shutdown).await;
    Box::pin(session.end(ended)).await
}

/// Runs the event loop. The arms are ordered by urgency. No arm can starve the arms below it.
async fn stream<R, W, P, S>(
    session: &mut Session<R, W, P, S>,
    shutdown: &Shutdown,
) -> Result<StopReason, PipelineError>
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
    let mut mode = SessionMode::Streaming;
    let mut broken = None;
    let mut stop = pin!(shutdown.requested());
    flow.observer.began(publishes.waits_for(), flow.wal_budget.limit());

    loop {
        // The position is recorded before it is confirmed, so that a start can recognise another
        // slot.
        let noted = recorder.noted();
        let alarm = flow.next_timer(mode, publishes.opens_at());
        tokio::select! {
            biased;

            // The server is due a status update, because of our timer or on its request (I5).
            () = feedback.due(noted) => {
                failpoint::hit("before-confirm");
                feedback.confirm(noted).await?;
                flow.observer.confirmed(noted);
            }

            // Reads no new rows. The rest of the loop finishes the rows in flight.
            () = &mut stop, if mode == SessionMode::Streaming => {
                flow.observer.draining();
                mode = SessionMode::draining(StopReason::Stopped, *drain_timeout);
            }

            // Pub/Sub stored or refused a batch. Finished work comes before new work.
            answer = publishes.next() => flow.take_replies(answer, publishes),

            // Rows are durable in dispatch state, or are loaded from it.
            event = recorder.next() => {
                flow.dispatch_event(event.map_err(PipelineError::of_store)?, goal.as_mut())?;
                if flow.requeries_due_keys() {
                    recorder.requery_due_keys();
                }
            }

            // A new measurement of retained WAL. If it is too much, rows are recorded (I10).
            measured = wal_end.next(), if mode == SessionMode::Streaming => flow.measured(measured, (frames, feedback), publishes),

            // A back-off ends.
            () = sleep_until(alarm.unwrap_or_else(Instant::now)), if alarm.is_some() => {}

            // Reads only while the budget has capacity. Not reading is the back-pressure (I6).
            frame = frames.next(), if flow.may_read(mode) => {
                let taken = match frame {
                    Ok(frame) => flow.process_frame(frame, decoder, feedback),
                    Err(error) => Err(flow.broken_off(error, decoder)),
                };
                match taken.and_then(|()| flow.process_buffered_frames(frames, decoder, feedback, mode)) {
                    Err(error) if error.is_row_error() => {
                        flow.observer.finishing();
                        mode = mode.finishing(*drain_timeout);
                        broken = Some(error);
                    }
                    taken => taken?,
                }
                // A server that shuts down has sent everything and does not ask in the middle of a
                // transaction.
                if feedback.server_wants_to_stop() && !flow.tracker.has_open_transaction() {
                    return Err(PipelineError::ServerStops);
                }
            }
        }

        mode = mode.of_goal(goal.as_ref(), flow.tracker.watermark(), *drain_timeout);
        flow.hold_beside(frames.buffered_bytes());
        flow.send(publishes, recorder, mode);
        if let Some(goal) = goal {
            recorder
                .query_all_spilled_before(goal.spilled_query_position(flow.tracker.watermark()));
        }
        let Some((ended, until)) = mode.end() else { continue };
        if publishes.is_empty() && flow.is_over(mode, recorder) || Instant::now() >= until {
            return broken.map_or(Ok(ended), Err);
        }
    }
}

impl Flow {
    /// Sends every row that may be sent: the second half of a row's path.
    fn send<P: Publisher, S: Store>(
        &mut self,
        publishes: &mut PublishCalls<P>,
        recorder: &mut DispatchWriter<S>,
        mode: SessionMode,
    ) {
        let Self { recorded_rows, tracker, budget, lanes, observer, source, through, .. } = self;
        let now = Instant::now().into_std();
        lanes.wake(now);
        // A replay records nothing: failing rows and the rows behind them stay in memory.
        if !matches!(source, Source::Replay(_))
            && let Some(share) = budget.failing_share()
        {
            lanes.relieve(share, now);
        }
        while publishes.has_room() {
            let Some(batch) = lanes.next_batch(now) else { break };
            publishes.start(batch);
        }
        lanes.hold_up(budget, publishes.outstanding(), now);
        let room = budget.reload_capacity();
        // Nothing is claimed then, so rows would wait behind their keys' last rows for ever.
        if mode != SessionMode::Streaming || room == 0 {
            lanes.record_waiting();
        }
        let outputs = lanes.outputs();
        observer.rows_to_record(&outputs.rows_to_record);
        observer.finished(&outputs.finished);
        recorder.park(&mut outputs.rows_to_record);
        recorder.finish(&mut outputs.finished);
        let in_flight = if tracker.is_settled() { InFlight::Nothing } else { InFlight::Rows };
        recorder.settled(tracker.watermark(), in_flight);
        if tracker.needs_publication_check() {
            recorder.watch_soon();
        }
        if recorder.is_due_query_next() {
            recorder.leave_out(lanes.paused_topics(now));
        }
        if let Some(from) = recorded_rows.next_page() {
            recorder.read_recorded(from);
        }
        // A row that cannot be sent yet is not claimed, because its lease would end while it waits.
        let may_claim = mode == SessionMode::Streaming
            && !matches!(source, Source::HeldSlot)
            && publishes.waits_for() == 0
            && recorded_rows.all_passed()
            && recorder.may_claim();
        if may_claim && lanes.has_claims() {
            let keys = if room > 0 { lanes.claims(CLAIM_KEYS_MAX, now) } else { Vec::new() };
            if !keys.is_empty() {
                recorder.claim(ClaimRequest { keys, bytes_max: room, through: *through });
            }
        }
        observer.levels(tracker, budget, lanes, publishes.len() + publishes.waits_for());
    }

    /// Takes a reply, and further replies that have already arrived.
    fn take_replies<P: Publisher>(&mut self, first: CallReply, publishes: &mut PublishCalls<P>) {
        match first {
            CallReply::Ours(answer) => self.answered(answer),
            CallReply::Before(answer) => {
                self.observer.late_reply(&answer, publishes.waits_for());
            }
        }
        for _ in 1..TURN_MAX {
            let Some(another) = publishes.next_ready() else { break };
            self.answered(another);
        }
    }

    fn answered(&mut self, (batch, answer): Answer) {
        let now = Instant::now().into_std();
        let answer = answer.map_err(|failure| self.lanes.judge(&batch, failure, now));
        self.observer.answered(&batch, &answer, now);
        failpoint::hit("after-reply");
        match answer {
            Ok(message_ids) => self.lanes.stored(batch, message_ids, now),
            Err(failure) => self.lanes.refused_or_undecided(batch, &failure, now),
        }
        let outputs = self.lanes.outputs();
        for (ticket, memory) in outputs.settled.drain(..) {
            self.tracker.settle(ticket);
            self.budget.release(memory);
        }
    }

    /// Takes a measurement of the server.
    fn measured<R: AsyncRead + Unpin, W: AsyncWrite + Unpin, P: Publisher>(
        &mut self,
        measured: Measured,
        (frames, feedback): (&Frames<R>, &Feedback<W>),
        publishes: &mut PublishCalls<P>,
    ) {
        let arrived = Arrived {
            to: feedback.received_to(),
            wal_count: frames.wal_count(),
            is_reading: self.may_read(SessionMode::Streaming),
        };
        let now = Instant::now().into_std();
        self.server_stalls.measured(&measured, (arrived, frames.last_notice()), now);
        self.wal_measured(measured, publishes);
    }

    /// Takes a measurement of the end of WAL.
    fn wal_measured<P: Publisher>(&mut self, measured: Measured, publishes: &mut PublishCalls<P>) {
        let Self { tracker, wal_budget, lanes, observer, through, source, .. } = self;
        let now = Instant::now().into_std();
        if let Some(before) = wal_budget.follow(measured.retention) {
            observer.retention_changed(before, wal_budget);
        }
        let held = wal_budget.held(measured.wal_end, tracker.watermark());
        let spill = match source {
            Source::Slot | Source::Replay(_) => {
                let spill = wal_budget.judge(held, lanes.delivery(now));
                lanes.spill(spill, now);
                spill
            }
            // Its lanes record each row that is read.
            Source::HeldSlot => wal_budget.judge(held, Delivery::Stalled),
        };
        observer.wal_measured(held, wal_budget, spill);
        // A call without a reply retains WAL just like a pending row.
        let read_to = tracker.observed().max(through.commit_lsn);
        let overdue = publishes.give_up(|call| wal_budget.must_abandon(call, read_to, now));
        overdue.into_iter().for_each(|batch| self.answered((batch, Err(cancelled_for_wal()))));
    }

    /// Takes a result of dispatch state.
    fn dispatch_event(
        &mut self,
        event: DispatchEvent,
        goal: Option<&mut CatchUpTarget>,
    ) -> Result<(), PipelineError> {
        let now = Instant::now().into_std();
        match event {
            DispatchEvent::Parked(rows_to_record) => {
                failpoint::hit("after-park");
                rows_to_record.into_iter().for_each(|row_to_record| self.parked(row_to_record));
            }
            DispatchEvent::Finished(finished) => {
                finished.iter().for_each(|row| self.budget.release(row.message.memory()));
                let is_stored = |row: &Finished| matches!(row.outcome, Outcome::Published { .. });
                if let Some(goal) = goal.filter(|_| finished.iter().any(is_stored)) {
                    goal.redelivered();
                }
            }
            DispatchEvent::Claimed(claims) => {
                claims.into_iter().for_each(|(lane, claimed)| self.claimed(lane, claimed, now));
            }
            DispatchEvent::NotClaimed(lanes) => {
                let again_at = now + CLAIM_PAUSE;
                lanes.into_iter().for_each(|lane| self.lanes.claim_failed(lane, again_at));
            }
            DispatchEvent::Recorded(page) => self.recorded_rows.learn(page, &self.lanes),
            DispatchEvent::Due(Due { keys, has_more }) => {
                let resting_keys = self.lanes.resting_keys();
                for (topic, ordering_key) in &keys {
                    self.lanes.mark_due(topic, ordering_key, now);
                }
                self.may_have_more_due_keys = self.lanes.resting_keys() < resting_keys;
                if let Some(goal) = goal
                    && !has_more
                    && keys.len() < DUE_KEYS_MAX / 2
                {
                    goal.looked(&keys, |topic, key| self.lanes.rests(topic, key, now));
                }
            }
            DispatchEvent::Heads(heads) => {
                for head in heads.iter().filter(|head| !head.is_timed) {
                    let topic = Topic::from(head.topic.as_str());
                    self.lanes.mark_without_due_time(&topic, &head.ordering_key, now);
                }
            }
            DispatchEvent::Spilled(waits) => {
                if let Some(goal) = goal.filter(|_| !waits) {
                    goal.no_spilled_rows();
                }
            }
            DispatchEvent::Surveyed(survey) => self.observer.surveyed(*survey),
            DispatchEvent::Watched(PublicationCheck::Intact { up_to, .. }) => {
                self.tracker.intact(up_to);
            }
            DispatchEvent::Watched(PublicationCheck::Changed { what }) => {
                return Err(PipelineError::PublicationChanged { what });
            }
            DispatchEvent::Watched(PublicationCheck::Changing)
            | DispatchEvent::Settled(_)
            | DispatchEvent::Pruned(_)
            | DispatchEvent::Condition
            | DispatchEvent::Noted => {}
        }
        Ok(())
    }

    /// Returns whether to query due keys again now: some were found, and there is capacity again.
    fn requeries_due_keys(&mut self) -> bool {
        let looks = self.may_have_more_due_keys && self.lanes.has_lanes_to_wake();
        self.may_have_more_due_keys &= !looks;
        looks
    }

    /// Takes the next rows of a parked key. Without rows the key is live again.
    fn claimed(&mut self, lane: LaneId, claimed: ClaimAnswer, now: std::time::Instant) {
        let memories = claimed.rows.iter().map(|(message, _)| message.memory());
        memories.for_each(|memory| self.budget.take(memory));
        let parked_keys = self.lanes.parked_keys();
        self.lanes.claimed(lane, claimed, now);
        if self.lanes.parked_keys() < parked_keys {
            failpoint::hit("after-unpark");
        }
    }

    /// Records that a row is durable in dispatch state, and so settled (I2).
    fn parked(&mut self, row_to_record: RowToRecord) {
        self.budget.release(row_to_record.message.memory());
        let Position { commit_lsn, .. } = row_to_record.message.position();
        self.wal_budget.recorded(commit_lsn, row_to_record.message.body().len());
        self.tracker.settle(row_to_record.ticket);
        if let Some(lane) = row_to_record.lane {
            self.lanes.appended(lane);
        }
    }

    /// Charges the budget for memory that is not used by rows (I6).
    fn hold_beside(&mut self, read_buffer_bytes: usize) {
        let keys_and_rows = self.lanes.resting_memory() + self.recorded_rows.memory();
        self.budget.hold_beside(keys_and_rows + read_buffer_bytes);
    }

    fn may_read(&self, mode: SessionMode) -> bool {
        let is_wanted = match self.source {
            Source::Slot | Source::Replay(_) => true,
            Source::HeldSlot => self.wal_budget.is_near(),
        };
        let can_take_in = self.extent != StopPosition::Reached
            && self.budget.has_room()
            && self.recorded_rows.next_is_known();
        match mode {
            // New rows of parked keys would otherwise still be recorded.
            SessionMode::Streaming => can_take_in && is_wanted && !self.wal_budget.is_futile(),
            SessionMode::Draining { .. } => can_take_in && self.tracker.has_open_transaction(),
            SessionMode::Finishing { .. } => false,
        }
    }

    fn next_timer(&self, mode: SessionMode, at: Option<std::time::Instant>) -> Option<Instant> {
        let due = self.lanes.next_timer(at).map(Instant::from_std);
        match mode {
            SessionMode::Streaming => due,
            SessionMode::Draining { until, .. } | SessionMode::Finishing { until } => {
                Some(due.map_or(until, |due| due.min(until)))
            }
        }
    }

    /// Returns whether all rows that the end waits for are settled and on record.
    fn is_over<S: Store>(&self, mode: SessionMode, recorder: &DispatchWriter<S>) -> bool {
        let is_settled = match mode {
            SessionMode::Streaming => false,
            SessionMode::Draining { .. } => self.tracker.is_settled(),
            // The transaction of the unreadable row stays open.
            SessionMode::Finishing { .. } => self.budget.rows() == 0,
        };
        is_settled && recorder.is_idle()
    }
}

/// The maximum number of parked keys per claim command.
const CLAIM_KEYS_MAX: usize = 256;

/// How long keys wait after a failed claim.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);

mod intake;
#[cfg(test)]
mod tests;
