//! `app_inbox_accept` for custom subscribers: it accepts an event once, inside their transaction,
//! and never a different event with the same id.

use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;

use super::messages::event;
use super::world::{EACH, InboxDatabase, world};

const E1: &str = "SELECT app_inbox_accept('c', 'e1', 'a', 1, '0/1', 0)::text";

#[tokio::test]
async fn it_is_true_once_and_only_if_the_effect_commits() {
    let Some(world) = world().await else { return };
    world.run("BEGIN").await;
    assert_eq!(world.text(E1).await, "true");
    world.run("ROLLBACK").await;

    assert_eq!(world.text(E1).await, "true");
    assert_eq!(world.text(E1).await, "false");
    let late = "SELECT app_inbox_accept('c', 'e0', 'a', 0, '0/0', 0, 'placed', '2026-11-21T10:00:00Z')::text";
    assert_eq!(world.text(late).await, "true");
    let plain = "SELECT app_inbox_accept('c', 'm7', NULL, NULL, NULL, NULL)::text";
    assert_eq!(world.text(plain).await, "true");
    assert_eq!(world.text(plain).await, "false");

    assert_eq!(world.inbox().await, ["e0 late", "e1 done", "m7 done"]);
    assert_eq!(world.key("a").await, "0/1/0 1");
    let attributes = "SELECT concat_ws(' ', event_type, occurred_at = '2026-11-21T10:00:00Z')
                        FROM app_inbox WHERE event_id = 'e0'";
    assert_eq!(world.text(attributes).await, "placed t");
    // Both ways use the same inbox.
    assert_eq!(world.apply(EACH, &[event(1, "a"), event(2, "a")]).await, ["duplicate", "done"]);
}

#[tokio::test]
async fn a_different_event_of_the_same_id_is_recorded_and_not_applied() {
    let Some(world) = world().await else { return };
    world.text(E1).await;
    let other = "SELECT app_inbox_accept('c', 'e1', 'b', 1, '0/9', 3)::text";
    assert_eq!(world.text(other).await, "false");
    assert_eq!(world.text(other).await, "false");
    assert_eq!(world.inbox().await, ["e1 done", "e1@0/9/3 dead ID_COLLISION"]);
}

#[tokio::test]
async fn who_comes_second_waits_for_the_first_and_then_skips() {
    let Some(world) = world().await else { return };
    for (id, key, first_ends, expected) in [
        ("x", "'a'", "COMMIT", "false"),
        ("y", "'a'", "ROLLBACK", "true"),
        ("z", "''", "COMMIT", "false"),
        ("q", "''", "ROLLBACK", "true"),
    ] {
        let sql = format!("SELECT app_inbox_accept('c', '{id}', {key}, 1, NULL, NULL)::text");
        let answer = second_answer(&world, sql, first_ends).await;
        assert_eq!(answer, expected, "{id} after {first_ends}");
    }
}

/// Returns the answer to the second session that accepts the same event, after the first has ended.
async fn second_answer(world: &InboxDatabase, sql: String, first_ends: &str) -> String {
    let first = world.session().await;
    first.run("BEGIN").await;
    assert_eq!(first.text(&sql).await, "true");
    let second = world.session().await;
    let pid = second.text("SELECT pg_backend_pid()::text").await;
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { second.text(&sql).await });
    world.wait_until_blocked(&pid).await;

    first.run(first_ends).await;

    waiting.join_next().await.expect("the second").expect("its answer")
}

#[tokio::test]
async fn behind_an_event_that_waits_it_refuses() {
    let Some(world) = world().await else { return };
    world.apply(EACH, &[event(1, "a").failing("P0001")]).await;
    let next = "SELECT app_inbox_accept('c', 'e2', 'a', 2, '0/2', 0)::text";
    let error = world.query(next, &[]).await.expect_err("it was accepted");
    assert_eq!(error.code(), Some(&SqlState::from_code("WR006")));
    // An event that is already stored needs no redelivery.
    assert_eq!(world.text(E1).await, "false");
}
