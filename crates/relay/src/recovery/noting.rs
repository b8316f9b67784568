//! Writes down how far a recovery has come, while it publishes.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_outbox_admin::{AdminError, Filling, FillingPlace, note_place};
use walrelay_pg_client::SqlClient;

use super::progress::Progress;
use crate::error::RelayError;
use crate::shutdown::Shutdown;
use crate::stream::mode::Ended;

/// The place is written down at least this often while rows settle.
const INTERVAL: Duration = Duration::from_secs(1);

/// With so many rows settled it is written down earlier. A kill repeats these rows and those in flight.
const ROWS: u32 = 1_000;

/// How often it is checked how many rows are settled.
const PAUSE: Duration = Duration::from_millis(20);

/// Where the place is written down.
pub trait NotePlace: Sync {
    /// Writes it down. It is durable when this returns.
    fn note(&self, place: &FillingPlace) -> impl Future<Output = Result<(), RelayError>> + Send;
}

/// In `app_outbox_relay.operation`, over the session that has the lock on the operation.
#[derive(Debug)]
pub(super) struct PlaceOnRecord<'a> {
    pub(super) client: &'a SqlClient,
    pub(super) slot: &'a str,
    pub(super) filling: &'a Filling,
}

impl NotePlace for PlaceOnRecord<'_> {
    async fn note(&self, place: &FillingPlace) -> Result<(), RelayError> {
        let Self { client, slot, filling } = *self;
        let noted = note_place(client, (slot, filling), place).await.map_err(RelayError::survey)?;
        match noted {
            true => Ok(()),
            // Another process has made another slot since.
            false => Err(RelayError::Survey(AdminError::OperationUnfinished {
                slot: slot.to_owned(),
                what: "another recovery".to_owned(),
            })),
        }
    }
}

/// Runs the sessions of a recovery, and writes down how far they have come. They are stopped when `shutdown`
/// is requested, or when the place cannot be written: the lock on the operation is lost then.
///
/// # Errors
///
/// Those of the sessions, or of writing the place.
pub async fn run_noting<R>(
    running: R,
    (on_record, progress): (impl NotePlace, &Progress),
    (stop, shutdown): (&Shutdown, &Shutdown),
) -> Result<Option<Ended>, RelayError>
where
    R: Future<Output = Result<Option<Ended>, RelayError>>,
{
    let mut running = pin!(running);
    let noting = keep_noting(&on_record, progress);
    let ended = tokio::select! {
        biased;
        ended = &mut running => ended,
        error = noting => {
            stop.request();
            running.await?;
            return Err(error);
        }
        () = shutdown.requested() => {
            stop.request();
            running.await
        }
    }?;
    // Rows have settled since the place was last written.
    if ended != Some(Ended::CaughtUp)
        && let Some(place) = progress.place()
    {
        on_record.note(&place).await?;
    }
    Ok(ended)
}

/// Writes the place until that fails.
async fn keep_noting(on_record: &impl NotePlace, progress: &Progress) -> RelayError {
    let (mut noted, mut noted_at) = (progress.number(), Instant::now());
    loop {
        sleep(PAUSE).await;
        let settled = progress.number().saturating_sub(noted);
        if settled == 0 || settled < ROWS && noted_at.elapsed() < INTERVAL {
            continue;
        }
        let Some(place) = progress.place() else { continue };
        if let Err(error) = on_record.note(&place).await {
            return error;
        }
        (noted, noted_at) = (place.number, Instant::now());
    }
}
