//! Claims: the order of rows, leases, and two simultaneous claims.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use walrelay_testkit::postgres::TestClient;

use pgoutput_parser::Position;
use tokio::task::JoinSet;
use walrelay_outbox_store::{ClaimLimits, Key, ParkRow, ParkStatus};

use super::rows::{
    BEHIND, LATER, LIMITS, NOW, all, at, due, ids, key, published as published_once, row, store,
};
use crate::support::migrated;

#[tokio::test]
async fn a_claim_gives_rows_in_order_and_leases_them() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let rows = [
        row("second", at(2, 0), "k", BEHIND),
        row("first", at(1, 5), "k", NOW),
        row("third", at(2, 1), "k", BEHIND),
        row("other", at(1, 0), "k2", NOW),
    ];
    store.park(&mut session, &rows).await.unwrap();

    let claimed = store.claim(&session, &[key("k2"), key("k")], LIMITS).await.unwrap();

    assert_eq!(ids(&claimed), ["first", "second", "third", "other"]);
    assert_eq!(claimed[0].message, b"first");
    assert_eq!(claimed[0].attempts, 3);
    assert!(store.claim(&session, &[key("k"), key("k2")], LIMITS).await.unwrap().is_empty());
    let parked = store.parked(&session, &[key("k"), key("nobody")]).await.unwrap();
    assert_eq!(parked.len(), 1);
    let lease_left = parked[0].next_attempt_in.unwrap();
    assert!(lease_left > Duration::from_secs(30) && lease_left <= LIMITS.lease, "{lease_left:?}");
}

#[tokio::test]
async fn rows_of_a_claim_without_an_answer_are_claimed_again_at_once_and_rows_in_flight_are_not() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let rows = [
        row("first", at(1, 0), "k", NOW),
        row("second", at(2, 0), "k", BEHIND),
        row("loose", at(3, 0), "", NOW),
        row("in flight", at(4, 0), "", NOW),
        row("of another key", at(5, 0), "k2", LATER),
    ];
    store.park(&mut session, &rows).await.unwrap();
    let keys = [key("k"), key("")];
    assert_eq!(store.claim(&session, &keys, LIMITS).await.unwrap().len(), 4);
    assert!(store.claim(&session, &keys, LIMITS).await.unwrap().is_empty());

    let released = store.release(&session, &keys, &["in flight"], 100).await.unwrap();
    assert_eq!(released, 3);
    let mut again = store.claim(&session, &keys, LIMITS).await.unwrap();
    again.sort_by_key(|row| row.position);
    assert_eq!(ids(&again), ["first", "second", "loose"]);
    assert!(store.claim(&session, &[key("k2")], LIMITS).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_key_whose_head_is_not_due_gives_nothing() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let rows = [
        row("head", at(1, 0), "k", LATER),
        row("behind", at(2, 0), "k", BEHIND),
        row("due", at(3, 0), "k", NOW),
    ];
    store.park(&mut session, &rows).await.unwrap();

    assert!(store.claim(&session, &[key("k")], LIMITS).await.unwrap().is_empty());
    assert!(due(&store, &session).await.is_empty());
}

#[tokio::test]
async fn a_wait_that_began_before_the_clock_was_set_back_begins_again_and_is_not_longer() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let soon = ParkStatus::Retrying { next_attempt_in: Some(Duration::from_secs(40)) };
    let rows = [
        row("parked", at(1, 0), "k", soon),
        row("loose", at(2, 0), "", soon),
        row("leased", at(3, 0), "leased", NOW),
        // An operator's wish is no consequence of a clock.
        row("postponed by hand", at(4, 0), "by hand", LATER),
    ];
    store.park(&mut session, &rows).await.unwrap();
    store.claim(&session, &[key("leased")], LIMITS).await.unwrap();
    let set_back = "UPDATE app_outbox_dispatch
                       SET next_attempt_at = next_attempt_at + interval '1 day',
                           updated_at = updated_at + interval '1 day'
                     WHERE event_id <> 'postponed by hand'";
    session.run(set_back).await;
    let waits = "SELECT string_agg(concat_ws(' ', event_id,
                   round(extract(epoch FROM next_attempt_at - now()) / 20) * 20), ', ' ORDER BY commit_lsn)
                   FROM app_outbox_dispatch";
    assert!(due(&store, &session).await.is_empty());
    let expected = "parked 40, loose 40, leased 60, postponed by hand 3600";
    assert_eq!(session.text(waits).await, expected);
    // The next query moves nothing further.
    assert!(due(&store, &session).await.is_empty());
    assert_eq!(session.text(waits).await, expected);
}

