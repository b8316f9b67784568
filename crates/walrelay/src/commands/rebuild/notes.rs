//! The log messages of a rebuild.

use walrelay_consumer_rebuild::RebuildNote;
use walrelay_reports::steps::rebuild::out_of_reach;

/// Logs a note.
pub(super) fn log(note: &RebuildNote) {
    match note {
        RebuildNote::PublishesRows { rows } => {
            tracing::info!(rows, "publishing the rows of the outbox");
        }
        RebuildNote::EventsOutOfReach { earlier, generation } => {
            if let Some(text) = out_of_reach(*earlier, *generation) {
                tracing::warn!("{text}");
            }
        }
        RebuildNote::ReplyLost => {
            tracing::warn!("the transaction has committed, although its reply was lost");
        }
        RebuildNote::ReplayLeft { id, error } => {
            tracing::warn!(error, "a replay is left: end it with walrelay replay cancel {id}");
        }
        RebuildNote::NothingApplied { count, rows } => {
            tracing::warn!(count, rows, "nothing is applied: is `walrelay consumer run` running?");
        }
        RebuildNote::RefillInterrupted { consumer, subscription } => tracing::warn!(
            "consumer {consumer:?} reads {subscription} until the same command has run to its end"
        ),
        RebuildNote::RowsLeftOut { rows, named } => {
            let named = named.join("; ");
            tracing::warn!(rows, named, "rows that can never be published are left out");
        }
    }
}
