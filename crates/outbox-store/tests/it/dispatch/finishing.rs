//! Each outcome is written once, and only by the session that holds the row.

use std::time::Duration;

use walrelay_core::{CallCode, FailureCause, OnDead, Outcome};
use walrelay_outbox_store::{
    ClaimLimits, DispatchStatus, ParkRow, ParkStatus, RetrySelection, StoreError,
};

use super::rows::{
    LIMITS, NOW, RELEASED, all, at, due, failure, ids, key, published, row, status_of, store,
};
use crate::support::migrated;

#[tokio::test]
async fn outcomes_are_written_down() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let names = ["published", "retry", "dead", "released"];
    let rows: Vec<ParkRow<'_>> =
        (1..).zip(names).map(|(lsn, name)| row(name, at(lsn, 0), name, NOW)).collect();
    store.park(&mut session, &rows).await.unwrap();
    let keys = names.map(key);
    let claims = store.claim(&session, &keys, LIMITS).await.unwrap();
    let claim =
        |name: &str| claims.iter().find(|row| row.ordering_key == name).unwrap().claim.clone();
    let outcomes = [
        Outcome::Published { message_id: "42".to_owned() },
        Outcome::Again {
            attempts: 4,
            after: Some(Duration::from_secs(100)),
            failure: Some(failure(CallCode::Internal, "again\nand again")),
            blame: FailureCause::Row,
        },
        Outcome::Dead { attempts: 20, failure: failure(CallCode::Internal, "no") },
        RELEASED,
    ];
    let outcomes: Vec<_> = names.map(claim).into_iter().zip(&outcomes).collect();

    assert_eq!(store.finish(&session, &outcomes).await.unwrap(), 4);

    let published = store.show(&session, "published").await.unwrap().row;
    assert_eq!(
        (published.status, published.message_id.as_deref()),
        (DispatchStatus::Published, Some("42"))
    );
    assert_eq!(published.attempts, 4);
    let retried = store.show(&session, "retry").await.unwrap().row;
    assert_eq!((retried.status, retried.attempts), (DispatchStatus::Retrying, 4));
    let history = retried.last_error.unwrap();
    let lines: Vec<&str> = history.lines().collect();
    assert_eq!(lines.len(), 2, "{history}");
    assert!(
        lines[0].starts_with("attempt 4 ") && lines[0].ends_with("INTERNAL: again and again"),
        "{history}"
    );
    assert!(lines[1].starts_with("attempt 3 "), "{history}");
    let dead = store.show(&session, "dead").await.unwrap().row;
    assert_eq!(
        (dead.status, dead.attempts, dead.next_attempt_at),
        (DispatchStatus::Dead, 20, None)
    );
    let released = store.show(&session, "released").await.unwrap().row;
    assert_eq!((released.attempts, released.next_attempt_at), (3, None));
    assert_eq!(ids(&store.claim(&session, &keys, LIMITS).await.unwrap()), ["released"]);
    // A second write, as after a lost reply, does not count.
    assert_eq!(store.finish(&session, &outcomes).await.unwrap(), 0);
    let counts = store.counts(&session).await.unwrap();
    assert_eq!((counts.retrying, counts.dead, counts.published, counts.discarded), (2, 1, 1, 0));
}

#[tokio::test]
async fn the_history_of_errors_is_bounded() {
    let (_database, mut session) = migrated().await;
    let store = store();
    store.park(&mut session, &[row("a", at(1, 0), "k", NOW)]).await.unwrap();
    for (attempt, error_bytes) in (4..30).map(|n| (n, 10)).chain((30..40).map(|n| (n, 5000))) {
        let claimed = store.claim(&session, &[key("k")], LIMITS).await.unwrap();
        let outcome = Outcome::Again {
            attempts: attempt,
            after: Some(Duration::ZERO),
            failure: Some(failure(CallCode::Internal, &"x".repeat(error_bytes))),
            blame: FailureCause::Row,
        };
        assert_eq!(store.finish(&session, &all(claimed, &outcome)).await.unwrap(), 1);
        let history = store.show(&session, "a").await.unwrap().row.last_error.unwrap();
        assert!(history.starts_with(&format!("attempt {attempt} ")), "{history}");
        assert!(history.len() <= 4096, "{} bytes", history.len());
        let lines = history.lines().count();
        assert!(lines <= 20, "{lines} lines");
        assert!(attempt != 29 || lines == 20, "{lines} lines");
    }
}

#[tokio::test]
async fn an_edit_during_a_publish_is_not_lost() {
    let (_database, mut session) = migrated().await;
    let store = store();
    store.park(&mut session, &[row("a", at(1, 0), "k", NOW)]).await.unwrap();
    let claim = store.claim(&session, &[key("k")], LIMITS).await.unwrap().remove(0).claim;

    store.edit(&mut session, "a", b"better").await.unwrap();
    let finished = store.finish(&session, &[(claim, &published())]).await;
    assert_eq!(finished.unwrap(), 0, "it was the old message");

    let claimed = store.claim(&session, &[key("k")], LIMITS).await.unwrap().remove(0);
    assert_eq!((claimed.message.as_slice(), claimed.attempts), (&b"better"[..], 0));
}

