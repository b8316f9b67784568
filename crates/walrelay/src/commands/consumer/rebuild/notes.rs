//! The log messages of a rebuild.

use crate::steps::rebuild::out_of_reach;
use walrelay_inbox_admin::RebuildNote;

pub(super) fn log(note: &RebuildNote) {
    match note {
        RebuildNote::EventsOutOfReach { earlier, generation } => {
            if let Some(text) = out_of_reach(*earlier, *generation) {
                tracing::warn!("{text}");
            }
        }
        RebuildNote::ReplyLost => {
            tracing::warn!("the transaction has committed, although its reply was lost");
        }
        RebuildNote::RowsLeftOut { rows, named } => {
            let named = named.join("; ");
            tracing::warn!(rows, named, "rows that can never be published are left out");
        }
    }
}
