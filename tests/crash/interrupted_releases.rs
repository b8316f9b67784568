//! A release that dies at each of its steps. The next run finishes it, or
//! the slot continues.

use walrelay_testkit::outbox::Workload;
use walrelay_tests::{DEADLINE, InboxDatabase};

/// A step of the release.
#[derive(Clone, Copy)]
struct Step {
    failpoint: &'static str,
    /// Whether the slot still exists there.
    has_slot: bool,
}

const STEPS: [Step; 4] = [
    Step { failpoint: "release-begun", has_slot: true },
    Step { failpoint: "release-drained", has_slot: true },
    Step { failpoint: "release-unanchored", has_slot: true },
    Step { failpoint: "release-dropped", has_slot: false },
];

/// The commands that can finish or cancel the release.
const FINISHERS: [&[&str]; 2] = [&["slot", "release", "--yes"], &["slot", "recover", "--yes"]];

#[tokio::test]
async fn a_release_that_dies_at_any_step_is_finished_or_cancelled_and_loses_nothing() {
    let cases = STEPS.iter().flat_map(|step| FINISHERS.map(|finisher| (*step, finisher)));
    for (step, finisher) in cases {
        let Some(world) = InboxDatabase::create().await else { return };
        die_and_finish(&world, step, finisher).await;
    }
}

async fn die_and_finish(world: &InboxDatabase, step: Step, finisher: &[&str]) {
    let Step { failpoint: step, has_slot } = step;
    world.succeed(["anchor", "create", "a"]).await;
    Workload::of_rows(60).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    let more = Workload { first_number: 60, ..Workload::of_rows(30) };
    more.insert(world.client()).await.expect("rows");
    let dying = world.command(["slot", "release", "--yes"]).env("WALRELAY_FAILPOINT", step);
    let died = dying.finish(DEADLINE).await;
    assert_eq!(died.code, None, "{step}: {}", died.text);
    let slot =
        format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}'", world.name());
    assert_eq!(world.number(&slot).await, i64::from(has_slot), "{step}");

    world.succeed(finisher.iter().copied()).await;
    let last = Workload { first_number: 90, ..Workload::of_rows(20) };
    last.insert(world.client()).await.expect("rows");
    if finisher == FINISHERS[0] {
        assert_eq!(world.number(&slot).await, 0, "{step}");
        world.succeed(["slot", "recover", "--yes"]).await;
    }
    world.catch_up().await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{step}: {verdict}");
    let unfinished = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NOT NULL";
    assert_eq!(world.number(unfinished).await, 0, "{step}");
}
