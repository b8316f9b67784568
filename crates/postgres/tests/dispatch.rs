//! Dispatch state against a real server: nothing is lost, nothing overtakes, operators are safe.

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pgoutput_parser::{Lsn, Position};
use support::{Session, migrated};
use tokio::task::JoinSet;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{AsyncMessage, Connection, Notification, Socket};
use walrelay_postgres::{
    ClaimLimits, ClaimedRow, DispatchFilter, DispatchStatus, DispatchStore, Key, OnDead, Outcome,
    ParkRow, ParkStatus, RetrySelection, StoreError,
};

const TOPIC: &str = "projects/p/topics/t";
const NOW: ParkStatus = ParkStatus::Retrying { next_attempt_in: Some(Duration::ZERO) };
const BEHIND: ParkStatus = ParkStatus::Retrying { next_attempt_in: None };
const LATER: ParkStatus = ParkStatus::Retrying { next_attempt_in: Some(Duration::from_secs(3600)) };
const LIMITS: ClaimLimits =
    ClaimLimits { per_key_rows: 100, bytes_max: 1 << 20, lease: Duration::from_secs(60) };

fn store() -> DispatchStore {
    DispatchStore::new("walrelay".to_owned())
}

fn at(commit_lsn: u64, tx_index: u32) -> Position {
    Position { commit_lsn: Lsn::new(commit_lsn), tx_index }
}

fn row<'a>(event_id: &'a str, position: Position, key: &'a str, status: ParkStatus) -> ParkRow<'a> {
    ParkRow {
        event_id,
        position,
        topic: TOPIC,
        ordering_key: key,
        message: event_id.as_bytes(),
        status,
        attempts: 3,
        error_code: (status != BEHIND).then_some("UNAVAILABLE"),
        last_error: (status != BEHIND).then_some("no route"),
    }
}

fn key(ordering_key: &str) -> Key<'_> {
    Key { topic: TOPIC, ordering_key }
}

fn ids(rows: &[ClaimedRow]) -> Vec<&str> {
    rows.iter().map(|row| row.claim.event_id()).collect()
}

async fn status_of(store: &DispatchStore, client: &Session, event_id: &str) -> DispatchStatus {
    store.show(client, event_id).await.expect("the row").row.status
}

#[tokio::test]
async fn what_is_parked_reads_back_as_it_was() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let rows = [
        row("a", at(0x1_0000_0005, 7), "k", LATER),
        row("b", at(0x1_0000_0009, 0), "k", BEHIND),
        row("c", at(0x1_0000_0001, 0), "", BEHIND),
        row("d", at(u64::MAX, i32::MAX.unsigned_abs()), "k2", ParkStatus::Dead),
    ];

    store.park(&mut session, &rows).await.unwrap();

    let shown = store.show(&session, "a").await.unwrap();
    assert_eq!(shown.message, b"a");
    assert_eq!(shown.row.position, at(0x1_0000_0005, 7));
    assert_eq!((shown.row.topic.as_str(), shown.row.ordering_key.as_str()), (TOPIC, "k"));
    assert_eq!((shown.row.status, shown.row.attempts), (DispatchStatus::Retrying, 3));
    assert_eq!(shown.row.error_code.as_deref(), Some("UNAVAILABLE"));
    let history = shown.row.last_error.unwrap();
    assert!(
        history.starts_with("attempt 3 at 2") && history.ends_with("Z: UNAVAILABLE: no route"),
        "{history}"
    );
    let behind = store.show(&session, "b").await.unwrap().row;
    assert_eq!((behind.next_attempt_at, behind.last_error), (None, None));
    let unordered = store.show(&session, "c").await.unwrap().row;
    assert!(unordered.next_attempt_at.is_some(), "an unordered row waits behind nothing");
    assert_eq!(store.show(&session, "d").await.unwrap().row.position, rows[3].position);
    let positions = store.recorded_since(&session, Lsn::new(0x1_0000_0005)).await.unwrap();
    assert_eq!(positions, [rows[0].position, rows[1].position, rows[3].position]);
}

