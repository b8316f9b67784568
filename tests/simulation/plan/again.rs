//! Plans with rows that are republished on purpose: resets, and replays to a separate topic.

use walrelay_core::FailureClass;

use super::{Action, Plan, ms};

impl Plan {
    /// Resets under traffic with keys that are parked at times. All processes end after a step of
    /// each reset.
    pub(crate) fn resets_under_traffic(dies_after: Option<u64>) -> Self {
        let class = FailureClass::Operator;
        let commits = (0..120).map(|half| (half * 500, Action::Commit { rows: vec![4, 2] }));
        let sick = (0..12).map(|at| {
            let key = Some(1 + at % 3);
            (2_100 + at * 4_000, Action::FailingBurst { key, rows: 5, class, time: ms(3_000) })
        });
        let resets = [(9_900, 0), (24_300, 500), (41_700, 900)]
            .map(|(at, per_mille)| (at, Action::Reset { per_mille, dies_after }));
        let crashes = (0..5).map(|at| (13_700 + at * 9_000, Action::ProcessCrash));
        let timeline = commits.chain(sick).chain(resets).chain(crashes);
        let mut plan = Self::calm(timeline);
        plan.rows.keys = 5;
        plan.pubsub.latency_max = ms(120);
        plan.table.latency_max = ms(50);
        plan
    }

    /// Replays to separate topics beside traffic. The replays are killed and stopped repeatedly,
    /// while Pub/Sub refuses some messages.
    pub(crate) fn topic_replays_under_traffic() -> Self {
        let commits = (0..120).map(|half| (half * 500, Action::Commit { rows: vec![9, 6] }));
        let replays = (0..4).map(|at| {
            (6_100 + at * 14_000, Action::ReplayToTopic { first: at * 100, last: 1_000 })
        });
        let kills = (0..60).map(|at| match at % 4 {
            3 => (6_300 + at * 850, Action::StopReplay),
            _ => (6_300 + at * 850, Action::KillReplay),
        });
        let crashes = (0..6).map(|at| (7_350 + at * 8_500, Action::ProcessCrash));
        let timeline = commits.chain(replays).chain(kills).chain(crashes);
        let mut plan = Self::calm(timeline);
        plan.rows.keys = 4;
        plan.rows.poison_per_mille = 20;
        plan.lanes.batch_messages = 4;
        plan.window.max = 8;
        plan.pubsub.latency_max = ms(150);
        plan.pubsub.transient = 80;
        plan.pubsub.lost_reply = 30;
        plan.table.latency_max = ms(50);
        plan
    }
}
