//! Intermittent outages, and outages of one topic. No row may die of them.

use walrelay_core::{FailureClass, WalBudgetLimit};

use super::{Action, Plan, Scope, ms};

impl Plan {
    /// An outage with spilled rows, and then an intermittent outage of two minutes.
    pub(crate) fn outage_that_comes_and_goes() -> Self {
        let class = FailureClass::Transient;
        let outage = |time| Action::InjectFailure { scope: Scope::Everything, class, time };
        let mut timeline = vec![(1_000, outage(ms(20_000)))];
        timeline
            .extend((0..20).map(|step| (2_000 + step * 500, Action::Foreign { bytes: 8 << 10 })));
        timeline.extend((0..30).map(|turn| (22_000 + turn * 4_000, outage(ms(3_000)))));
        timeline.extend((0..1_000).map(|tenth| (tenth * 140, Action::Commit { rows: vec![2] })));
        timeline.push((145_000, Action::ExpectNoneDead));
        let mut plan = Self::calm(timeline);
        plan.wal_budget = WalBudgetLimit::Bytes(64 << 10);
        plan.lanes.park_after = ms(30_000);
        plan.lanes.max_attempts = 2;
        plan.per_key_rows = 2;
        plan.rows.keys = 40;
        plan
    }

    /// One topic of two refuses everything for a minute, then fails intermittently for another,
    /// while the other topic flows.
    pub(crate) fn outage_of_one_topic() -> Self {
        let class = FailureClass::Transient;
        let outage = |time| Action::InjectFailure { scope: Scope::Topic, class, time };
        let mut timeline = vec![(1_000, outage(ms(60_000)))];
        timeline.extend((0..15).map(|turn| (62_000 + turn * 4_000, outage(ms(3_000)))));
        timeline.extend((0..1_200).map(|tenth| (tenth * 100, Action::Commit { rows: vec![2] })));
        timeline.push((125_000, Action::ExpectNoneDead));
        let mut plan = Self::calm(timeline);
        plan.lanes.max_attempts = 2;
        plan.per_key_rows = 2;
        plan.rows.topics = 2;
        plan.rows.keys = 10;
        plan
    }
}