#[tokio::test]
async fn parking_again_changes_nothing() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let first = [row("a", at(1, 0), "k", NOW)];
    store.park(&mut session, &first).await.unwrap();
    store.discard(&mut session, "a", "by hand").await.unwrap();

    store.park(&mut session, &first).await.unwrap();
    store.park(&mut session, &[first[0].clone(), first[0].clone()]).await.unwrap();

    assert_eq!(status_of(&store, &session, "a").await, DispatchStatus::Discarded);
    assert_eq!(store.recorded_since(&session, Lsn::ZERO).await.unwrap().len(), 1);
}

#[tokio::test]
async fn rows_that_share_an_event_id_are_all_recorded() {
    let (_database, mut session) = migrated().await;
    let store = store();
    store.park(&mut session, &[row("7", at(0x10, 0), "k", NOW)]).await.unwrap();
    // The third one's own id is what the second's would be next.
    let colliding = [
        row("7", at(0x20, 1), "k", NOW),
        row("7", at(0x30, 0), "k", NOW),
        row("7@0/20/1", at(0x40, 0), "k", NOW),
        row("7", at(0x20, 1), "k", NOW),
    ];

    store.park(&mut session, &colliding).await.unwrap();
    store.park(&mut session, &colliding).await.unwrap();

    let claimed = store.claim(&session, &[key("k")], LIMITS).await.unwrap();
    let positions: Vec<Position> = claimed.iter().map(|row| row.position).collect();
    assert_eq!(positions, [at(0x10, 0), at(0x20, 1), at(0x30, 0), at(0x40, 0)]);
    assert_eq!(claimed[0].claim.event_id(), "7");
    assert_eq!(claimed[2].claim.event_id(), "7@0/30/0");
}

#[tokio::test]
async fn texts_that_postgres_cannot_hold_do_not_stop_a_row() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let long: String = ["é"; 3000].concat();
    let noise = format!("broken \0 pipe\nsecond line {long}");
    let twins = [1, 2].map(|lsn| ParkRow {
        ordering_key: &long,
        last_error: Some(&noise),
        ..row(&long, at(lsn, 0), "", ParkStatus::Dead)
    });

    store.park(&mut session, &twins).await.unwrap();

    let listed =
        store.list(&session, &DispatchFilter { limit: 10, ..Default::default() }).await.unwrap();
    assert_eq!(listed.len(), 2);
    assert_ne!(listed[0].event_id, listed[1].event_id);
    let history = listed[0].last_error.as_deref().unwrap();
    assert!(history.contains("broken ? pipe second line é"), "{history}");
    assert!(history.len() <= 4096 && !history.contains('\n'));
    assert_eq!(store.show(&session, &listed[0].event_id).await.unwrap().message, long.as_bytes());
}

