//! Records the progress of a recovery while it publishes.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_pg_client::SqlClient;
use walrelay_relay::error::RelayError;
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::mode::StopReason;

use super::progress::Progress;
use crate::admin_error::AdminError;
use crate::operation::SlotSnapshot;
use crate::recovery_cursor::{RecoveryCursor, note_place};

/// The longest interval between two records of the place while rows settle.
const INTERVAL: Duration = Duration::from_secs(1);

/// The number of settled rows that trigger an earlier record. After a kill, these rows and those in
/// flight are republished.
const ROWS: u32 = 1_000;

/// The interval at which the number of settled rows is checked.
const PAUSE: Duration = Duration::from_millis(20);

pub trait PlaceStore: Sync {
    /// Stores the place. It is durable when this returns.
    fn note(&self, place: &RecoveryCursor) -> impl Future<Output = Result<(), RelayError>> + Send;
}

/// Stores the place in `app_outbox_relay.operation`, over the session that holds the operation's
/// lock.
#[derive(Debug)]
pub(super) struct PlaceInRelayRow<'a> {
    pub(super) client: &'a SqlClient,
    pub(super) slot: &'a str,
    pub(super) part: &'a SlotSnapshot,
}

impl PlaceStore for PlaceInRelayRow<'_> {
    async fn note(&self, place: &RecoveryCursor) -> Result<(), RelayError> {
        let Self { client, slot, part } = *self;
        let noted = note_place(client, (slot, part), place).await?;
        match noted {
            true => Ok(()),
            // Another process has finished this part meanwhile.
            false => Err(RelayError::survey(AdminError::OperationUnfinished {
                slot: slot.to_owned(),
                what: "another recovery".to_owned(),
            })),
        }
    }
}

/// Runs the sessions of a recovery and records their progress. Stops them if `shutdown` is
/// requested. If recording fails, the operation's lock is lost, and the session ends without a
/// drain.
pub async fn run_recording_place<R>(
    running: R,
    (on_record, progress): (impl PlaceStore, &Progress),
    (stop, shutdown): (&Shutdown, &Shutdown),
) -> Result<Option<StopReason>, RelayError>
where
    R: Future<Output = Result<Option<StopReason>, RelayError>>,
{
    let mut running = pin!(running);
    let noting = keep_recording_place(&on_record, progress);
    let ended = tokio::select! {
        biased;
        ended = &mut running => ended,
        error = noting => {
            // A drain would publish rows that another process may publish meanwhile.
            progress.lose();
            stop.request();
            drop(running.await);
            return Err(error);
        }
        () = shutdown.requested() => {
            stop.request();
            running.await
        }
    }?;
    // Rows have settled since the place was last recorded.
    if ended != Some(StopReason::CaughtUp)
        && let Some(place) = progress.place()
    {
        on_record.note(&place).await?;
    }
    Ok(ended)
}

/// Records the place until that fails.
async fn keep_recording_place(on_record: &impl PlaceStore, progress: &Progress) -> RelayError {
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
