//! The WAL that is retained for the relay, as a reason and as a part of `/status`.

use walrelay_core::{SpillMode, WalRetentionLimit};
use walrelay_outbox_store::{Reason, ReasonKind};

use crate::observe::report::WalBudgetReport;

/// The WAL that is retained for the relay, and the state of spilling.
#[derive(Debug, Clone, Copy)]
pub struct RetainedWalStatus {
    /// The bytes of WAL between the settled position and the end of WAL.
    pub held: u64,
    /// The WAL budget in bytes.
    pub budget: u64,
    /// The amount of WAL that the server retains for a slot.
    pub bound: WalRetentionLimit,
    pub spill: SpillMode,
    /// Whether spilling is paused because it writes more WAL than it releases.
    pub is_futile: bool,
}

impl RetainedWalStatus {
    pub(super) fn reason_not_ready(&self) -> Option<Reason> {
        let Self { held, budget, is_futile, .. } = *self;
        (held > budget).then(|| {
            let why = match is_futile {
                true => ", and most of it are outbox rows, which need more space in dispatch state",
                false => "",
            };
            let text = format!("{held} bytes of WAL are retained");
            let text = format!("{text}, more than the WAL budget ({budget} bytes){why}");
            Reason::new(ReasonKind::WalBudget, text)
        })
    }

    /// Returns the reason without the growing number.
    pub(super) fn short_reason(&self) -> Option<Reason> {
        let Self { held, budget, .. } = *self;
        let text = || format!("more WAL is retained than the WAL budget ({budget} bytes)");
        (held > budget).then(|| Reason::new(ReasonKind::WalBudget, text()))
    }

    pub(super) fn report(&self) -> WalBudgetReport {
        WalBudgetReport {
            retained_bytes: self.held,
            budget_bytes: self.budget,
            limit_bytes: self.bound.bytes(),
            spilling: self.spill != SpillMode::Off,
            futile: self.is_futile,
        }
    }
}