#[tokio::test]
async fn a_large_park_is_all_or_nothing() {
    let (database, mut session) = migrated().await;
    let store = store();
    let message = vec![7_u8; 5 << 20];
    let names: Vec<String> = (0..8).map(|n| format!("large {n}")).collect();
    let rows: Vec<ParkRow<'_>> = (1..)
        .zip(&names)
        .map(|(lsn, name)| ParkRow { message: &message, ..row(name, at(lsn, 0), "k", NOW) })
        .collect();
    // 40 MB make several statements; the last row is refused by a constraint of ours.
    session
        .run(
            "ALTER TABLE app_outbox_dispatch ADD CONSTRAINT no_seven CHECK (event_id <> 'large 7')",
        )
        .await;

    let refused = store.park(&mut session, &rows).await.unwrap_err();

    assert!(matches!(refused, StoreError::Sql { .. }), "{refused:?}");
    assert_eq!(store.counts(&session).await.unwrap().retrying, 0);
    store.park(&mut session, &rows[..7]).await.unwrap();
    assert_eq!(store.counts(&session).await.unwrap().retrying, 7);
    let few = ClaimLimits { bytes_max: 11 << 20, ..LIMITS };
    assert_eq!(store.claim(&session, &[key("k")], few).await.unwrap().len(), 2);
    drop(database);
}

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
    assert!(store.due_keys(&session, 10).await.unwrap().is_empty());
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
    let mut other = Session::on(&database).await;
    let lock = other.transaction().await.unwrap();
    let sql = "SELECT FROM app_outbox_dispatch WHERE event_id IN ('k 1', 'm 2', 'u 1') FOR UPDATE";
    lock.batch_execute(sql).await.unwrap();

    let claimed = store.claim(&session, &[key("k"), key("m"), key("")], LIMITS).await.unwrap();

    assert_eq!(ids(&claimed), ["u 2", "m 1"]);
    lock.rollback().await.unwrap();
    let rest = store.claim(&session, &[key("k"), key("m"), key("")], LIMITS).await.unwrap();
    // m waits for its head's lease.
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
        let client = Session::on(&database).await;
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

/// Claims and finishes until nothing is parked any more; notes what it claimed before it finishes it.
async fn publish_all(
    client: Session,
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
        let outcomes = all_published(claimed);
        let counted = store.finish(&client, &outcomes).await.expect("the outcomes are written");
        assert_eq!(usize::try_from(counted), Ok(outcomes.len()));
    }
}

fn all_published(claimed: Vec<ClaimedRow>) -> Vec<Outcome> {
    claimed
        .into_iter()
        .map(|row| Outcome::Published { claim: row.claim, message_id: "1".to_owned() })
        .collect()
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
    let failure = |text: &str| ("INTERNAL".to_owned(), text.to_owned());
    let outcomes = [
        Outcome::Published { claim: claim("published"), message_id: "42".to_owned() },
        Outcome::Retry {
            claim: claim("retry"),
            attempts: 4,
            next_attempt_in: Some(Duration::from_secs(100)),
            code: failure("").0,
            error: failure("again\nand again").1,
        },
        Outcome::Dead {
            claim: claim("dead"),
            attempts: 20,
            code: failure("").0,
            error: failure("no").1,
        },
        Outcome::Release { claim: claim("released") },
    ];

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
    // Written again, as after a lost reply, they no longer count.
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
        let outcome = Outcome::Retry {
            claim: claimed.into_iter().next().unwrap().claim,
            attempts: attempt,
            next_attempt_in: Some(Duration::ZERO),
            code: "INTERNAL".to_owned(),
            error: "x".repeat(error_bytes),
        };
        assert_eq!(store.finish(&session, &[outcome]).await.unwrap(), 1);
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
    let published = Outcome::Published { claim, message_id: "1".to_owned() };
    assert_eq!(store.finish(&session, &[published]).await.unwrap(), 0, "it was the old message");

    let claimed = store.claim(&session, &[key("k")], LIMITS).await.unwrap().remove(0);
    assert_eq!((claimed.message.as_slice(), claimed.attempts), (&b"better"[..], 0));
}

