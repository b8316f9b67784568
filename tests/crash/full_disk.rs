//! A dispatch table that cannot be written, as on a full disk.

use std::time::Duration;

use walrelay_testkit::checker;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

use crate::campaign::settle_and_check;

/// Makes every insert into dispatch state fail.
const FILL_DISK: &str = "
    CREATE FUNCTION disk_is_full() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full'; END $$;
    CREATE TRIGGER full_disk BEFORE INSERT ON app_outbox_dispatch
      FOR EACH ROW EXECUTE FUNCTION disk_is_full()";

/// Makes inserts succeed again.
const EMPTY_DISK: &str = "DROP TRIGGER full_disk ON app_outbox_dispatch";

#[tokio::test]
async fn while_dispatch_state_cannot_be_written_nothing_is_confirmed_past_what_belongs_there() {
    let Some(world) = InboxDatabase::create().await else { return };
    let id = "00000000-0000-4000-8000-00000000dead";
    world.pubsub.fault(&format!("event_id={id},reject=INVALID_ARGUMENT"));
    world.execute(FILL_DISK).await;
    let relay = world.start_relay([]).await;
    let before = world.wal_end().await;
    world
        .execute(&format!(
            "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('{id}', 'video', 'v-0', 'test.poison', 0, '{{\"n\": 0}}')"
        ))
        .await;
    let after = world.wal_end().await;
    let rest = Workload { first_number: 1, ..Workload::of_rows(100) };
    rest.insert(world.client()).await.unwrap();

    // Other keys continue, and the slot stays before the row that is neither stored nor recorded.
    world.pubsub.wait_stored(DEADLINE, 100).await;
    relay.wait_for_line(DEADLINE, "no space left").await;
    let confirmed = world.confirmed_flush().await;
    assert!(confirmed < after, "confirmed {confirmed:X} past a row that ended at {after:X}");
    assert!(before <= after);

    world.execute(EMPTY_DISK).await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    world.wait_confirmed(DEADLINE).await;
    world.pubsub.heal();
    world.succeed(["dispatch", "retry", id]).await;
    world.wait_dispatch(DEADLINE, "published", 1).await;
    let verdict = checker::check(&world.committed().await, &world.pubsub.stored());
    // The dead row was stored after later rows of its key, so the verdict reports a reordering.
    assert!(verdict.lost.is_empty() && verdict.altered.is_empty(), "{verdict}");
}

#[tokio::test]
async fn while_rows_cannot_be_parked_everything_else_flows_and_the_order_holds() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.execute(FILL_DISK).await;
    let relay = world.start_relay(["--park-after", "300ms"]).await;
    world.pubsub.fault("key=v-3,reject=UNAVAILABLE");
    let producer = Producer::start(world.url(), Duration::from_millis(20));
    relay.wait_for_line(DEADLINE, "no space left").await;
    let goal = world.pubsub.stored_count() + 200;
    world.pubsub.wait_stored(DEADLINE, goal).await;

    world.execute(EMPTY_DISK).await;
    wait_until(DEADLINE, "rows of the failing key to be parked", async || {
        (world.dispatch_count("retrying").await > 0).then_some(())
    })
    .await;
    world.pubsub.heal();
    settle_and_check(&world, producer).await.assert_clean();
}
