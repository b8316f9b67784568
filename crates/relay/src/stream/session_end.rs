//! The end of a session: sends the last status update and releases the slot.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use walrelay_core::Watermark;
use walrelay_outbox_store::{PublicationCheck, Store};
use walrelay_pg_client::PgError;

use crate::failpoint;
use crate::stream::mode::StopReason;
use crate::stream::pipeline::{Session, SessionEnd, Source};
use crate::stream::pipeline_error::PipelineError;
use crate::stream::publisher::Publisher;
use crate::stream::watermark_journal::InFlight;

impl<R, W, P, S> Session<R, W, P, S>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    P: Publisher,
    S: Store,
{
    /// The time limit for dispatch state at the end.
    const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

    pub(super) async fn end(self, ended: Result<StopReason, PipelineError>) -> SessionEnd {
        let Self { mut frames, feedback, publishes, mut recorder, decoder, mut flow, goal, .. } =
            self;
        // A server that ends a connection says why. A write to it fails before the text is read.
        let ended = match ended {
            Err(PipelineError::Stream(
                error @ (PgError::Io { .. } | PgError::WriteTimeout { .. }),
            )) => {
                let said = frames.parting_error().await;
                Err(flow.broken_off(said.unwrap_or(error), &decoder))
            }
            ended => ended,
        };
        if ended.as_ref().is_err_and(PipelineError::is_row_error)
            && flow.tracker.needs_publication_check()
            && let Some(PublicationCheck::Intact { up_to, .. }) =
                recorder.look(Self::CLOSE_TIMEOUT).await
        {
            // Rows published before the unreadable row must not be republished once that row is
            // fixed.
            flow.tracker.intact(up_to);
        }
        if let Err(error @ PipelineError::Unsendable { at, .. }) = &ended {
            flow.observer.unsendable(*at, error);
            recorder.note_condition(Self::CLOSE_TIMEOUT).await;
        }
        let settled = flow.tracker.watermark();
        recorder.settled(settled, InFlight::Nothing);
        let mut watermark = recorder.noted();
        let unsettled = flow.budget.rows();
        if let Err(error) = &ended {
            flow.observer.ending(error, publishes.len() + publishes.waits_for());
        }
        let finished = match &ended {
            Err(PipelineError::Stream(_)) => {
                drop((frames, feedback));
                recorder.close(Self::CLOSE_TIMEOUT).await;
                Ok(())
            }
            // A server that waits for us is released before anything else.
            Err(error) if !error.is_row_error() => {
                let finished = feedback.finish(frames, watermark).await;
                recorder.close(Self::CLOSE_TIMEOUT).await;
                finished
            }
            // Rows before an unreadable row must not be republished at each start.
            Ok(_) | Err(_) => {
                watermark = recorder.close(Self::CLOSE_TIMEOUT).await;
                failpoint::hit("final-confirm");
                feedback.finish(frames, watermark).await
            }
        };
        report_end(&flow.source, (watermark, unsettled), &finished);
        let ended = match (ended, finished) {
            (Ok(_), Err(error)) => Err(PipelineError::Stream(error)),
            (Ok(_), Ok(())) if watermark < settled => {
                Err(PipelineError::NotOnRecord { watermark, settled })
            }
            (ended, _) => ended,
        };
        let read_to = settled.lsn().max(flow.through.commit_lsn);
        SessionEnd { ended, unanswered: publishes.into_unanswered(), goal, read_to }
    }
}

fn report_end(
    source: &Source,
    (watermark, unsettled): (Watermark, usize),
    finished: &Result<(), PgError>,
) {
    // A session without any settled row knows no position. The slot stays at its old position.
    let watermark = (watermark != Watermark::NONE).then(|| tracing::field::display(watermark));
    match finished {
        // The command of the replay reports its own progress.
        Ok(()) if matches!(source, Source::Replay(_)) => {
            tracing::debug!(watermark, unsettled_rows = unsettled, "session ended");
        }
        Ok(()) if unsettled == 0 => tracing::info!(watermark, "session ended"),
        Ok(()) => tracing::info!(
            watermark,
            unsettled_rows = unsettled,
            "session ended; unsettled rows are read again from the slot"
        ),
        Err(error) => tracing::warn!(
            watermark,
            error = %walrelay_errors::Chain(error),
            "the last status update may not have been seen; rows settled since the one before may be published again"
        ),
    }
}