#[tokio::test]
async fn a_locked_head_is_not_overtaken() {
    let (database, mut session) = migrated().await;
    let store = store();
    let rows = [
        row("k 1", at(1, 0), "k", NOW),
        row("k 2", at(2, 0), "k", BEHIND),
        row("m 1", at(1, 1), "m", NOW),
        row("m 2", at(2, 1), "m", BEHIND),
        row("m 3", at(3, 1), "m", BEHIND),
        row("u 1", at(1, 2), "", NOW),
        row("u 2", at(2, 2), "", NOW),
    ];
    store.park(&mut session, &rows).await.unwrap();
    let mut other = database.connect().await;
    let lock = other.transaction().await.unwrap();
    let sql = "SELECT FROM app_outbox_dispatch WHERE event_id IN ('k 1', 'm 2', 'u 1') FOR UPDATE";
    lock.batch_execute(sql).await.unwrap();

    let claimed = store.claim(&session, &[key("k"), key("m"), key("")], LIMITS).await.unwrap();

    assert_eq!(ids(&claimed), ["u 2", "m 1"]);
    lock.rollback().await.unwrap();
    let rest = store.claim(&session, &[key("k"), key("m"), key("")], LIMITS).await.unwrap();
    // m waits for the lease of its head.
    assert_eq!(ids(&rest), ["u 1", "k 1", "k 2"]);
}

#[tokio::test]
async fn two_claimers_never_share_a_row_nor_split_a_key() {
    let (database, mut session) = migrated().await;
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    let names: Vec<String> = (0..2000).map(|n| format!("e{n}")).collect();
    let rows: Vec<ParkRow<'_>> = (1..)
        .zip(&names)
        .map(|(lsn, name)| {
            let key = &keys[usize::try_from(lsn).unwrap() % keys.len()];
            row(name, at(lsn, 0), key, NOW)
        })
        .collect();
    store().park(&mut session, &rows).await.unwrap();

    let published = Arc::new(Mutex::new(Vec::new()));
    let mut claimers = JoinSet::new();
    for _ in 0..2 {
        let client = database.connect().await;
        claimers.spawn(publish_all(client, keys.clone(), Arc::clone(&published)));
    }
    while let Some(claimer) = claimers.join_next().await {
        claimer.unwrap();
    }

    let published = published.lock().unwrap();
    assert_eq!(published.len(), rows.len(), "each row once");
    for key in &keys {
        let of_key: Vec<Position> =
            published.iter().filter(|(k, _)| k == key).map(|(_, position)| *position).collect();
        assert_eq!(of_key.len(), 50, "{key}");
        assert!(of_key.is_sorted(), "{key} went back: {of_key:?}");
    }
}

/// Claims and finishes until no row is parked. Records the claimed rows before it finishes them.
async fn publish_all(
    client: TestClient,
    keys: Vec<String>,
    published: Arc<Mutex<Vec<(String, Position)>>>,
) {
    let store = store();
    let few = ClaimLimits { per_key_rows: 3, ..LIMITS };
    let keys: Vec<Key<'_>> = keys.iter().map(|k| key(k)).collect();
    loop {
        let claimed = store.claim(&client, &keys, few).await.expect("a claim");
        let parked = store.parked_keys(&client).await.expect("the parked keys");
        if claimed.is_empty() && parked.is_empty() {
            return;
        }
        let noted = claimed.iter().map(|row| (row.ordering_key.clone(), row.position));
        published.lock().expect("no panic elsewhere").extend(noted);
        let outcome = published_once();
        let outcomes = all(claimed, &outcome);
        let counted = store.finish(&client, &outcomes).await.expect("the outcomes are written");
        assert_eq!(usize::try_from(counted), Ok(outcomes.len()));
    }
}

