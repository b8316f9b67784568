//! Intermittent outages, and outages of one topic. No row may die of them.

use std::time::Duration;

use walrelay_core::{FailureClass, OnDead, WalBudgetLimit};

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

    /// An outage of 40 s with spilled rows of a few keys, and two rows a second.
    pub(crate) fn outage_with_spilled_keys() -> Self {
        let class = FailureClass::Transient;
        let outage = Action::InjectFailure { scope: Scope::Everything, class, time: ms(40_000) };
        let mut timeline = vec![(1_000, outage)];
        let foreign = |step: u64| (1_500 + step * 100, Action::Foreign { bytes: 8 << 10 });
        timeline.extend((0..395).map(foreign));
        timeline.extend((0..90).map(|half| (half * 500, Action::Commit { rows: vec![4] })));
        timeline.extend((0..4).map(|key| (45_500, Action::ExpectFlow { key })));
        let mut plan = Self::calm(timeline);
        plan.wal_budget = WalBudgetLimit::Bytes(256 << 10);
        plan.lanes.park_after = ms(30_000);
        plan.rows.keys = 4;
        plan
    }

    /// One topic of two refuses every row as invalid for the time of 600 commits, as if its schema
    /// had changed, while the other topic flows.
    pub(crate) fn topic_that_refuses_every_row(seed: u64, commits_apart: Duration) -> Self {
        let class = FailureClass::Row;
        let invalid =
            Action::InjectFailure { scope: Scope::Topic, class, time: 600 * commits_apart };
        let apart = u64::try_from(commits_apart.as_millis()).expect("a time of the simulation");
        let mut timeline = vec![(10 * apart, invalid)];
        let commit = |number| (number * apart, Action::Commit { rows: vec![4] });
        timeline.extend((0..700).map(commit));
        timeline.push((690 * apart, Action::ExpectNoneDead));
        let mut plan = Self::calm(timeline);
        // A topic is known to be at fault after 20 refusals, each within this time of the next.
        plan.lanes.park_after = plan.lanes.park_after.max(20 * commits_apart);
        plan.lanes.on_dead = [OnDead::Continue, OnDead::Hold][usize::from(seed % 2 == 1)];
        plan.rows.topics = 2;
        // With `Hold`, only the first row of a key is tried.
        plan.rows.keys = 30;
        plan.rows.unkeyed_per_mille = 200 * (seed % 3);
        plan
    }

    /// A topic refuses a few rows as invalid and is repaired. Afterwards it has no more rows for a
    /// minute, or one every ten seconds.
    pub(crate) fn topic_that_refuses_a_few_rows(seed: u64) -> Self {
        let class = FailureClass::Row;
        let invalid = Action::InjectFailure { scope: Scope::Topic, class, time: ms(29_000) };
        let commit = |at| (at, Action::Commit { rows: vec![1] });
        // Every key is known to the topic.
        let mut timeline: Vec<_> = (0..40).map(|number| commit(number * 100)).collect();
        timeline.push((5_000, invalid));
        timeline.extend((0..5).map(|number| commit(6_000 + number * 6_000)));
        if !seed.is_multiple_of(3) {
            timeline.extend((0..6).map(|number| commit(36_500 + number * 10_000)));
        }
        timeline.push((118_000, Action::ExpectNoneDead));
        let mut plan = Self::calm(timeline);
        plan.lanes.park_after = ms(30_000);
        plan.lanes.on_dead = [OnDead::Continue, OnDead::Hold][usize::from(seed % 2 == 1)];
        plan.rows.keys = 1 + 4 * (seed % 5);
        plan.rows.unkeyed_per_mille = 200 * (seed % 3);
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
