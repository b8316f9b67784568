//! A change of the shard count that dies at each of its steps. The next run finishes or cancels the
//! change.

use walrelay_testkit::outbox::Workload;
use walrelay_tests::{DEADLINE, InboxDatabase};

/// The failpoints in order, and whether the change can be cancelled there.
const STEPS: [(&str, bool); 11] = [
    ("reshard-recorded", true),
    ("reshard-made-one", true),
    ("reshard-made", true),
    ("reshard-held", true),
    ("reshard-chosen", true),
    ("reshard-drained", true),
    ("reshard-switched", false),
    ("reshard-dropped", false),
    ("reshard-removed", false),
    ("reshard-dropped=2", false),
    ("reshard-removed=2", false),
];

#[tokio::test]
async fn a_change_that_dies_at_any_step_is_finished_by_the_same_command_and_loses_nothing() {
    for (step, _) in STEPS {
        let Some(world) = InboxDatabase::create_empty().await else { return };
        die(&world, step).await;
        world.succeed(["reshard", "--yes", "--shards", "4"]).await;
        assert_goes_on(&world, step, 4).await;
    }
}

#[tokio::test]
async fn a_slot_that_is_lost_before_the_switch_is_recovered_and_the_same_command_goes_on() {
    for step in ["reshard-made", "reshard-held", "reshard-chosen", "reshard-drained"] {
        let Some(world) = InboxDatabase::create_empty().await else { return };
        die(&world, step).await;
        world.execute(&format!("SELECT pg_drop_replication_slot('{}_0_of_2')", world.name())).await;
        let refused = world.run(["reshard", "--yes", "--shards", "4"]).await;
        assert_eq!(refused.code, Some(5), "{step}: {}", refused.text);
        assert!(
            refused.text.contains("walrelay slot recover --shard 0/2"),
            "{step}: {}",
            refused.text
        );
        world.succeed(["slot", "recover", "--yes", "--shard", "0/2"]).await;
        world.succeed(["run", "--until-caught-up", "--shard", "0/2"]).await;
        world.succeed(["reshard", "--yes", "--shards", "4"]).await;
        assert_goes_on(&world, step, 4).await;
    }
}

#[tokio::test]
async fn before_the_switch_it_is_called_off_by_the_number_that_there_was_and_not_after_it() {
    for (step, may_be_called_off) in STEPS {
        // At this step the old shard count is gone, so the command would start a new change.
        if step == "reshard-removed=2" {
            continue;
        }
        let Some(world) = InboxDatabase::create_empty().await else { return };
        die(&world, step).await;
        let other = world.run(["reshard", "--yes", "--shards", "1"]).await;
        assert_eq!(other.code, Some(2), "{step}: {}", other.text);
        let called_off = world.run(["reshard", "--yes", "--shards", "2"]).await;
        let count = match may_be_called_off {
            true => {
                assert_eq!(called_off.code, Some(0), "{step}: {}", called_off.text);
                2
            }
            false => {
                assert_eq!(called_off.code, Some(2), "{step}: {}", called_off.text);
                world.succeed(["reshard", "--yes", "--shards", "4"]).await;
                4
            }
        };
        assert_goes_on(&world, step, count).await;
    }
}

#[tokio::test]
async fn calling_it_off_may_die_too() {
    for step in ["reshard-released", "reshard-dropped", "reshard-removed=3"] {
        let Some(world) = InboxDatabase::create_empty().await else { return };
        die(&world, "reshard-drained").await;
        let dying =
            world.command(["reshard", "--yes", "--shards", "2"]).env("WALRELAY_FAILPOINT", step);
        let died = dying.finish(DEADLINE).await;
        assert_eq!(died.code, None, "{step}: {}", died.text);
        world.succeed(["reshard", "--yes", "--shards", "2"]).await;
        assert_goes_on(&world, step, 2).await;
    }
}

/// Changes 2 shards to 4 and dies at `step`. Some rows are published before, some are pending, and
/// some are inserted afterwards.
async fn die(world: &InboxDatabase, step: &str) {
    world.succeed(["init", "--shards", "2"]).await;
    let workload = Workload { aggregates_count: 12, ..Workload::of_rows(60) };
    workload.insert(world.client()).await.expect("rows");
    catch_up(world, 2).await;
    let more = Workload { first_number: 60, ..workload.clone() };
    more.insert(world.client()).await.expect("rows");
    let dying =
        world.command(["reshard", "--yes", "--shards", "4"]).env("WALRELAY_FAILPOINT", step);
    let died = dying.finish(DEADLINE).await;
    assert_eq!(died.code, None, "{step}: {}", died.text);
    let last = Workload { first_number: 120, ..workload };
    last.insert(world.client()).await.expect("rows");
    // For both shard counts, `check` reports no lost slot.
    for shard in ["0/2", "0/4"] {
        let checked = world.run(["check", "--shard", shard]).await;
        assert_ne!(checked.code, Some(5), "{step}: {}", checked.text);
    }
}

async fn catch_up(world: &InboxDatabase, count: u32) {
    for index in 0..count {
        let shard = format!("{index}/{count}");
        world.succeed(["run", "--until-caught-up", "--shard", &shard]).await;
    }
}

async fn assert_goes_on(world: &InboxDatabase, step: &str, count: u32) {
    catch_up(world, count).await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{step}: {verdict}");
    let unfinished = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NOT NULL";
    assert_eq!(world.number(unfinished).await, 0, "{step}");
    for what in [
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()",
        "SELECT count(*) FROM pg_publication",
        "SELECT count(*) FROM app_outbox_relay",
    ] {
        assert_eq!(world.number(what).await, i64::from(count), "{step}: {what}");
    }
}
