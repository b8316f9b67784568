//! No event of a key is applied behind a waiting or dead event, and the key drains in order.

use super::messages::event;
use super::world::{BOTH, EACH, InboxDatabase, SET, apply_sql, world};

#[tokio::test]
async fn what_follows_a_failed_event_is_stored_behind_it_and_drains_in_order() {
    let Some(world) = world().await else { return };
    for (n, handler) in BOTH.into_iter().enumerate() {
        let key = format!("k{n}");
        let id = |number: u32| format!("{key}-{number}");
        let one = |number: u32| event(number, &key).id(&id(number));
        let batch = [one(1), one(2).failing("P0001"), one(3)];
        assert_eq!(world.apply(handler, &batch).await, ["done", "retrying P0001", "retrying"]);
        // A later batch with a redelivered tail.
        let tail = [one(2).failing("P0001"), one(3), one(4)];
        assert_eq!(world.apply(handler, &tail).await, ["duplicate", "duplicate", "retrying"]);
        assert_eq!(world.applied(&key).await, [id(1)]);

        // The event fails again, and the events behind it stay there.
        assert_eq!(
            world.redeliver(handler).await,
            [
                format!("{} retrying P0001", id(2)),
                format!("{} retrying", id(3)),
                format!("{} retrying", id(4))
            ]
        );
        world.run(&fix_message_sql(&id(2))).await;
        assert_eq!(
            world.redeliver(handler).await,
            [format!("{} done", id(2)), format!("{} done", id(3)), format!("{} done", id(4))]
        );

        assert_eq!(world.applied(&key).await, [id(1), id(2), id(3), id(4)]);
        assert_eq!(world.key(&key).await, "0/4/0 4");
        assert_eq!(world.apply(handler, &[one(5)]).await, ["done"]);
    }
    let left = "SELECT count(*)::text FROM app_inbox WHERE message IS NOT NULL OR next_attempt_at IS NOT NULL";
    assert_eq!(world.text(left).await, "0", "a row that is done keeps no message");
}

/// Returns SQL that fixes a stored message, as an operator's edit does.
fn fix_message_sql(event_id: &str) -> String {
    format!(
        "UPDATE app_inbox SET message = convert_to((convert_from(message, 'UTF8')::jsonb
            || jsonb_build_object('data', encode('{{\"amount\": 100}}', 'base64')))::text, 'UTF8')
          WHERE event_id = '{event_id}'"
    )
}

#[tokio::test]
async fn an_event_is_only_tried_again_when_its_time_has_come() {
    let Some(world) = world().await else { return };
    world.apply(EACH, &[event(1, "a").failing("P0001"), event(2, "").failing("P0001")]).await;
    world.run("UPDATE app_inbox SET next_attempt_at = now() + interval '4 minutes'").await;
    let now = "SELECT count(*)::text FROM app_inbox_redeliver('c', 1, 'add(app_inbox_event)')";
    assert_eq!(world.text(now).await, "0");
    world.run("UPDATE app_inbox SET next_attempt_at = now() WHERE event_id = 'e2'").await;
    assert_eq!(world.text(now).await, "1");
}

#[tokio::test]
async fn a_dead_event_holds_its_key_until_it_is_retried_or_discarded() {
    const ONCE: &str = ", max_attempts => 1";
    let Some(world) = world().await else { return };
    let batch = [event(1, "a").failing("P0001"), event(2, "a"), event(3, "b")];
    assert_eq!(world.apply_with(SET, &batch, ONCE).await, ["dead P0001", "retrying", "done"]);
    assert_eq!(world.apply_with(SET, &[event(4, "a")], ONCE).await, ["retrying"]);
    assert!(world.redeliver(SET).await.is_empty());
    assert_eq!(world.key("a").await, "- - held by e1");

    // The steps of `inbox discard`: the key's lock, the row, then the next head.
    world
        .run(
            "BEGIN;
             SELECT FROM app_inbox_key WHERE ordering_key = 'a' FOR NO KEY UPDATE;
             UPDATE app_inbox SET status = 'discarded', next_attempt_at = NULL, message = NULL, done_at = now()
              WHERE event_id = 'e1';
             SELECT app_inbox_heads('c', 1, ARRAY['a']);
             COMMIT",
        )
        .await;
    assert_eq!(world.redeliver(SET).await, ["e2 done", "e4 done"]);
    assert_eq!(world.key("a").await, "0/4/0 4");
}

