//! The log message of each stored batch, at the level `trace`: from a position to a message id.

use walrelay_core::Batch;

/// Logs a batch that Pub/Sub stored. All its rows have one key.
pub(super) fn log_stored_batch(batch: &Batch, message_ids: &[String]) {
    if !tracing::enabled!(tracing::Level::TRACE) {
        return;
    }
    let mut messages = batch.messages();
    let rows = messages.len();
    let first_lsn = messages.next().map(|message| message.position().commit_lsn);
    let last_lsn = messages.last().map(|message| message.position().commit_lsn).or(first_lsn);
    tracing::trace!(
        topic = &**batch.topic(),
        rows,
        ordering_keys = u8::from(!batch.ordering_key().is_empty()),
        first_lsn = first_lsn.map(tracing::field::display),
        last_lsn = last_lsn.map(tracing::field::display),
        first_message_id = message_ids.first(),
        last_message_id = message_ids.last(),
        "batch stored"
    );
}