#[tokio::test]
async fn an_outcome_that_waited_for_an_operator_sees_what_he_did() {
    let (database, mut session) = migrated().await;
    let store = store();
    store.park(&mut session, &[row("a", at(1, 0), "k", NOW)]).await.unwrap();
    let claim = store.claim(&session, &[key("k")], LIMITS).await.unwrap().remove(0).claim;
    let mut operator = Session::on(&database).await;
    let editing = operator.transaction().await.unwrap();
    let sql = "UPDATE app_outbox_dispatch SET message = 'x', updated_at = clock_timestamp() WHERE event_id = 'a'";
    editing.batch_execute(sql).await.unwrap();

    let outcome = [Outcome::Published { claim, message_id: "1".to_owned() }];
    let finishing = store.finish(&session, &outcome);
    let committing = async {
        let watcher = Session::on(&database).await;
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

    let dead = |claim| Outcome::Dead { claim, attempts: 1, code: "x".into(), error: "y".into() };
    assert_eq!(store.finish(&session, &[dead(first)]).await.unwrap(), 0);
    assert_eq!(store.finish(&session, &[dead(second)]).await.unwrap(), 1);
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
    let summary: Vec<_> =
        parked.iter().map(|k| (k.ordering_key.as_str(), k.rows, k.dead_rows, k.is_held)).collect();
    assert_eq!(summary, [("", 1, 0, false), ("k", 2, 1, false), ("m", 0, 1, true)]);
    assert_eq!(flowing.parked_keys(&session).await.unwrap().len(), 2);

    let claimed = holding.claim(&session, &keys, LIMITS).await.unwrap();
    assert_eq!(ids(&claimed), ["unordered", "before"]);
    let outcomes = all_published(claimed);
    holding.finish(&session, &outcomes).await.unwrap();
    assert!(holding.due_keys(&session, 10).await.unwrap().is_empty(), "k is held");
    assert!(holding.claim(&session, &keys, LIMITS).await.unwrap().is_empty());
    assert_eq!(flowing.due_keys(&session, 10).await.unwrap().len(), 1);

    holding.discard(&mut session, "dead", "nobody needs it").await.unwrap();
    assert_eq!(holding.due_keys(&session, 10).await.unwrap().len(), 1);
    assert_eq!(ids(&holding.claim(&session, &keys, LIMITS).await.unwrap()), ["after"]);
}

#[tokio::test]
async fn discarding_the_head_wakes_what_waited_behind_it() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let rows = [row("head", at(1, 0), "k", LATER), row("behind", at(2, 0), "k", BEHIND)];
    store.park(&mut session, &rows).await.unwrap();

    store.discard(&mut session, "head", "wrong\nfrom the start").await.unwrap();

    let due = store.due_keys(&session, 10).await.unwrap();
    assert_eq!(
        due.iter().map(|k| (k.ordering_key.as_str(), k.rows)).collect::<Vec<_>>(),
        [("k", 1)]
    );
    let history = store.show(&session, "head").await.unwrap().row.last_error.unwrap();
    assert!(history.starts_with("discarded at 2"), "{history}");
    assert!(history.contains(": wrong from the start\nattempt 3 "), "{history}");
}

#[tokio::test]
async fn a_retry_reaches_what_stands_before_it() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let rows = [
        row("head", at(1, 0), "k", LATER),
        row("middle", at(2, 0), "k", LATER),
        row("dead", at(3, 0), "k", ParkStatus::Dead),
        row("other", at(4, 0), "m", LATER),
    ];
    store.park(&mut session, &rows).await.unwrap();

    let chosen = RetrySelection::Events(vec!["dead".to_owned()]);
    assert_eq!(store.retry(&mut session, &chosen).await.unwrap(), 1);

    let due = store.due_keys(&session, 10).await.unwrap();
    assert_eq!(due.iter().map(|k| k.ordering_key.as_str()).collect::<Vec<_>>(), ["k"]);
    let claimed = store.claim(&session, &[key("k"), key("m")], LIMITS).await.unwrap();
    assert_eq!(ids(&claimed), ["head", "middle", "dead"]);
    assert_eq!(claimed[2].attempts, 0, "a fresh budget");
}

#[tokio::test]
async fn retry_selects_all_dead_or_a_topic() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let elsewhere =
        ParkRow { topic: "projects/p/topics/other", ..row("b", at(2, 0), "k", ParkStatus::Dead) };
    let rows =
        [row("a", at(1, 0), "k", ParkStatus::Dead), elsewhere, row("c", at(3, 0), "m", LATER)];
    store.park(&mut session, &rows).await.unwrap();

    assert_eq!(
        store.retry(&mut session, &RetrySelection::Topic(TOPIC.to_owned())).await.unwrap(),
        2
    );
    assert_eq!(store.counts(&session).await.unwrap().dead, 1);
    assert_eq!(store.retry(&mut session, &RetrySelection::AllDead).await.unwrap(), 1);
    assert_eq!(store.due_keys(&session, 10).await.unwrap().len(), 3);
}