#[tokio::test]
async fn with_continue_a_dead_event_leaves_its_key_flowing() {
    const GO_ON: &str = ", on_dead => 'continue', max_attempts => 2";
    let Some(world) = world().await else { return };
    let batch = [event(1, "a").failing("P0001"), event(2, "a")];
    assert_eq!(world.apply_with(EACH, &batch, GO_ON).await, ["retrying P0001", "retrying"]);
    assert_eq!(world.redeliver_with(EACH, GO_ON).await, ["e1 dead P0001", "e2 retrying"]);
    assert_eq!(world.redeliver_with(EACH, GO_ON).await, ["e2 done"]);

    assert_eq!(world.key("a").await, "0/2/0 2");
    assert_eq!(world.apply_with(EACH, &[event(3, "a")], GO_ON).await, ["done"]);
    assert_eq!(world.inbox().await, ["e1 dead P0001", "e2 done", "e3 done"]);
}

#[tokio::test]
async fn an_event_that_comes_late_goes_before_what_holds_its_key() {
    let Some(world) = world().await else { return };
    for handler in BOTH {
        world.run("TRUNCATE app_inbox, app_inbox_key, balance, applied").await;
        // 5 overtook 3 and 4 and fails without them. 6 waits behind it.
        world.apply(handler, &[event(5, "a").failing("P0001"), event(6, "a")]).await;
        assert_eq!(
            world.apply(handler, &[event(3, "a"), event(4, "a")]).await,
            ["retrying", "retrying"]
        );
        assert_eq!(world.key("a").await, "- - held by e3");

        // 3 and 4 are due at once, and the events that waited for them are tried right after
        // them.
        world.run(&fix_message_sql("e5")).await;
        let due = format!(
            "SELECT concat_ws(' ', event_id, result) FROM app_inbox_redeliver('c', 1, '{handler}')"
        );
        assert_eq!(world.lines(&due).await, ["e3 done", "e4 done", "e5 done", "e6 done"]);
        assert_eq!(world.applied("a").await, ["e3", "e4", "e5", "e6"]);
    }
}

#[tokio::test]
async fn without_positions_a_key_drains_in_the_order_of_arrival() {
    let Some(world) = world().await else { return };
    // Ids in reverse order of arrival, because rows are recorded in the order of ids.
    let one = |id: &str| event(1, "a").id(id).version(None).without_position();
    assert_eq!(
        world.apply(EACH, &[one("z").failing("P0001"), one("y"), one("x")]).await,
        ["retrying P0001", "retrying", "retrying"]
    );
    assert_eq!(world.apply(SET, &[one("w"), one("v"), one("u")]).await, ["retrying"; 3]);

    world.run(&fix_message_sql("z")).await;
    world.redeliver(SET).await;
    assert_eq!(world.applied("a").await, ["z", "y", "x", "w", "v", "u"]);
}

#[tokio::test]
async fn not_parked_what_follows_is_left_to_the_subscription() {
    const STAY: &str = ", park => false";
    let Some(world) = world().await else { return };
    let batch = [event(1, "a").failing("P0001"), event(2, "a"), event(3, "b")];
    for handler in BOTH {
        // The failing event is durable at its first failure. Only the event behind it stays in
        // the subscription.
        world.run("TRUNCATE app_inbox, app_inbox_key").await;
        assert_eq!(
            world.apply_with(handler, &batch, STAY).await,
            ["retrying P0001", "deferred", "done"]
        );
        assert_eq!(world.inbox().await, ["e1 retrying P0001", "e3 done"]);
        assert_eq!(
            world.apply_with(handler, &batch, STAY).await,
            ["duplicate", "deferred", "duplicate"]
        );
    }
    world.run(&fix_message_sql("e1")).await;
    world.redeliver(EACH).await;
    assert_eq!(world.apply_with(EACH, &batch[1..], STAY).await, ["done", "duplicate"]);
}

#[tokio::test]
async fn a_key_that_somebody_else_has_is_deferred_and_stalls_nobody() {
    let Some(world) = world().await else { return };
    world.apply(EACH, &[event(1, "a")]).await;
    let other = world.session().await;
    other.run("BEGIN").await;
    other.query(&apply_sql(EACH, &[event(2, "a")], ""), &[]).await.unwrap();

    let batch = [event(2, "a"), event(3, "b"), event(4, "a"), event(5, "")];
    assert_eq!(world.apply(SET, &batch).await, ["deferred", "done", "deferred", "done"]);
    assert!(world.redeliver(SET).await.is_empty());

    other.run("COMMIT").await;
    assert_eq!(world.apply(SET, &batch).await, ["duplicate", "duplicate", "done", "duplicate"]);
    assert_eq!(world.balance("a").await, "3 7");
}

