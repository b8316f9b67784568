//! Parked keys after an outage, with the due times that dispatch state stores.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use walrelay_core::{ClaimAnswer, LanePolicy, Outcome, Topic};

use super::bench::{LaneHarness, policy};

const SECOND: Duration = Duration::from_secs(1);

fn nothing(held_for: Option<Duration>) -> ClaimAnswer {
    ClaimAnswer { rows: Vec::new(), held_for }
}

/// Gives the row of each claimed key that is due.
fn answer_claims(bench: &mut LaneHarness, due: &BTreeMap<String, Instant>) {
    for key in bench.claims() {
        let at = due[&*key.ordering_key];
        if at <= bench.now {
            bench.answer(&key, &[(7, 0)]);
        } else {
            let nothing = nothing(Some(at - bench.now));
            bench.lanes.claimed(key.lane, nothing, bench.now);
        }
    }
}

/// Stores when each row is due again. Returns the number of those that were published.
fn record(bench: &mut LaneHarness, due: &mut BTreeMap<String, Instant>) -> u32 {
    let mut delivered = 0;
    for row in bench.finished() {
        let after = match row.outcome {
            Outcome::Again { after, .. } => after,
            Outcome::Published { .. } => {
                delivered += 1;
                Some(SECOND * 99)
            }
            Outcome::Dead { .. } => None,
        };
        if let Some(after) = after {
            due.insert(row.message.ordering_key().to_owned(), bench.now + after);
        }
    }
    delivered
}

#[test]
fn after_an_outage_every_parked_key_is_delivered_within_two_seconds() {
    const TICK: Duration = Duration::from_millis(100);
    for (keys, seconds) in [(1, 40), (4, 40), (4, 5), (30, 90)] {
        let mut bench = LaneHarness::with(LanePolicy { park_after: SECOND * 30, ..policy() });
        bench.succeed("orders", "well");
        let names: Vec<String> = (0..keys).map(|number| format!("k{number}")).collect();
        // The time in dispatch state at which the row of each key is due.
        let mut due: BTreeMap<String, Instant> = BTreeMap::new();
        for key in &names {
            bench.lanes.load_spilled(&Topic::from("orders"), key, Some(SECOND), bench.now);
            due.insert(key.clone(), bench.now + SECOND);
        }
        let end = bench.now + SECOND * seconds;
        let mut delivered = 0;
        while bench.now < end + SECOND * 2 {
            let is_up = bench.now >= end;
            let answer = if is_up { LaneHarness::store } else { LaneHarness::refuse };
            bench.pass(TICK);
            answer_claims(&mut bench, &due);
            bench.batches().into_iter().for_each(|batch| answer(&mut bench, batch));
            delivered += record(&mut bench, &mut due);
            if is_up && delivered == 0 {
                // A live key succeeds, as it does when rows flow again.
                bench.succeed("orders", "well");
            }
        }
        assert_eq!(delivered, keys, "{keys} keys, {seconds} s");
    }
}