#[tokio::test]
async fn operators_are_refused_with_reasons_and_all_or_nothing() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let rows = [row("out", at(1, 0), "k", NOW), row("dead", at(2, 0), "m", ParkStatus::Dead)];
    store.park(&mut session, &rows).await.unwrap();
    let claim = store.claim(&session, &[key("k")], LIMITS).await.unwrap().remove(0).claim;
    let published = Outcome::Published { claim, message_id: "1".to_owned() };
    store.finish(&session, &[published]).await.unwrap();

    let both = RetrySelection::Events(vec!["dead".to_owned(), "out".to_owned()]);
    let retry_out = store.retry(&mut session, &both).await.unwrap_err();
    assert_eq!(
        retry_out.to_string(),
        "event \"out\" is already published; it can no longer be retried"
    );
    assert_eq!(status_of(&store, &session, "dead").await, DispatchStatus::Dead);
    let edit_out = store.edit(&mut session, "out", b"x").await.unwrap_err();
    assert!(
        matches!(edit_out, StoreError::AlreadyFinished { action: "edited", .. }),
        "{edit_out:?}"
    );
    store.discard(&mut session, "dead", "x").await.unwrap();
    let discard_again = store.discard(&mut session, "dead", "x").await.unwrap_err();
    assert!(
        matches!(discard_again, StoreError::AlreadyFinished { action: "discarded", .. }),
        "{discard_again:?}"
    );
    let show_nothing = store.show(&session, "nothing").await.unwrap_err();
    assert!(matches!(show_nothing, StoreError::UnknownEvent { .. }), "{show_nothing:?}");
    let discard_nothing = store.discard(&mut session, "nothing", "x").await.unwrap_err();
    assert!(
        discard_nothing.to_string().contains("\"walrelay\" holds no event \"nothing\""),
        "{discard_nothing}"
    );
    // What was discarded by mistake can be brought back.
    let back = RetrySelection::Events(vec!["dead".to_owned()]);
    assert_eq!(store.retry(&mut session, &back).await.unwrap(), 1);
    assert_eq!(status_of(&store, &session, "dead").await, DispatchStatus::Retrying);
}