#[tokio::test]
async fn a_key_that_cannot_move_does_not_keep_others_from_their_turn() {
    let Some(world) = world().await else { return };
    // In each of 30 keys an event waits for its time. Then an earlier event arrives and dies
    // before it.
    for n in 0..30 {
        let key = format!("k{n}");
        let later = event(50, &key).id(&format!("{key}-50")).failing("P0001");
        let earlier = event(40, &key).id(&format!("{key}-40")).failing("P0001");
        world.apply(EACH, &[later, earlier]).await;
    }
    world.redeliver_with(EACH, ", max_attempts => 1").await;
    let held = "SELECT count(*)::text FROM app_inbox_key WHERE held_by LIKE '%-40'";
    assert_eq!(world.text(held).await, "30");
    world.apply(EACH, &[event(60, "free").failing("P0001")]).await;

    // Capacity for one key only, which the 30 stopped keys must not use up.
    assert_eq!(world.redeliver_with(EACH, ", batch => 1").await, ["e60 retrying P0001"]);
}

#[tokio::test]
async fn a_long_key_drains_batch_by_batch() {
    let Some(world) = world().await else { return };
    let mut batch = vec![event(1, "a").failing("P0001")];
    batch.extend((2..=25).map(|n| event(n, "a")));
    world.apply(SET, &batch).await;
    world.run(&fix_message_sql("e1")).await;

    assert_eq!(world.redeliver_with(SET, ", batch => 10").await.len(), 10);
    assert_eq!(world.key("a").await, "0/A/0 10 held by e11");
    // Events that arrive meanwhile stay behind.
    assert_eq!(world.apply(SET, &[event(26, "a")]).await, ["retrying"]);
    for expected in [10, 6, 0] {
        assert_eq!(world.redeliver_with(SET, ", batch => 10").await.len(), expected);
    }
    assert_eq!(world.applied("a").await.len(), 26);
    assert_eq!(world.key("a").await, "0/1A/0 26");
}

/// Does the update of `walrelay inbox retry` for an event that waits for a version.
async fn release(world: &InboxDatabase, event_id: &str) {
    world
        .run(&format!(
            "BEGIN; SELECT app_inbox_lock('c', 1, ARRAY['a'], true);
             UPDATE app_inbox SET error_code = 'GAP_ACCEPTED', next_attempt_at = CASE WHEN next_attempt_at < 'infinity' THEN now() END,
                    status = 'retrying' WHERE event_id = '{event_id}';
             SELECT app_inbox_heads('c', 1, ARRAY['a']); COMMIT"
        ))
        .await;
}

/// Options that make an event wait for the version before it.
const HOLD: &str = ", on_gap => 'hold'";

#[tokio::test]
async fn an_event_released_from_a_gap_waits_for_no_version_also_after_its_handler_has_failed() {
    let Some(world) = world().await else { return };
    for handler in BOTH {
        world.run("TRUNCATE app_inbox, app_inbox_key, balance, applied").await;
        let batch = [event(1, "a"), event(3, "a").failing("P0001"), event(4, "a")];
        assert_eq!(
            world.apply_with(handler, &batch, HOLD).await,
            ["done", "retrying VERSION_GAP", "retrying"]
        );
        release(&world, "e3").await;
        // Twice, because the first failure must not reset the release.
        let failed = ["e3 retrying P0001", "e4 retrying"];
        assert_eq!(world.redeliver_with(handler, HOLD).await, failed);
        assert_eq!(world.redeliver_with(handler, HOLD).await, failed);
        world.run(&fix_message_sql("e3")).await;
        assert_eq!(world.redeliver_with(handler, HOLD).await, ["e3 done", "e4 done"]);
        assert_eq!(world.applied("a").await, ["e1", "e3", "e4"]);
        // The missing event may still arrive.
        assert_eq!(world.apply_with(handler, &[event(2, "a")], HOLD).await, ["late"]);
    }
}

#[tokio::test]
async fn an_event_released_from_a_gap_stays_behind_an_earlier_one_that_waits() {
    let Some(world) = world().await else { return };
    let batch = [event(1, "a"), event(3, "a"), event(5, "a")];
    world.apply_with(SET, &batch, HOLD).await;
    release(&world, "e5").await;
    let told = world.redeliver_with(SET, HOLD).await;
    assert_eq!(told, ["e3 retrying VERSION_GAP", "e5 retrying VERSION_GAP"]);
    assert_eq!(world.applied("a").await, ["e1"]);

    // The operator's release is still recorded when the event is next.
    assert_eq!(world.apply_with(SET, &[event(2, "a")], HOLD).await, ["retrying"]);
    assert_eq!(world.redeliver_with(SET, HOLD).await, ["e2 done", "e3 done", "e5 done"]);
}

/// Lists the attempts of each event, and which event has a due time.
const ATTEMPTS: &str = "SELECT concat_ws(' ', event_id, status, attempts, error_code, CASE WHEN next_attempt_at IS NOT NULL THEN 'timed' END)
     FROM app_inbox WHERE status <> 'done' ORDER BY version";
const LAST_ERROR: &str = "SELECT coalesce(last_error, '') FROM app_inbox WHERE event_id = ";

