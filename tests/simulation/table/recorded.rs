//! Recorded rows that the server may send again, one page at a time.

use pgoutput_parser::Position;
use walrelay_core::OnDead;
use walrelay_outbox_store::{RecordedPage, RecordedRow};

use super::{Place, Source, State, position};
use crate::judge::Status;

impl State {
    pub(super) fn recorded_from(
        &self,
        on_dead: OnDead,
        from: Position,
        rows_max: u32,
    ) -> RecordedPage {
        let since = self.entries.range((from.commit_lsn.as_u64(), from.tx_index, 0)..);
        let row = |(at, entry): (&Place, &super::Entry)| {
            let parks = match entry.status {
                Status::Retrying => true,
                Status::Dead => on_dead == OnDead::Hold && !entry.key.is_empty(),
                Status::Published | Status::Discarded => false,
            };
            RecordedRow {
                position: position(*at),
                event_id: entry.event_id(),
                parks: parks.then(|| (entry.topic.clone(), entry.key.clone())),
            }
        };
        let of_slot = since.filter(|(_, entry)| entry.source == Source::Slot);
        RecordedPage::of(of_slot.take(rows_max as usize).map(row).collect(), rows_max)
    }
}
