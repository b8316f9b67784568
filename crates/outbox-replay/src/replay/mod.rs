//! A replay publishes rows again, to another topic or in place. It reads them from the WAL behind an
//! anchor or from the tables. [`ReplayJob`] is one replay.
//!
//! ```text
//! temporary copy of an anchor, or the tables ──▶ selected rows ──▶ lanes ──▶ rate limit ──▶ topic
//!                                                                    └─▶ progress ──▶ app_outbox_replay
//! ```
//!
//! Each pass over the rows is the loop of [`stream`](walrelay_relay::stream). The live slot is not
//! touched. To another topic, no dispatch state is read or written. Refused rows are retried, and a
//! row that Pub/Sub never accepts ends the replay or is skipped. In place, the rows are written
//! into dispatch state, from where the relay publishes them.

mod anchor_copy;
mod cancel;
mod counting_publisher;
mod in_place;
mod pass;
mod plan;
mod record;
mod replay_database;
mod replay_error;
mod replay_progress;
mod replay_step;
mod request;
mod routed_rows;
mod run;
mod store;
mod table_server;

use pgoutput_parser::Lsn;
use walrelay_core::{LanePolicy, OnDead, ReplaySelection, WalBudgetLimit};

pub use cancel::{CancellableReplay, CancelledRows};
pub use counting_publisher::CountingPublisher;
pub use in_place::HELD_KEYS_MAX;
pub use pass::ReplayEnv;
pub use record::{ReplayEnd, ReplayJob, ReplayProgress, read_replay, read_replays};
pub use replay_error::{ReplayError, RowCount};
pub use replay_progress::Tally;
pub use replay_step::{ReadProgress, RelayWork, ReplayStep, ReplaySteps, ReplayWait};
pub use request::{
    DeadRows, Destination, OrderedSource, OrderedTable, OrderedWal, ReplayOrder, ReplayRequest,
    ReplaySource, TableRows, WalRows,
};
pub use routed_rows::RoutedRows;
pub use run::{ReplayCounts, ReplayDone, RestInPlace};
pub use store::{Keeping, Progress, ReplayStore};

use walrelay_relay::lifecycle::session::{Purpose, SessionSettings};
use walrelay_relay::settings::{RelaySettings, Until};

/// A replay whose times are resolved to positions.
#[derive(Debug, Clone)]
pub struct Replay {
    /// Its id, which is also an attribute of its messages.
    pub id: String,
    pub anchor_slot: String,
    pub selection: ReplaySelection,
    /// Everything before this position is already published.
    pub start: Lsn,
    /// The replay is done once everything before this position is settled.
    pub goal: Lsn,
    pub dead_rows: DeadRows,
    pub keeping: Keeping,
}

/// Returns the name of the replay's temporary slot: a copy of its anchor, which is dropped with its
/// connection. Only one process at a time can have the slot, so a replay that is resumed twice runs
/// once.
#[must_use]
pub fn replay_slot_name(live: &str, id: &str) -> String {
    const SUFFIX_MAX: usize = "_replay_".len() + 8;
    let kept = live.get(..live.len().min(63 - SUFFIX_MAX)).unwrap_or_default();
    format!("{kept}_replay_{id}")
}

impl Replay {
    #[must_use]
    pub fn session_settings(&self, live: &RelaySettings, requests_max: usize) -> SessionSettings {
        let mut relay = live.clone();
        relay.outbox.slot = replay_slot_name(&live.outbox.slot, &self.id);
        relay.router.replay_id = Some(self.id.clone());
        // No other row waits behind the keys of a replay.
        relay.park_after = LanePolicy::NEVER_PARKS;
        // If a dead row ends the replay, the rows behind it follow only after it is fixed.
        relay.on_dead = match self.dead_rows {
            DeadRows::Stop => OnDead::Hold,
            DeadRows::LeaveOut => OnDead::Continue,
        };
        relay.wal_budget = WalBudgetLimit::Off;
        relay.take_over_after = None;
        let mut built = SessionSettings::of(&relay, requests_max, Until::CaughtUp);
        built.purpose = Purpose::Replay(self.selection.clone());
        built
    }
}