#[tokio::test]
async fn a_claim_stays_within_its_bytes_and_always_gives_one_row() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let message = vec![1_u8; 1000];
    let names: Vec<String> = (0..12).map(|n| format!("{n:02}")).collect();
    let rows: Vec<ParkRow<'_>> = (1..)
        .zip(&names)
        .map(|(lsn, name)| {
            let key = if lsn <= 6 { "a" } else { "b" };
            ParkRow { message: &message, ..row(name, at(lsn, 0), key, NOW) }
        })
        .collect();
    store.park(&mut session, &rows).await.unwrap();
    let keys = [key("a"), key("b")];

    let four = ClaimLimits { bytes_max: 4500, ..LIMITS };
    assert_eq!(ids(&store.claim(&session, &keys, four).await.unwrap()), ["00", "01", "06", "07"]);
    session.run("UPDATE app_outbox_dispatch SET next_attempt_at = now()").await;
    let none = ClaimLimits { bytes_max: 10, ..LIMITS };
    assert_eq!(ids(&store.claim(&session, &keys, none).await.unwrap()), ["00"]);
    let two_each = ClaimLimits { per_key_rows: 2, ..LIMITS };
    assert_eq!(ids(&store.claim(&session, &keys, two_each).await.unwrap()), ["06", "07"]);
}

#[tokio::test]
async fn unordered_rows_go_longest_due_first_and_do_not_wait_for_each_other() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let rows = [
        row("later", at(1, 0), "", LATER),
        row("due", at(2, 0), "", NOW),
        row("longer due", at(3, 0), "", NOW),
    ];
    store.park(&mut session, &rows).await.unwrap();
    session
        .run("UPDATE app_outbox_dispatch SET next_attempt_at = now() - interval '1 h' WHERE event_id = 'longer due'")
        .await;

    let one = ClaimLimits { per_key_rows: 1, ..LIMITS };
    assert_eq!(ids(&store.claim(&session, &[key("")], one).await.unwrap()), ["longer due"]);
    assert_eq!(ids(&store.claim(&session, &[key("")], LIMITS).await.unwrap()), ["due"]);
    assert!(store.claim(&session, &[key("")], LIMITS).await.unwrap().is_empty());
}

#[tokio::test]
async fn heads_are_told_a_page_at_a_time_with_whether_they_have_a_time() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let rows = [
        row("a 1", at(1, 0), "a", LATER),
        row("a 2", at(2, 0), "a", BEHIND),
        row("b 1", at(3, 0), "b", BEHIND),
        row("c 1", at(4, 0), "c", NOW),
        row("none", at(5, 0), "", NOW),
    ];
    store.park(&mut session, &rows).await.unwrap();
    let untimed = "UPDATE app_outbox_dispatch SET next_attempt_at = NULL WHERE event_id = 'b 1'";
    session.execute(untimed, &[]).await.unwrap();

    let first = store.heads_after(&session, None, 2).await.unwrap();
    let told: Vec<_> = first.iter().map(|head| (&*head.ordering_key, head.is_timed)).collect();
    assert_eq!(told, [("a", true), ("b", false)]);
    let last = first.last().unwrap();
    let after = Some((&*last.topic, &*last.ordering_key));
    let second = store.heads_after(&session, after, 2).await.unwrap();
    let rest: Vec<_> = second.iter().map(|head| (&*head.ordering_key, head.is_timed)).collect();
    assert_eq!(rest, [("c", true)]);
}
