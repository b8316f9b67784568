//! A batch takes effect once despite redeliveries, and returns the result of each message.

use super::messages::event;
use super::world::{BOTH, EACH, InboxDatabase, SET, world};

#[tokio::test]
async fn a_batch_takes_effect_in_order_and_moves_its_keys() {
    let Some(world) = world().await else { return };
    for (n, handler) in BOTH.into_iter().enumerate() {
        let base = u32::try_from(n).unwrap() * 10;
        let batch = [event(base + 1, "a"), event(base + 2, "b"), event(base + 3, "a")];

        assert_eq!(world.apply(handler, &batch).await, ["done", "done", "done"]);
    }

    assert_eq!(world.applied("a").await, ["e1", "e3", "e11", "e13"]);
    assert_eq!(world.balance("a").await, "4 28");
    assert_eq!(world.key("a").await, "0/D/0 13");
    assert_eq!(world.key("b").await, "0/C/0 12");
}

#[tokio::test]
async fn what_is_delivered_again_takes_no_effect_again() {
    let Some(world) = world().await else { return };
    let batch = [event(1, "a"), event(2, "a"), event(3, "")];
    world.apply(SET, &batch).await;

    assert_eq!(world.apply(SET, &batch).await, ["duplicate", "duplicate", "duplicate"]);
    // A redelivered tail with a new event after it, and copies in one batch.
    let tail =
        [event(2, "a"), event(4, "a"), event(4, "a"), event(3, ""), event(5, ""), event(5, "")];
    assert_eq!(
        world.apply(EACH, &tail).await,
        ["duplicate", "done", "duplicate", "duplicate", "done", "duplicate"]
    );

    assert_eq!(world.balance("a").await, "3 7");
    assert_eq!(world.balance("").await, "2 8");
}

#[tokio::test]
async fn a_copy_at_another_position_is_the_same_event() {
    let Some(world) = world().await else { return };
    world.apply(EACH, &[event(1, "a"), event(2, "a").version(None)]).await;
    // As a replay or a recovery publishes the event.
    let again = [event(1, "a").at(90, 7), event(2, "a").version(None).without_position()];

    assert_eq!(world.apply(EACH, &again).await, ["duplicate", "duplicate"]);
    assert_eq!(world.balance("a").await, "2 3");
}

#[tokio::test]
async fn a_different_event_of_the_same_id_is_kept_as_a_collision_and_holds_nothing() {
    let Some(world) = world().await else { return };
    world.apply(EACH, &[event(1, "a")]).await;
    let other = || [event(7, "b").id("e1"), event(8, "b"), event(9, "a").id("e1")];

    assert_eq!(world.apply(EACH, &other()).await, ["dead", "done", "dead"]);
    assert_eq!(world.apply(EACH, &other()).await, ["duplicate", "duplicate", "duplicate"]);

    assert_eq!(
        world.inbox().await,
        ["e1 done", "e1@0/7/0 dead ID_COLLISION", "e8 done", "e1@0/9/0 dead ID_COLLISION"]
    );
    assert_eq!(world.key("b").await, "0/8/0 8");
    assert_eq!(world.balance("a").await, "1 1");
    // The same within one batch, and without a position.
    let pair = [event(20, "c"), event(21, "c").id("e20").without_position()];
    assert_eq!(world.apply(SET, &pair).await, ["done", "dead"]);
    let stored = "SELECT convert_from(message, 'UTF8')::json ->> 'data' FROM app_inbox WHERE event_id = 'e20@m-e20'";
    assert_eq!(world.text(stored).await, "eyJhbW91bnQiOiAyMX0=", "the whole message is kept");
}

#[tokio::test]
async fn an_event_without_a_key_takes_no_key_row_and_is_never_late() {
    let Some(world) = world().await else { return };
    assert_eq!(world.apply(EACH, &[event(5, ""), event(2, "")]).await, ["done", "done"]);
    assert_eq!(world.apply(SET, &[event(1, "")]).await, ["done"]);
    assert_eq!(world.text("SELECT count(*)::text FROM app_inbox_key").await, "0");
}

#[tokio::test]
async fn an_overtaken_event_is_applied_and_counted_as_late() {
    let Some(world) = world().await else { return };
    let batch = [event(5, "a"), event(3, "a"), event(6, "a"), event(6, "b").id("x").at(6, 1)];
    assert_eq!(world.apply(SET, &batch).await, ["done", "late", "done", "done"]);
    // An earlier transaction, the same transaction with a smaller index, and a later position.
    let next = [event(4, "a"), event(1, "b").at(6, 0), event(7, "b").at(6, 2)];
    assert_eq!(world.apply(EACH, &next).await, ["late", "late", "done"]);

    assert_eq!(world.applied("a").await, ["e5", "e3", "e6", "e4"]);
    assert_eq!(world.key("a").await, "0/6/0 6", "a late event moves no key");
    // An event without a position is never late.
    assert_eq!(world.apply(EACH, &[event(2, "a").without_position()]).await, ["done"]);
    assert_eq!(world.key("a").await, "0/6/0 6");
}

