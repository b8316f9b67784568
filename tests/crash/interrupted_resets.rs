//! A reset that dies at each of its steps. The next command finishes the reset, and no row is lost.

use walrelay_testkit::outbox::Workload;
use walrelay_tests::{DEADLINE, InboxDatabase, topic};

/// The failpoints of a reset, in order.
const STEPS: [&str; 5] =
    ["reset-begun", "reset-dropped", "reset-copied", "reset-marked", "reset-finished"];

/// The commands that can finish the reset.
const FINISHERS: [&[&str]; 3] =
    [&["run", "--until-caught-up"], &["slot", "reset", "--yes", "--to-anchor", "a"], &["init"]];

/// Returns the event ids of a key in the order of storing.
fn stored(world: &InboxDatabase, key: &str) -> Vec<String> {
    let messages = world.pubsub.emulator().published(&topic("video.events"));
    let of_key = messages.iter().filter(|message| message.key() == key);
    of_key.map(|message| message.attribute("event_id").unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn a_reset_that_dies_at_any_step_is_finished_by_the_relay_the_command_or_init() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["anchor", "create", "a"]).await;
    let committed = Workload::of_rows(60).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    let mut times = 1;
    for (index, step) in STEPS.into_iter().enumerate() {
        let dying = world.command(["slot", "reset", "--yes", "--to-anchor", "a"]);
        let died = dying.env("WALRELAY_FAILPOINT", step).finish(DEADLINE).await;
        assert_eq!(died.code, None, "{step}: {}", died.text);
        if step != "reset-finished" {
            let unfinished = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NOT NULL";
            assert_eq!(world.number(unfinished).await, 1, "{step}");
            // The slot does not count as lost, and no other operation is accepted.
            assert_eq!(world.run(["check"]).await.code, Some(0), "{step}");
            let refused = world.run(["anchor", "drop", "--yes", "a"]).await;
            assert_eq!(refused.code, Some(3), "{step}: {}", refused.text);
            assert_ne!(world.run(["status"]).await.code, Some(5), "{step}");
        }
        if step != "reset-finished" {
            world.succeed(FINISHERS[index % FINISHERS.len()].iter().copied()).await;
        }
        world.catch_up().await;
        times += 1;
        for key in ["v-0", "v-1", "v-2"] {
            let of_key = committed.iter().filter(|row| row.key == key);
            let once: Vec<String> = of_key.map(|row| row.event_id.clone()).collect();
            assert_eq!(stored(&world, key), vec![once; times].concat(), "{step} {key}");
        }
        let unfinished = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NOT NULL";
        assert_eq!(world.number(unfinished).await, 0, "{step}");
    }
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
    assert_eq!(world.number(slots).await, 2, "the slot and the anchor");
}