#[tokio::test]
async fn operators_notify_the_relay() {
    let (database, mut session) = migrated().await;
    let store = store();
    store.park(&mut session, &[row("a", at(1, 0), "k", ParkStatus::Dead)]).await.unwrap();
    let config: tokio_postgres::Config = database.url().parse().unwrap();
    let (listener, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(first_notification(connection));
    listener.batch_execute("LISTEN walrelay_dispatch").await.unwrap();

    store.retry(&mut session, &RetrySelection::AllDead).await.unwrap();

    let waiting = tokio::time::timeout(Duration::from_secs(10), tasks.join_next());
    let told = waiting.await.expect("a notification").unwrap().unwrap().unwrap();
    assert_eq!((told.channel(), told.payload()), ("walrelay_dispatch", "walrelay"));
    drop(listener);
}

/// Drives the connection until a notification comes; None when the connection ends before.
async fn first_notification(
    mut connection: Connection<Socket, NoTlsStream>,
) -> Option<Notification> {
    loop {
        let message = poll_fn(|context| connection.poll_message(context)).await;
        if let AsyncMessage::Notification(told) = message?.ok()? {
            return Some(told);
        }
    }
}

#[tokio::test]
async fn each_slot_has_its_own_rows() {
    let (_database, mut session) = migrated().await;
    let (mine, theirs) = (store(), DispatchStore::new("other".to_owned()));
    mine.park(&mut session, &[row("a", at(1, 0), "k", NOW)]).await.unwrap();
    theirs.park(&mut session, &[row("a", at(2, 0), "k", ParkStatus::Dead)]).await.unwrap();

    assert_eq!(mine.retry(&mut session, &RetrySelection::AllDead).await.unwrap(), 0);
    assert_eq!(mine.due_keys(&session, 10).await.unwrap().len(), 1);
    assert!(theirs.due_keys(&session, 10).await.unwrap().is_empty());
    assert_eq!(mine.claim(&session, &[key("k")], LIMITS).await.unwrap()[0].position, at(1, 0));
    assert_eq!(theirs.counts(&session).await.unwrap().dead, 1);
}

#[tokio::test]
async fn lists_are_filtered_and_in_order() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let rows = [
        row("b", at(2, 0), "k", NOW),
        row("a", at(1, 0), "m", ParkStatus::Dead),
        row("c", at(3, 0), "k", ParkStatus::Dead),
    ];
    store.park(&mut session, &rows).await.unwrap();
    session.run("UPDATE app_outbox_dispatch SET parked_at = now() - interval '1 day' WHERE event_id = 'a'").await;
    let listed = async |filter: DispatchFilter| {
        let listed = store.list(&session, &filter).await.unwrap();
        listed.into_iter().map(|row| row.event_id).collect::<Vec<_>>()
    };
    let all = DispatchFilter { limit: 10, ..Default::default() };

    assert_eq!(listed(all.clone()).await, ["a", "b", "c"]);
    assert_eq!(listed(DispatchFilter { limit: 2, ..all.clone() }).await, ["a", "b"]);
    assert_eq!(
        listed(DispatchFilter { status: Some(DispatchStatus::Dead), ..all.clone() }).await,
        ["a", "c"]
    );
    assert_eq!(
        listed(DispatchFilter { ordering_key: Some("k".into()), ..all.clone() }).await,
        ["b", "c"]
    );
    let hour = Some(Duration::from_secs(3600));
    assert_eq!(listed(DispatchFilter { older_than: hour, ..all.clone() }).await, ["a"]);
    assert!(listed(DispatchFilter { topic: Some("elsewhere".into()), ..all }).await.is_empty());
}

#[tokio::test]
async fn pruning_removes_only_what_is_finished_old_and_confirmed() {
    let (database, mut session) = migrated().await;
    let slot = database.name().to_owned();
    let store = DispatchStore::new(slot.clone());
    let create = "SELECT lsn::text FROM pg_create_logical_replication_slot($1, 'pgoutput')";
    let confirmed: String = session.query_one(create, &[&slot]).await.unwrap().get(0);
    let confirmed: Lsn = confirmed.parse().unwrap();
    let before = at(confirmed.as_u64() - 1, 0);
    let rows = [
        row("old", before, "a", NOW),
        row("fresh", before, "b", NOW),
        row("unconfirmed", at(confirmed.as_u64(), 0), "c", NOW),
        row("retrying", before, "d", NOW),
        row("dead", before, "e", ParkStatus::Dead),
    ];
    store.park(&mut session, &rows).await.unwrap();
    for finished in ["old", "fresh", "unconfirmed"] {
        store.discard(&mut session, finished, "test").await.unwrap();
    }
    session.run("UPDATE app_outbox_dispatch SET updated_at = now() - interval '8 days' WHERE event_id <> 'fresh'").await;

    assert_eq!(store.prune(&session, Duration::from_secs(7 * 24 * 3600)).await.unwrap(), 1);

    let all = DispatchFilter { limit: 10, ..Default::default() };
    let left = store.list(&session, &all).await.unwrap();
    assert_eq!(left.len(), 4);
    assert!(left.iter().all(|row| row.event_id != "old"));
}