/// Records a prune. Every event of these tests occurred before, except those of tomorrow.
const PRUNED: &str = "UPDATE app_inbox_consumer SET pruned_before = now()";

#[tokio::test]
async fn by_position_only_an_event_that_prune_may_have_deleted_is_skipped() {
    const SKIP: &str = ", dedupe => 'position'";
    let Some(world) = world().await else { return };
    let ours = |n| event(n, "a").of_system("1");
    let at = |n, time| ours(n).version(1).occurred_at(time);
    assert_eq!(world.apply_with(EACH, &[ours(9)], SKIP).await, ["done"]);
    // Nothing was ever deleted, so an event that the inbox does not list was never applied.
    assert_eq!(world.apply_with(SET, &[at(1, "2020-01-01")], SKIP).await, ["late"]);

    world.run("UPDATE app_inbox_consumer SET pruned_before = '2026-01-01T12:00:00Z'").await;
    let batch = [
        at(2, "2026-01-01T11:59:59Z"),
        at(3, "2026-01-01T12:00:59Z"),
        at(4, "2026-01-01T12:01:00Z"),
        at(5, "tomorrow"),
        ours(10),
        at(6, "2026-01-01T11:00:00Z"),
    ];
    let first = ["discarded", "discarded", "late", "late", "done", "discarded"];
    assert_eq!(world.apply_with(SET, &batch, SKIP).await, first);
    assert_eq!(world.apply_with(EACH, &batch, SKIP).await, ["duplicate"; 6]);
    assert_eq!(world.applied("a").await, ["e9", "e1", "e4", "e5", "e10"]);
    let counted =
        "SELECT string_agg(concat_ws(' ', status, attempts, error_code), ', ' ORDER BY event_id)
                     FROM app_inbox WHERE event_id IN ('e2', 'e4')";
    assert_eq!(world.text(counted).await, "discarded 0 BEHIND_POSITION, late 1");
    assert_eq!(world.key("a").await, "0/A/0 10", "a late event moves no key");
}

#[tokio::test]
async fn by_position_an_overtaken_event_is_skipped_only_where_the_server_is_known_to_be_the_same() {
    const SKIP: &str = ", dedupe => 'position'";
    let Some(world) = world().await else { return };
    world.run(PRUNED).await;
    let ours = |n| event(n, "a").of_system("1");
    assert_eq!(world.apply_with(EACH, &[ours(5)], SKIP).await, ["done"]);
    assert_eq!(world.apply_with(EACH, &[ours(3), ours(6)], SKIP).await, ["discarded", "done"]);
    assert_eq!(world.apply_with(EACH, &[ours(3)], SKIP).await, ["duplicate"]);
    // The message has no system identifier, and then the key has none.
    assert_eq!(world.apply_with(EACH, &[event(4, "a")], SKIP).await, ["late"]);
    world.apply(EACH, &[event(20, "b")]).await;
    assert_eq!(world.apply_with(EACH, &[event(19, "b").of_system("1")], SKIP).await, ["late"]);
    // After a restore elsewhere, positions start again and cannot be compared with the old
    // ones.
    let other = |n| event(n, "a").of_system("2");
    assert_eq!(world.apply_with(EACH, &[other(2), other(1)], SKIP).await, ["done", "discarded"]);
    assert_eq!(world.key("a").await, "0/2/0 6");
    assert_eq!(world.apply_with(EACH, &[ours(1).id("old")], SKIP).await, ["done"]);

    let reason =
        "SELECT string_agg(DISTINCT error_code, ' ') FROM app_inbox WHERE status = 'discarded'";
    assert_eq!(world.text(reason).await, "BEHIND_POSITION");
}

/// Returns the count of events that contradict the key's position, and the position.
async fn implausible(world: &InboxDatabase, key: &str) -> String {
    let sql = "SELECT concat_ws(' ', implausible, commit_lsn) FROM app_inbox_key WHERE ordering_key = '{key}'";
    world.text(&sql.replace("{key}", key)).await
}

/// A position that no test server reaches.
const FAR: u64 = 1 << 40;

#[tokio::test]
async fn a_forged_position_does_not_keep_later_versions_of_its_key_from_being_applied() {
    const SKIP: &str = ", dedupe => 'position'";
    let Some(world) = world().await else { return };
    let ours = |n| event(n, "a").of_system("1");
    let forged = ours(6).at(FAR, 0);
    assert_eq!(world.apply_with(EACH, &[ours(5), forged], SKIP).await, ["done", "done"]);
    assert_eq!(implausible(&world, "a").await, "0 100/0");

    assert_eq!(world.apply_with(SET, &[ours(7), ours(8)], SKIP).await, ["late", "late"]);
    assert_eq!(implausible(&world, "a").await, "2 100/0");
    // One batch with a forged position.
    let batch = [ours(9).at(2 * FAR, 0), ours(10)];
    assert_eq!(world.apply_with(SET, &batch, SKIP).await, ["done", "late"]);
    assert_eq!(world.applied("a").await, ["e5", "e6", "e7", "e8", "e9", "e10"]);
    assert_eq!(implausible(&world, "a").await, "0 200/0", "it has moved since");
    // Copies of applied and pruned events prove nothing, and are still skipped.
    world.run("DELETE FROM app_inbox").await;
    world.run(PRUNED).await;
    let copies = [ours(5), ours(7), ours(10)];
    assert_eq!(world.apply_with(EACH, &copies, SKIP).await, ["discarded"; 3]);
    assert_eq!(implausible(&world, "a").await, "0 200/0");
}

