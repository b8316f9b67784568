//! One command to dispatch state: its input, its retries and its result.
//!
//! A command that rows wait for is repeated until it succeeds. Its failures make the relay not
//! ready, and are noted in the relay's own row if that can be written.

use std::pin::pin;
use std::time::Duration;

use pgoutput_parser::{Lsn, Position};
use tokio::time::{Instant, sleep_until, timeout};
use walrelay_core::{
    Backoff, ClaimAnswer, ClaimKey, Finished, LaneId, RowToRecord, Topic, Watermark,
};
use walrelay_errors::Code;
use walrelay_outbox_store::{
    Condition, Due, Head, PublicationCheck, Reason, ReasonKind, RecordedPage, SlotFigures, Store,
    StoreFailure,
};

use crate::observe::health::{Health, Problem};
use crate::stream::already_recorded::AlreadyRecorded;

#[derive(Debug)]
pub enum DispatchEvent {
    /// These rows are durable in dispatch state.
    Parked(Vec<RowToRecord>),
    /// These outcomes are written.
    Finished(Vec<Finished>),
    /// The next rows of parked keys.
    Claimed(Vec<(LaneId, ClaimAnswer)>),
    /// The rows of these keys could not be read. The keys pause briefly.
    NotClaimed(Vec<LaneId>),
    /// Rows that were recorded before this session.
    Recorded(RecordedPage),
    /// Keys that are due by time or by an operator's change.
    Due(Due),
    /// The first rows of some keys.
    Heads(Vec<Head>),
    /// Whether spilled rows of the goal are pending.
    Spilled(bool),
    Surveyed(Box<SlotFigures>),
    /// The settled position is on record and may be confirmed.
    Settled(Watermark),
    /// This many rows past their retention were deleted. There may be more.
    Pruned(u64),
    Watched(PublicationCheck),
    /// The condition was noted, or will be retried.
    Condition,
    /// A failed command that no row waits for.
    Noted,
}

/// Parked keys whose next rows are requested.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The keys. None of their rows is in flight.
    pub keys: Vec<ClaimKey>,
    /// The free capacity for rows in bytes.
    pub bytes_max: usize,
    /// The position of the last row that was read, of any key.
    pub through: Position,
}

pub(super) enum StoreCommand {
    Park(Vec<RowToRecord>),
    Finish(Vec<Finished>),
    Claim(ClaimRequest),
    Recorded(Position),
    Due(Vec<Topic>),
    Heads(Option<Head>),
    Spilled(Lsn),
    Survey,
    /// The watermark, and the rows published since the last one.
    NoteSettled(Watermark, u64),
    NoteCondition(Condition),
    Watch,
    Prune,
}

/// Runs a command, and repeats it until it succeeds if rows wait for it: those rows, and the slot,
/// settle only then. Other commands end after one failure, because they would delay the first kind.
pub(super) async fn run_with_retries<S: Store>(
    mut store: S,
    command: StoreCommand,
    (retention, health): (Duration, Health),
) -> (S, Result<DispatchEvent, StoreFailure>) {
    const PAUSE: Backoff =
        Backoff { base: Duration::from_millis(200), cap: Duration::from_secs(10) };
    let (mut attempts, name) = (0, command.name());
    loop {
        let error = match reported(&mut store, &command, (retention, &health)).await {
            Ok(found) => {
                health.set(Problem::Store(name), None);
                if let StoreCommand::NoteCondition(condition) = &command {
                    health.condition_noted(condition.clone());
                }
                if let Found::Watched(PublicationCheck::Intact { unpublished, .. }) = &found {
                    report_unpublished(&health, unpublished.as_ref());
                }
                return (store, Ok(command.event(found)));
            }
            Err(
                ended @ (StoreFailure::ShuttingDown
                | StoreFailure::OtherHistory(_)
                | StoreFailure::NotRecorded(_)
                | StoreFailure::TablesMissing(_)),
            ) => return (store, Err(ended)),
            Err(error @ StoreFailure::Unavailable(_)) => {
                if command.blocks_rows() {
                    health.set(Problem::Store(name), Some(store.failure_reason(&error)));
                }
                walrelay_errors::Chain(&error).to_string()
            }
        };
        attempts += 1;
        match command {
            StoreCommand::Park(_) | StoreCommand::Finish(_) | StoreCommand::Recorded(_) => {
                tracing::warn!(
                    command = name,
                    attempts,
                    error,
                    "dispatch state failed; trying again"
                );
            }
            StoreCommand::Claim(claiming) => {
                tracing::warn!(command = name, error, "dispatch state failed");
                let lanes = claiming.keys.into_iter().map(|key| key.lane).collect();
                return (store, Ok(DispatchEvent::NotClaimed(lanes)));
            }
            // Nothing depends on the note. The commands that fail for the same cause report it.
            StoreCommand::NoteCondition(_) => {
                tracing::debug!(command = name, error, "dispatch state failed");
                health.condition_not_noted();
                return (store, Ok(DispatchEvent::Condition));
            }
            StoreCommand::Due(_)
            | StoreCommand::Heads(_)
            | StoreCommand::Spilled(_)
            | StoreCommand::Survey
            | StoreCommand::NoteSettled(..)
            | StoreCommand::Watch
            | StoreCommand::Prune => {
                tracing::warn!(command = name, error, "dispatch state failed");
                return (store, Ok(DispatchEvent::Noted));
            }
        }
        pause(&mut store, PAUSE.delay(attempts, u32::MAX), &health).await;
    }
}

