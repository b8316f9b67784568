//! What is put between the relay and the world: nothing, or a planted bug.

use walrelay_core::BudgetLimits;
use walrelay_outbox_store::Store;
use walrelay_relay::lifecycle::session::SessionSettings;
use walrelay_relay::settings::Until;
use walrelay_relay::stream::seams::Publisher;
use walrelay_testkit::walsender::Watcher;

use crate::bugs::{ReplayBug, ResetBug};
use crate::judge::Judge;
use crate::pubsub::PubSub;
use crate::table::SessionTable;

/// What is put between the relay and the world: nothing, or a planted bug.
pub(crate) trait Fitting: Clone + Send + Sync + 'static {
    type Publisher: Publisher;
    type Store: Store;

    /// What the relay publishes to.
    fn publisher(&self, pubsub: PubSub) -> Self::Publisher;

    /// What the relay keeps its dispatch state in.
    fn store(&self, table: SessionTable) -> Self::Store;

    /// What the server's side of the connection is heard through.
    fn watcher(&self, judge: Judge) -> Watcher {
        Box::new(move |seen| judge.seen(seen))
    }

    /// The settings that sessions are built from.
    fn adjust(&self, _settings: &mut SessionSettings) {}

    /// Whether the parked keys are read before the slot is taken.
    fn reads_parked_keys_early(&self) -> bool {
        false
    }

    /// Whether a start disregards how far the slot is on record as settled.
    fn disregards_the_record(&self) -> bool {
        false
    }

    /// Every connection to the server was cut.
    fn connections_cut(&self) {}

    /// What is wrong with how a reset is carried out.
    fn reset_bug(&self) -> Option<ResetBug> {
        None
    }

    /// What is wrong with replays to a topic.
    fn replay_bug(&self) -> Option<ReplayBug> {
        None
    }
}

/// What talks to the world itself: its settings, its order or one of its steps is another, or
/// nothing is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Plain {
    /// No planted bug.
    Faithful,
    /// No planted bug, and each process runs until it has caught up.
    UntilCaughtUp,
    /// Nobody keeps to the budget.
    Unbudgeted,
    /// The parked keys are read first, and the slot is taken then.
    ReadsParkedKeysEarly,
    /// A start disregards how far the slot is on record as settled.
    DisregardsTheRecord,
    /// A reset is carried out wrongly.
    Reset(ResetBug),
    /// Replays to a topic go wrong.
    Replay(ReplayBug),
}

impl Fitting for Plain {
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
