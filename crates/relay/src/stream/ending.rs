//! The end of a session: the server is told one last time what is settled, and let go of.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use walrelay_core::Watermark;
use walrelay_outbox_store::{Store, Watch};
use walrelay_pg_client::PgError;

use crate::failpoint;
use crate::stream::mode::Ended;
use crate::stream::pipeline::{Over, Session, Source};
use crate::stream::pipeline_error::PipelineError;
use crate::stream::record::InFlight;
use crate::stream::seams::Publisher;

impl<R, W, P, S> Session<R, W, P, S>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    P: Publisher,
    S: Store,
{
    /// How long the end waits for dispatch state.
    const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

    /// Tells the server one last time what is settled, and lets go.
    pub(super) async fn end(self, ended: Result<Ended, PipelineError>) -> Over {
        let Self { frames, feedback, publishes, mut recorder, mut flow, goal, .. } = self;
        if ended.as_ref().is_err_and(PipelineError::is_of_a_row)
            && flow.tracker.waits_for_intact()
            && let Some(Watch::Intact { up_to }) = recorder.look(Self::CLOSE_TIMEOUT).await
        {
            // What was published before the row must not come again once it is mended.
            flow.tracker.intact(up_to);
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
            // A server that waits for us is let go of before anything else.
            Err(error) if !error.is_of_a_row() => {
                let finished = feedback.finish(frames, watermark).await;
                recorder.close(Self::CLOSE_TIMEOUT).await;
                finished
            }
            // What came before a row that cannot be read must not come again at each start.
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
        Over { ended, unanswered: publishes.into_unanswered(), goal }
    }
}

fn report_end(
    source: &Source,
    (watermark, unsettled): (Watermark, usize),
    finished: &Result<(), PgError>,
) {
    // A session that had nothing to settle knows no position; the slot stays where it was.
    let watermark = (watermark != Watermark::NONE).then(|| tracing::field::display(watermark));
    match finished {
        // Its command says how far it has come.
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
            error = %crate::policy::Chain(error),
            "the last status update may not have been seen; rows settled since the one before may be published again"
        ),
    }
}