/// 100,000 rows, written in one statement; no `ANALYZE`, as just after an outage.
async fn fill(session: &Session, ordering_key: &str) {
    session
        .run(&format!(
            "INSERT INTO app_outbox_dispatch
               (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status, next_attempt_at)
             SELECT 'walrelay', 'e' || n, '0/1'::pg_lsn + n, 0, '{TOPIC}', {ordering_key}, repeat('x', 500)::bytea,
                    'retrying', CASE WHEN {ordering_key} = 'hot' AND n > 1 THEN NULL ELSE now() END
               FROM generate_series(1, 100000) AS n"
        ))
        .await;
}

/// Generous against a busy machine; a scan of the table per key takes far longer.
const FAST: Duration = Duration::from_secs(5);

async fn timed<T>(what: &str, work: impl Future<Output = Result<T, StoreError>>) -> T {
    let started = Instant::now();
    let value = work.await.expect(what);
    let elapsed = started.elapsed();
    assert!(elapsed < FAST, "{what} took {elapsed:?}");
    eprintln!("{what}: {elapsed:?}");
    value
}

#[tokio::test]
async fn a_key_with_a_hundred_thousand_rows_is_claimed_fast() {
    let (_database, session) = migrated().await;
    fill(&session, "'hot'").await;
    for store in [store(), store().with_on_dead(OnDead::Hold)] {
        let parked = timed("parked keys", store.parked_keys(&session)).await;
        assert_eq!((parked.len(), parked[0].rows), (1, 100_000));
        assert_eq!(timed("due keys", store.due_keys(&session, 100)).await.len(), 1);
        let claimed = timed("claim", store.claim(&session, &[key("hot")], LIMITS)).await;
        assert_eq!(claimed.len(), 100);
        let released: Vec<Outcome> =
            claimed.into_iter().map(|row| Outcome::Release { claim: row.claim }).collect();
        assert_eq!(timed("finish", store.finish(&session, &released)).await, 100);
        session
            .run("UPDATE app_outbox_dispatch SET next_attempt_at = now() WHERE event_id = 'e1'")
            .await;
    }
}

#[tokio::test]
async fn one_of_a_hundred_thousand_keys_is_claimed_fast() {
    let (_database, session) = migrated().await;
    fill(&session, "'k' || n").await;
    let store = store();
    assert_eq!(timed("parked keys", store.parked_keys(&session)).await.len(), 100_000);
    let due = timed("due keys", store.due_keys(&session, 500)).await;
    assert_eq!(due.len(), 500);
    let keys: Vec<Key<'_>> = due.iter().map(walrelay_postgres::ParkedKey::key).collect();
    let claimed = timed("claim", store.claim(&session, &keys, LIMITS)).await;
    assert_eq!(claimed.len(), 500);
    let published = all_published(claimed);
    assert_eq!(timed("finish", store.finish(&session, &published)).await, 500);
    assert_eq!(timed("counts", store.counts(&session)).await.retrying, 99_500);
}

#[tokio::test]
async fn a_claim_reads_little_more_than_it_takes() {
    let (_database, session) = migrated().await;
    fill(&session, "'hot'").await;
    let read = "SELECT (seq_tup_read + idx_tup_fetch)::text FROM pg_stat_xact_user_tables
                 WHERE relname = 'app_outbox_dispatch'";
    session.run("BEGIN").await;
    for store in [store(), store().with_on_dead(OnDead::Hold)] {
        let before: u64 = session.text(read).await.parse().unwrap();

        let claimed = store.claim(&session, &[key("hot")], LIMITS).await.unwrap();
        let released: Vec<Outcome> =
            claimed.into_iter().map(|row| Outcome::Release { claim: row.claim }).collect();
        assert_eq!(store.finish(&session, &released).await.unwrap(), 100);

        let after: u64 = session.text(read).await.parse().unwrap();
        assert!(after - before < 5_000, "{} rows read for 100", after - before);
    }
    session.run("ROLLBACK").await;
}