#[tokio::test]
async fn an_event_that_comes_too_soon_uses_up_no_attempt_behind_one_that_fails() {
    const HOLD_3: &str = ", on_gap => 'hold', max_attempts => 3";
    let Some(world) = world().await else { return };
    for handler in BOTH {
        world.run("TRUNCATE app_inbox, app_inbox_key, balance, applied").await;
        let numbers = [1, 2, 3, 5, 7].map(|n| event(n, "a"));
        let [one, two, three, five, seven] = numbers;
        let batch = [one, two.failing("P0001"), three, five, seven];
        let told = world.apply_with(handler, &batch, HOLD_3).await;
        assert_eq!(told, ["done", "retrying P0001", "retrying", "retrying", "retrying"]);
        world.redeliver_with(handler, HOLD_3).await;
        assert_eq!(
            world.lines(ATTEMPTS).await,
            [
                "e2 retrying 2 P0001 timed",
                "e3 retrying 0",
                "e5 retrying 0 VERSION_GAP",
                "e7 retrying 0 VERSION_GAP"
            ]
        );
        assert_eq!(world.text(&format!("{LAST_ERROR}'e5'")).await, "");

        // The event is now the head. The missing versions follow from the applied events, and
        // each attempt counts.
        world.run(&fix_message_sql("e2")).await;
        world.redeliver_with(handler, HOLD_3).await;
        assert_eq!(
            world.lines(ATTEMPTS).await,
            ["e5 retrying 1 VERSION_GAP timed", "e7 retrying 0 VERSION_GAP"]
        );
        let error = world.text(&format!("{LAST_ERROR}'e5'")).await;
        assert!(error.contains("version 4 has not come, 3 was applied last"), "{error}");
        world.redeliver_with(handler, HOLD_3).await;
        world.redeliver_with(handler, HOLD_3).await;
        assert_eq!(
            world.lines(ATTEMPTS).await,
            ["e5 dead 3 VERSION_GAP timed", "e7 retrying 0 VERSION_GAP"]
        );
    }
}

#[tokio::test]
async fn what_is_missing_before_an_event_and_fails_behind_it_in_one_batch_holds_the_key() {
    let Some(world) = world().await else { return };
    for handler in BOTH {
        world.run("TRUNCATE app_inbox, app_inbox_key, balance, applied").await;
        let batch =
            [event(1, "a"), event(3, "a").at(2, 0), event(2, "a").failing("P0001").at(3, 0)];
        let told = world.apply_with(handler, &batch, HOLD).await;
        assert_eq!(told, ["done", "retrying", "retrying P0001"]);
        assert_eq!(
            world.lines(ATTEMPTS).await,
            ["e2 retrying 1 P0001 timed", "e3 retrying 0 VERSION_GAP"]
        );
        world.run(&fix_message_sql("e2")).await;
        assert_eq!(world.redeliver_with(handler, HOLD).await, ["e2 done", "e3 done"]);
    }
}

#[tokio::test]
async fn an_event_is_applied_without_a_version_only_after_it_has_waited_for_it_at_the_head_of_its_key()
 {
    const GO_ON: &str = ", on_gap => 'hold', on_dead => 'continue', max_attempts => 2";
    let Some(world) = world().await else { return };
    for handler in BOTH {
        world.run("TRUNCATE app_inbox, app_inbox_key, balance, applied").await;
        let batch = [event(1, "a"), event(2, "a").failing("P0001"), event(4, "a")];
        world.apply_with(handler, &batch, GO_ON).await;
        let behind = world.redeliver_with(handler, GO_ON).await;
        assert_eq!(behind, ["e2 dead P0001", "e4 retrying VERSION_GAP"]);
        assert_eq!(world.redeliver_with(handler, GO_ON).await, ["e4 retrying VERSION_GAP"]);
        assert_eq!(world.redeliver_with(handler, GO_ON).await, ["e4 done"]);
    }
}

#[tokio::test]
async fn what_comes_too_soon_behind_one_that_was_not_tried_comes_again_with_it() {
    let Some(world) = world().await else { return };
    world.apply_with(EACH, &[event(1, "a")], HOLD).await;
    // More parts than the savepoints of a transaction.
    let mut batch = Vec::new();
    for n in 0..70 {
        let key = format!("k{n}");
        batch.push(event(1000 + 2 * n, &key));
        batch.push(event(1001 + 2 * n, &key).failing("P0001"));
    }
    batch.extend([event(2, "a"), event(5, "a"), event(7, "a")]);
    let told = world.apply_with(EACH, &batch, HOLD).await;
    assert_eq!(told[140..], ["deferred", "deferred", "deferred"]);
    assert_eq!(world.key("a").await, "0/1/0 1");

    let again = world.apply_with(EACH, &batch[140..], HOLD).await;
    assert_eq!(again, ["done", "retrying VERSION_GAP", "retrying"]);
}