/// Reports that an outbox table has rows that are never published, or that a table of the relay may lose
/// its rows, once.
fn report_unpublished(health: &Health, reason: Option<&Reason>) {
    if !health.set(Problem::Unpublished, reason.cloned()) {
        return;
    }
    match reason {
        Some(reason) => {
            let error_code = reason.code.as_deref().unwrap_or_default();
            let fix = reason.fix.as_deref().unwrap_or_default();
            tracing::error!(error_code, fix, "{}", reason.text);
        }
        None => {
            let error_code = Code::OutboxTableUnsuitable.name();
            tracing::warn!(
                error_code,
                "no table is unsuitable any more; rows that an outbox table got meanwhile are published only if they are \
                 inserted or replayed from the table"
            );
        }
    }
}

/// A command that has no answer for so long makes the relay not ready. The same time without a
/// stored row is an outage of Pub/Sub.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// Executes a command, and reports it if rows wait for it and it has no answer for long. Its
/// timeout may be far away, and the waiting rows would look like an outage of Pub/Sub.
async fn reported<S: Store>(
    store: &mut S,
    command: &StoreCommand,
    (retention, health): (Duration, &Health),
) -> Result<Found, StoreFailure> {
    let mut running = pin!(execute(store, command, retention));
    match timeout(ANSWER_PATIENCE, running.as_mut()).await {
        Ok(found) => return found,
        Err(_) if command.blocks_rows() => {
            let (name, seconds) = (command.name(), ANSWER_PATIENCE.as_secs());
            tracing::warn!(command = name, seconds, "dispatch state does not answer");
            let text = format!("dispatch state has not answered `{name}` for {seconds} s");
            let reason = Reason::new(ReasonKind::DispatchFailure, text);
            // The error of the last attempt says more, and stays.
            if !health.has(&Problem::Store(name)) {
                let reason = reason.with_code(Code::ServerError.name());
                health.set(Problem::Store(name), Some(reason));
            }
        }
        Err(_) => {}
    }
    running.await
}

/// The time limit of a note between two attempts.
const NOTE_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits between two attempts of a failing command. Notes the condition meanwhile, so that
/// operators can find the failure.
async fn pause<S: Store>(store: &mut S, length: Duration, health: &Health) {
    let until = Instant::now() + length;
    loop {
        if health.has_condition_change()
            && let Some(condition) = health.condition_to_note()
        {
            match timeout(NOTE_TIMEOUT, store.note_condition(&condition)).await {
                Ok(Ok(())) => health.condition_noted(condition),
                Ok(Err(_)) | Err(_) => health.condition_not_noted(),
            }
        }
        tokio::select! {
            biased;
            () = sleep_until(until) => return,
            () = health.news() => {}
        }
    }
}

/// The result of the store, before it is combined with the command.
enum Found {
    Nothing,
    Claimed(Vec<ClaimAnswer>),
    Recorded(RecordedPage),
    Due(Due),
    Pruned(u64),
    Heads(Vec<Head>),
    Spilled(bool),
    Surveyed(Box<SlotFigures>),
    Watched(PublicationCheck),
}