#[tokio::test]
async fn events_behind_a_position_that_was_reached_before_they_occurred_are_applied_and_counted() {
    const SKIP: &str = ", dedupe => 'position'";
    let Some(world) = world().await else { return };
    // The version is forged also, so no version shows that an event is new.
    let forged = event(6, "a").of_system("1").at(FAR, 0).version(1_000_000_i64);
    assert_eq!(world.apply_with(EACH, &[forged], SKIP).await, ["done"]);
    world.run(PRUNED).await;
    let new = |n| event(n, "a").of_system("1").occurred_at("tomorrow");
    assert_eq!(world.apply_with(SET, &[new(7), new(8)], SKIP).await, ["late"; 2]);
    assert_eq!(implausible(&world, "a").await, "2 100/0");
    assert_eq!(world.apply_with(SET, &[new(7)], SKIP).await, ["duplicate"]);
    let old = event(3, "a").of_system("1");
    assert_eq!(world.apply_with(SET, &[old], SKIP).await, ["discarded"]);
    let unversioned = event(9, "a").of_system("1").version(None).occurred_at("tomorrow");
    assert_eq!(world.apply_with(SET, &[unversioned], SKIP).await, ["late"]);
    assert_eq!(implausible(&world, "a").await, "3 100/0");
    assert_eq!(world.applied("a").await, ["e6", "e7", "e8", "e9"]);
    // Without the option the counter stays.
    assert_eq!(world.apply(SET, &[new(10)]).await, ["late"]);
    assert_eq!(implausible(&world, "a").await, "3 100/0");
    // Events confirm a position that moves forward.
    let further = event(11, "a").of_system("1").at(FAR + 1, 0);
    assert_eq!(world.apply_with(SET, &[further], SKIP).await, ["done"]);
    assert_eq!(implausible(&world, "a").await, "0 100/1");
}

#[tokio::test]
async fn the_handler_is_given_the_whole_event() {
    let Some(world) = world().await else { return };
    world
        .run(
            "CREATE TABLE given (event app_inbox_event);
             CREATE FUNCTION keep(app_inbox_event) RETURNS void LANGUAGE sql AS 'INSERT INTO given SELECT $1'",
        )
        .await;
    let texts = event(2, "k").data("not json").attributes("{}");
    world
        .apply("keep(app_inbox_event)", &[event(1, "k"), texts, event(3, "k").data([0xff, 0])])
        .await;

    let given = world
        .lines(
            "SELECT concat_ws(' ', (event).event_id, (event).event_type, (event).aggregate_type,
                      (event).aggregate_id, (event).ordering_key, (event).version, (event).schema_version,
                      (event).commit_lsn, (event).tx_index, (event).message_id,
                      (event).occurred_at = '2026-11-21T10:00:00Z', (event).publish_time = '2026-11-21T10:00:01Z',
                      (event).attributes ->> 'colour', coalesce((event).payload::text, 'no payload'),
                      encode((event).data, 'hex'))
               FROM given",
        )
        .await;
    assert_eq!(
        given,
        [
            "e1 placed order k k 1 1 0/1 0 m-e1 t t red {\"amount\": 1} 7b22616d6f756e74223a20317d",
            "e2 placed order k k 2 1 0/2 0 m-e2 t t no payload 6e6f74206a736f6e",
            "e3 placed order k k 3 1 0/3 0 m-e3 t t red no payload ff00",
        ]
    );
}

#[tokio::test]
async fn json_that_jsonb_cannot_hold_is_one_events_fault_and_nobody_elses() {
    let Some(world) = world().await else { return };
    for handler in BOTH {
        world.run("TRUNCATE app_inbox, app_inbox_key").await;
        let zero = r#"{"amount": 1, "text": "a\u0000b"}"#;
        let huge = "1e1000000";
        let batch = [
            event(1, "a"),
            event(2, "b").data(zero),
            event(3, "c").data(huge),
            event(4, "d").attributes(r#"{"colour": "\u0000"}"#),
            event(5, "e").data("\u{0}"),
            event(6, "f"),
        ];
        assert_eq!(
            world.apply(handler, &batch).await,
            ["done", "retrying 22P05", "retrying 22003", "retrying 22P05", "done", "done"]
        );
        // The events are stored whole, and found for the next attempt.
        let mut again = world.redeliver(handler).await;
        again.sort();
        assert_eq!(again, ["e2 retrying 22P05", "e3 retrying 22003", "e4 retrying 22P05"]);
    }
}

#[tokio::test]
async fn an_empty_batch_does_nothing() {
    let Some(world) = world().await else { return };
    assert!(world.apply(EACH, &[]).await.is_empty());
    assert!(world.redeliver(EACH).await.is_empty());
}
