//! A recovery that dies at each of its steps. The next run finishes the recovery, and no row is
//! lost.

use walrelay_testkit::outbox::Workload;
use walrelay_tests::{DEADLINE, InboxDatabase};

/// The failpoints of a recovery with the command that reaches them: first the commands that create
/// the slot, then those that publish.
const STEPS: [(&str, &[&str]); 5] = [
    ("recovery-begun", &["slot", "recover", "--yes"]),
    ("recovery-created", &["slot", "recover", "--yes"]),
    ("recovery-noted", &["slot", "recover", "--yes"]),
    ("after-reply=3", &["run", "--until-caught-up"]),
    ("recovery-filled", &["run", "--until-caught-up"]),
];

#[tokio::test]
async fn a_recovery_that_dies_at_any_step_is_finished_and_loses_nothing() {
    for (step, command) in STEPS {
        let Some(world) = InboxDatabase::create().await else { return };
        Workload::of_rows(60).insert(world.client()).await.expect("rows");
        world.catch_up().await;
        world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
        let missed = Workload { first_number: 60, ..Workload::of_rows(200) };
        missed.insert(world.client()).await.expect("rows");

        if command[0] == "run" {
            world.succeed(["slot", "recover", "--yes"]).await;
        }
        let dying = world.command(command.iter().copied()).env("WALRELAY_FAILPOINT", step);
        let died = dying.finish(DEADLINE).await;
        assert_eq!(died.code, None, "{step}: {}", died.text);
        let later = Workload { first_number: 260, ..Workload::of_rows(40) };
        later.insert(world.client()).await.expect("rows");
        // Until the recovery is finished, `prune` must not delete the rows that it needs.
        assert_eq!(
            world.run(["prune", "--yes", "--older-than", "1s"]).await.code,
            Some(3),
            "{step}"
        );
        world.catch_up().await;

        let verdict = world.check(&world.committed().await);
        assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{step}: {verdict}");
        let unfinished = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NOT NULL";
        assert_eq!(world.number(unfinished).await, 0, "{step}");
    }
}

#[tokio::test]
async fn rows_that_a_recovery_parked_before_it_died_keep_their_place_in_their_key() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    let missed = Workload { first_number: 30, ..Workload::of_rows(300) };
    missed.insert(world.client()).await.expect("rows");
    world.succeed(["slot", "recover", "--yes"]).await;
    world.pubsub.fault("key=v-1,reject=PERMISSION_DENIED");
    let dying = world.command(["run", "--park-after", "200ms"]);
    let died = dying.env("WALRELAY_FAILPOINT", "after-park").finish(DEADLINE).await;
    assert_eq!(died.code, None, "{}", died.text);
    assert!(world.dispatch_count("retrying").await > 0);

    world.pubsub.heal();
    let _relay = world.start_relay([]).await;
    world.wait_confirmed(DEADLINE).await;
    world.wait_dispatch(DEADLINE, "retrying", 0).await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
}

/// The failpoints of a process that publishes rows of the table and holds the new slot beside it.
const HOLDING_STEPS: [&str; 5] = [
    "after-park",
    "before-confirm=2",
    "final-confirm",
    "recovery-filled",
    "recovery-part-finished",
];

#[tokio::test]
async fn rows_that_a_recovery_records_near_the_wal_budget_survive_a_kill_at_any_step() {
    let mut recorded_count = 0;
    for step in HOLDING_STEPS {
        let Some(world) = InboxDatabase::create().await else { return };
        let mut committed = Workload::of_rows(60).insert(world.client()).await.expect("rows");
        world.catch_up().await;
        world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
        let missed = Workload { first_number: 60, ..Workload::of_rows(200) };
        committed.extend(missed.insert(world.client()).await.expect("rows"));
        world.succeed(["slot", "recover", "--yes"]).await;
        let later = Workload { first_number: 260, ..Workload::of_rows(40) };
        committed.extend(later.insert(world.client()).await.expect("rows"));
        let foreign = "SELECT pg_logical_emit_message(false, 'foreign', repeat('x', 4 << 20))";
        world.execute(&format!("DELETE FROM app_outbox WHERE version >= 260; {foreign}")).await;

        let options = ["run", "--until-caught-up", "--wal-budget", "1MiB", "--rate", "50"];
        let dying = world.command(options).env("WALRELAY_FAILPOINT", step);
        let died = dying.finish(DEADLINE).await;
        assert_eq!(died.code, None, "{step}: {}", died.text);
        let recorded = "SELECT count(*) FROM app_outbox_dispatch WHERE error_code = 'SPILLED'";
        recorded_count += world.number(recorded).await;
        world.catch_up().await;

        let verdict = world.check(&committed);
        assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{step}: {verdict}");
        let unfinished = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NOT NULL";
        assert_eq!(world.number(unfinished).await, 0, "{step}");
    }
    assert!(recorded_count > 0, "no kill was behind a recorded row");
}

/// The failpoints of a first start on a table with existing rows.
const FIRST_STEPS: [(&str, &[&str]); 5] = [
    ("recovery-begun", &["init", "--backfill"]),
    ("recovery-created", &["init", "--backfill"]),
    ("recovery-noted", &["init", "--backfill"]),
    ("after-reply=3", &["run", "--until-caught-up"]),
    ("recovery-filled", &["run", "--until-caught-up"]),
];

#[tokio::test]
async fn a_first_start_over_a_table_with_rows_that_dies_at_any_step_is_finished_and_loses_nothing()
{
    for (step, command) in FIRST_STEPS {
        let Some(world) = InboxDatabase::create().await else { return };
        world.succeed(["slot", "drop", "--yes"]).await;
        Workload::of_rows(200).insert(world.client()).await.expect("rows");
        if command[0] == "run" {
            world.succeed(["init", "--backfill"]).await;
        }
        let dying = world.command(command.iter().copied()).env("WALRELAY_FAILPOINT", step);
        let died = dying.finish(DEADLINE).await;
        assert_eq!(died.code, None, "{step}: {}", died.text);
        let later = Workload { first_number: 200, ..Workload::of_rows(40) };
        later.insert(world.client()).await.expect("rows");
        assert_eq!(
            world.run(["prune", "--yes", "--older-than", "1s"]).await.code,
            Some(3),
            "{step}"
        );
        world.catch_up().await;

        let verdict = world.check(&world.committed().await);
        assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{step}: {verdict}");
        let unfinished = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NOT NULL";
        assert_eq!(world.number(unfinished).await, 0, "{step}");
    }
}