#[tokio::test]
async fn an_outcome_that_waited_for_an_operator_sees_what_he_did() {
    let (database, mut session) = migrated().await;
    let store = store();
    store.park(&mut session, &[row("a", at(1, 0), "k", NOW)]).await.unwrap();
    let claim = store.claim(&session, &[key("k")], LIMITS).await.unwrap().remove(0).claim;
    let mut operator = database.connect().await;
    let editing = operator.transaction().await.unwrap();
    let sql = "UPDATE app_outbox_dispatch SET message = 'x', updated_at = clock_timestamp() WHERE event_id = 'a'";
    editing.batch_execute(sql).await.unwrap();

    let published = published();
    let outcome = [(claim, &published)];
    let finishing = store.finish(&session, &outcome);
    let committing = async {
        let watcher = database.connect().await;
        walrelay_testkit::wait_until(Duration::from_secs(10), "finish to wait for the lock", async || {
            let waiting = "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
            (watcher.text(waiting).await == "1").then_some(())
        })
        .await;
        editing.commit().await.unwrap();
    };
    let (counted, ()) = tokio::join!(finishing, committing);

    assert_eq!(counted.unwrap(), 0);
    assert_eq!(status_of(&store, &session, "a").await, DispatchStatus::Retrying);
}

#[tokio::test]
async fn a_row_claimed_again_after_its_lease_ignores_the_first_claimer() {
    let (_database, mut session) = migrated().await;
    let store = store();
    store.park(&mut session, &[row("a", at(1, 0), "k", NOW)]).await.unwrap();
    let short = ClaimLimits { lease: Duration::ZERO, ..LIMITS };
    let first = store.claim(&session, &[key("k")], short).await.unwrap().remove(0).claim;
    let second = store.claim(&session, &[key("k")], LIMITS).await.unwrap().remove(0).claim;

    let dead = Outcome::Dead { attempts: 1, failure: failure(CallCode::Unknown, "y") };
    assert_eq!(store.finish(&session, &[(first, &dead)]).await.unwrap(), 0);
    assert_eq!(store.finish(&session, &[(second, &dead)]).await.unwrap(), 1);
}

#[tokio::test]
async fn a_dead_row_lets_its_key_go_on_or_holds_it() {
    let (_database, mut session) = migrated().await;
    let (flowing, holding) = (store(), store().with_on_dead(OnDead::Hold));
    let rows = [
        row("before", at(1, 0), "k", NOW),
        row("dead", at(2, 0), "k", ParkStatus::Dead),
        row("after", at(3, 0), "k", NOW),
        row("only dead", at(4, 0), "m", ParkStatus::Dead),
        row("unordered dead", at(5, 0), "", ParkStatus::Dead),
        row("unordered", at(6, 0), "", NOW),
    ];
    flowing.park(&mut session, &rows).await.unwrap();
    let keys = [key("k"), key("m"), key("")];
    let mut parked = holding.parked_keys(&session).await.unwrap();
    parked.sort_by(|a, b| a.ordering_key.cmp(&b.ordering_key));
    let summary: Vec<_> = parked.iter().map(|k| (k.ordering_key.as_str(), k.is_held)).collect();
    assert_eq!(summary, [("", false), ("k", false), ("m", true)]);
    let mut told = holding.parked(&session, &keys).await.unwrap();
    told.sort_by(|a, b| a.ordering_key.cmp(&b.ordering_key));
    let same: Vec<_> = told.iter().map(|k| (k.ordering_key.as_str(), k.is_held)).collect();
    assert_eq!(same, summary, "asked for by name");
    assert_eq!(flowing.parked_keys(&session).await.unwrap().len(), 2);

    let claimed = holding.claim(&session, &keys, LIMITS).await.unwrap();
    assert_eq!(ids(&claimed), ["unordered", "before"]);
    let published = published();
    holding.finish(&session, &all(claimed, &published)).await.unwrap();
    assert!(due(&holding, &session).await.is_empty(), "k is held");
    assert!(holding.claim(&session, &keys, LIMITS).await.unwrap().is_empty());
    assert_eq!(due(&flowing, &session).await.len(), 1);

    holding.discard(&mut session, "dead", "nobody needs it").await.unwrap();
    assert_eq!(due(&holding, &session).await.len(), 1);
    assert_eq!(ids(&holding.claim(&session, &keys, LIMITS).await.unwrap()), ["after"]);
}

/// Operators name rows in any order, but the relay locks rows in one fixed order.
#[tokio::test]
async fn a_retry_and_outcomes_of_the_same_rows_do_not_wait_for_each_other() {
    let (database, mut session) = migrated().await;
    let store = store();
    let rows = [row("a", at(1, 0), "k", NOW), row("b", at(2, 0), "k", NOW)];
    store.park(&mut session, &rows).await.unwrap();
    let claimed = store.claim(&session, &[key("k")], LIMITS).await.unwrap();
    let published = published();
    let outcomes = all(claimed, &published);
    let (relay, mut operator) = (database.connect().await, database.connect().await);
    let mut blocker = database.connect().await;
    let blocking = blocker.transaction().await.unwrap();
    blocking
        .execute("SELECT FROM app_outbox_dispatch WHERE event_id = 'a' FOR UPDATE", &[])
        .await
        .unwrap();
    let waiting = async |count: &str| {
        let sql = "SELECT count(*)::text FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event_type = 'Lock'";
        walrelay_testkit::wait_until(Duration::from_secs(10), "sessions to wait", async || {
            (session.text(sql).await == count).then_some(())
        })
        .await;
    };

    let finishing = store.finish(&relay, &outcomes);
    let chosen = RetrySelection::Events(vec!["b".to_owned(), "a".to_owned()]);
    let retrying = async {
        waiting("1").await;
        store.retry(&mut operator, &chosen).await
    };
    let unblocking = async {
        waiting("2").await;
        blocking.rollback().await
    };
    let (finished, retried, unblocked) = tokio::join!(finishing, retrying, unblocking);

    unblocked.unwrap();
    assert_eq!(finished.unwrap(), 2);
    assert!(matches!(retried, Err(StoreError::AlreadyFinished { .. })), "{retried:?}");
}
