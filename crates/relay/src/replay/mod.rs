//! A replay: the loop of [`stream`](crate::stream) over a temporary copy of an anchor, into another topic.
//!
//! ```text
//! anchor ── copy, gone with its connection ──▶ selected rows ──▶ lanes ──▶ paced publishes ──▶ topic
//!                                                                  └─▶ how far it has come ──▶ app_outbox_replay
//! ```
//!
//! The live slot is not touched, and no dispatch state is read or written: what Pub/Sub refuses is
//! tried again, and a row that it would never take ends the replay, or is left out. One [in place](in_place)
//! writes its rows into dispatch state instead, from where the relay publishes them.

mod in_place;
mod paced;
mod request;
mod routed_rows;
mod rows;
mod server;
mod store;
mod tally;

use std::time::Duration;

use pgoutput_parser::Lsn;
use walrelay_core::{OnDead, Selection, WalBudgetLimit};

pub use in_place::{HELD_KEYS_MAX, HistoryWriter, KeysSeen};
pub use paced::Paced;
pub use request::{Destination, Rate, Request, UnreadableRequest};
pub use routed_rows::RoutedRows;
pub use rows::{BACKFILL_END, Beginning, RowsRequest, TableRows};
pub use server::AnchorCopy;
pub use store::{DeadRows, Keeping, Progress, ReplayStore};
pub use tally::Tally;

use crate::lifecycle::session::SessionSettings;
use crate::settings::{RelaySettings, Until};

/// One replay, resolved: every time is a position.
#[derive(Debug, Clone)]
pub struct Replay {
    /// Its name, and the attribute of its messages.
    pub id: String,
    /// The slot of the anchor.
    pub anchor_slot: String,
    /// Which rows.
    pub selection: Selection,
    /// Everything before is published already.
    pub start: Lsn,
    /// Once everything before is settled it is done.
    pub goal: Lsn,
    /// What becomes of rows that Pub/Sub would never take.
    pub dead_rows: DeadRows,
    /// Whether how far it comes is written down.
    pub keeping: Keeping,
}

/// The temporary slot of the replay of this id: a copy of its anchor, for as long as a connection streams it.
/// One process at a time can have it, so a replay that is resumed twice runs once.
#[must_use]
pub fn copy_of_anchor(live: &str, id: &str) -> String {
    const SUFFIX_MAX: usize = "_replay_".len() + 8;
    let kept = live.get(..live.len().min(63 - SUFFIX_MAX)).unwrap_or_default();
    format!("{kept}_replay_{id}")
}

/// No key is ever parked: nothing waits behind a replay that it could hold up.
const NEVER: Duration = Duration::from_hours(24 * 3650);

impl Replay {
    /// What its sessions are built from.
    #[must_use]
    pub fn session_settings(
        &self,
        (live, requests_max): (&RelaySettings, usize),
        rate: Option<Rate>,
    ) -> SessionSettings {
        let mut relay = live.clone();
        relay.outbox.slot = copy_of_anchor(&live.outbox.slot, &self.id);
        relay.router.replay_id = Some(self.id.clone());
        relay.park_after = NEVER;
        // Where a dead row ends the replay, the rows behind it come after it is mended, never before.
        relay.on_dead = match self.dead_rows {
            DeadRows::Stop => OnDead::Hold,
            DeadRows::LeaveOut => OnDead::Continue,
        };
        relay.wal_budget = WalBudgetLimit::Off;
        relay.take_over_after = None;
        let mut built = SessionSettings::of(&relay, requests_max, Until::CaughtUp);
        if let Some(rate) = rate {
            // No request alone is more than a second's share, and what is read ahead is no more than two:
            // a stop waits for it.
            let share = rate.per_second() as usize;
            built.lanes.batch_messages = built.lanes.batch_messages.min(share);
            built.budget.rows = built.budget.rows.min(2 * share);
        }
        built.selection = Some(self.selection.clone());
        built
    }
}