async fn execute<S: Store>(
    store: &mut S,
    command: &StoreCommand,
    retention: Duration,
) -> Result<Found, StoreFailure> {
    match command {
        StoreCommand::Park(rows_to_record) => {
            store.park(rows_to_record).await.map(|()| Found::Nothing)
        }
        StoreCommand::Finish(finished) => store.finish(finished).await.map(|()| Found::Nothing),
        StoreCommand::Claim(ClaimRequest { keys, bytes_max, through }) => {
            store.claim(keys, *bytes_max, *through).await.map(Found::Claimed)
        }
        StoreCommand::Recorded(from) => {
            let page = store.recorded_from(*from, AlreadyRecorded::PAGE_ROWS).await;
            page.map(Found::Recorded)
        }
        StoreCommand::Due(except) => store.due_keys(except).await.map(Found::Due),
        StoreCommand::Heads(after) => store.heads_after(after.as_ref()).await.map(Found::Heads),
        StoreCommand::Spilled(before) => {
            store.has_spilled_before(*before).await.map(Found::Spilled)
        }
        StoreCommand::Survey => store.survey().await.map(Box::new).map(Found::Surveyed),
        StoreCommand::NoteSettled(settled, published) => {
            store.note_settled(settled.lsn(), *published).await.map(|()| Found::Nothing)
        }
        StoreCommand::NoteCondition(condition) => {
            store.note_condition(condition).await.map(|()| Found::Nothing)
        }
        StoreCommand::Watch => store.watch().await.map(Found::Watched),
        StoreCommand::Prune => {
            let rows = store.prune(retention).await?;
            if rows > 0 {
                tracing::info!(rows, "deleted dispatch rows past their retention");
            }
            Ok(Found::Pruned(rows))
        }
    }
}

impl StoreCommand {
    /// Returns whether rows or the slot wait for this command.
    const fn blocks_rows(&self) -> bool {
        match self {
            Self::Park(_)
            | Self::Finish(_)
            | Self::Claim(_)
            | Self::Recorded(_)
            | Self::Due(_)
            | Self::NoteSettled(..)
            | Self::Watch => true,
            Self::Heads(_)
            | Self::Spilled(_)
            | Self::Survey
            | Self::NoteCondition(_)
            | Self::Prune => false,
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Park(_) => "park",
            Self::Finish(_) => "finish",
            Self::Claim(_) => "claim",
            Self::Recorded(_) => "read recorded rows",
            Self::Due(_) => "due",
            Self::Heads(_) => "look through heads",
            Self::Spilled(_) => "look for spilled rows",
            Self::Survey => "survey",
            Self::NoteSettled(..) => "note settled",
            Self::NoteCondition(_) => "note condition",
            Self::Watch => "watch",
            Self::Prune => "prune",
        }
    }

    fn event(self, found: Found) -> DispatchEvent {
        match (self, found) {
            (Self::Park(rows_to_record), _) => DispatchEvent::Parked(rows_to_record),
            (Self::Finish(finished), _) => DispatchEvent::Finished(finished),
            (Self::Claim(ClaimRequest { keys, .. }), Found::Claimed(claimed)) => {
                assert_eq!(keys.len(), claimed.len(), "I4: one answer a key");
                DispatchEvent::Claimed(keys.into_iter().map(|key| key.lane).zip(claimed).collect())
            }
            (Self::NoteSettled(settled, _), _) => DispatchEvent::Settled(settled),
            (Self::NoteCondition(_), _) => DispatchEvent::Condition,
            (_, Found::Recorded(page)) => DispatchEvent::Recorded(page),
            (_, Found::Due(due)) => DispatchEvent::Due(due),
            (_, Found::Pruned(rows)) => DispatchEvent::Pruned(rows),
            (_, Found::Heads(heads)) => DispatchEvent::Heads(heads),
            (_, Found::Spilled(waits)) => DispatchEvent::Spilled(waits),
            (_, Found::Surveyed(survey)) => DispatchEvent::Surveyed(survey),
            (_, Found::Watched(watch)) => DispatchEvent::Watched(watch),
            (_, Found::Nothing | Found::Claimed(_)) => DispatchEvent::Noted,
        }
    }
}
