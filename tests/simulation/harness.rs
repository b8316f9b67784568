//! The test harness between the relay and the simulated world: transparent, or with a planted bug.

use walrelay_core::BudgetLimits;
use walrelay_outbox_store::Store;
use walrelay_relay::lifecycle::session::SessionSettings;
use walrelay_relay::settings::Until;
use walrelay_relay::stream::publisher::Publisher;
use walrelay_testkit::walsender::Watcher;

use crate::bugs::{ReplayBug, ResetBug};
use crate::judge::Judge;
use crate::pubsub::PubSub;
use crate::table::SessionTable;

/// The test harness between the relay and the simulated world: transparent, or with a planted bug.
pub(crate) trait Harness: Clone + Send + Sync + 'static {
    type Publisher: Publisher;
    type Store: Store;

    /// Returns the publisher of the relay.
    fn publisher(&self, pubsub: PubSub) -> Self::Publisher;

    /// Returns the relay's dispatch state.
    fn store(&self, table: SessionTable) -> Self::Store;

    /// Returns the observer of the server's side of the connection.
    fn watcher(&self, judge: Judge) -> Watcher {
        Box::new(move |seen| judge.seen(seen))
    }

    /// Changes the settings of the sessions.
    fn adjust(&self, _settings: &mut SessionSettings) {}

    /// Returns whether the parked keys are read before the slot is taken.
    fn reads_parked_keys_early(&self) -> bool {
        false
    }

    /// Returns whether a start ignores the settled position on record.
    fn disregards_the_record(&self) -> bool {
        false
    }

    /// Called after every connection to the server was cut.
    fn connections_cut(&self) {}

    /// Returns the bug in resets, if there is one.
    fn reset_bug(&self) -> Option<ResetBug> {
        None
    }

    /// Returns the bug in replays to a topic, if there is one.
    fn replay_bug(&self) -> Option<ReplayBug> {
        None
    }
}

/// A harness that uses the world itself. At most its settings, its order or one of its steps are
/// different.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PlainHarness {
    /// No planted bug.
    Faithful,
    /// No planted bug. Each process runs until it has caught up.
    UntilCaughtUp,
    /// No budget is enforced.
    Unbudgeted,
    /// The parked keys are read before the slot is taken.
    ReadsParkedKeysEarly,
    /// A start ignores the settled position on record.
    DisregardsTheRecord,
    /// A reset has this bug.
    Reset(ResetBug),
    /// Replays to a topic have this bug.
    Replay(ReplayBug),
}

impl Harness for PlainHarness {
    type Publisher = PubSub;
    type Store = SessionTable;

    fn publisher(&self, pubsub: PubSub) -> PubSub {
        pubsub
    }

    fn store(&self, table: SessionTable) -> SessionTable {
        table
    }

    fn adjust(&self, settings: &mut SessionSettings) {
        match self {
            Self::UntilCaughtUp => settings.until = Until::CaughtUp,
            Self::Unbudgeted => settings.budget = BudgetLimits::of_bytes(usize::MAX / 2),
            Self::Faithful
            | Self::ReadsParkedKeysEarly
            | Self::DisregardsTheRecord
            | Self::Reset(_)
            | Self::Replay(_) => {}
        }
    }

    fn reads_parked_keys_early(&self) -> bool {
        matches!(self, Self::ReadsParkedKeysEarly)
    }

    fn disregards_the_record(&self) -> bool {
        matches!(self, Self::DisregardsTheRecord)
    }

    fn reset_bug(&self) -> Option<ResetBug> {
        if let Self::Reset(bug) = self { Some(*bug) } else { None }
    }

    fn replay_bug(&self) -> Option<ReplayBug> {
        if let Self::Replay(bug) = self { Some(*bug) } else { None }
    }
}
