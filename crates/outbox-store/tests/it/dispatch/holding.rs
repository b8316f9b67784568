//! Keys that an in-place replay holds: when they are held, through which position, and which
//! history rows are inserted before the pending rows.

use pgoutput_parser::{Lsn, Position};
use walrelay_core::OnDead;
use walrelay_outbox_store::{
    DispatchStore, History, HistoryRow, HistorySource, KeyPauseCounts, ParkStatus,
};
use walrelay_testkit::postgres::TestClient;

use super::rows::{BEHIND, LIMITS, NOW, at, due, ids, key, row, store};
use crate::support::migrated;

/// Requests holds on these keys. Returns the replay that already has one of them.
async fn place(session: &mut TestClient, replay: &str, keys: &[&str]) -> Option<String> {
    let transaction = session.transaction().await.expect("a transaction");
    let keys: Vec<_> = keys.iter().map(|name| key(name)).collect();
    let other = store().request_pauses(&transaction, replay, &keys).await.expect("an answer");
    if other.is_none() {
        transaction.commit().await.expect("it is committed");
    }
    other
}

async fn lift(session: &mut TestClient, replay: &str) {
    let transaction = session.transaction().await.expect("a transaction");
    store().lift_pauses(&transaction, replay).await.expect("it goes on");
    transaction.commit().await.expect("it is committed");
}

/// Confirms the hold of `k` for a slot that nobody streams.
async fn answer(store: &DispatchStore, session: &TestClient, through: Position) -> u64 {
    store.answer_holds(session, &[key("k")], through, None).await.expect("an answer")
}

async fn add(
    session: &TestClient,
    rows: &[(Position, &'static str)],
    source: HistorySource,
) -> u64 {
    let row = |(at, id): &(Position, &'static str)| HistoryRow {
        position: *at,
        event_id: id,
        event_type: Some("made"),
        message: id.as_bytes(),
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    let history = History { key: key("k"), rows: &rows, source };
    store().add_history(session, "r1", history).await.expect("rows are added")
}

async fn held_through(session: &TestClient) -> String {
    session.text("SELECT commit_lsn || '#' || tx_index FROM app_outbox_hold").await
}

#[tokio::test]
async fn a_key_is_held_through_what_was_read_or_through_what_lies_before_the_first_row_that_waits()
{
    let dead_before = [row("dead", at(4, 0), "k", ParkStatus::Dead)];
    let waits = [row("waits", at(7, 2), "k", NOW), row("behind", at(8, 0), "k", BEHIND)];
    let cases: [(&[_], OnDead, &str); 4] = [
        (&[], OnDead::Continue, "0/9#5"),
        (&waits, OnDead::Continue, "0/7#1"),
        (&dead_before, OnDead::Continue, "0/9#5"),
        (&dead_before, OnDead::Hold, "0/4#-1"),
    ];
    for (rows, on_dead, expected) in cases {
        let (_database, mut session) = migrated().await;
        let store = store().with_on_dead(on_dead);
        store.park(&mut session, rows).await.unwrap();
        assert_eq!(place(&mut session, "r1", &["k"]).await, None);
        assert_eq!(answer(&store, &session, at(9, 5)).await, 1);
        assert_eq!(held_through(&session).await, expected);
        // A second confirmation does not change the position.
        assert_eq!(answer(&store, &session, at(20, 0)).await, 0);
        let holds = store.replay_holds(&session, "r1").await.unwrap();
        let through: Lsn = expected.split('#').next().unwrap().parse().unwrap();
        assert_eq!(holds, KeyPauseCounts { wanted: 0, held: 1, through });
    }
}

#[tokio::test]
async fn only_the_session_that_streams_the_slot_answers() {
    let (_database, mut session) = migrated().await;
    assert_eq!(place(&mut session, "r1", &["k"]).await, None);
    let answered = store().answer_holds(&session, &[key("k")], at(9, 0), Some(4_711)).await;
    assert_eq!(answered.unwrap(), 0);
    assert_eq!(store().replay_holds(&session, "r1").await.unwrap().wanted, 1);
}

/// During a recovery another session of the same process holds the slot.
#[tokio::test]
async fn the_session_of_a_recovery_answers_whoever_streams_the_slot() {
    let (_database, mut session) = migrated().await;
    assert_eq!(place(&mut session, "r1", &["k"]).await, None);
    let store = store().before(Lsn::new(100));
    let answered = store.answer_holds(&session, &[key("k")], at(9, 0), Some(4_711)).await;
    assert_eq!(answered.expect("an answer"), 1);
}

#[tokio::test]
async fn nothing_of_a_held_key_is_due_or_claimed_and_its_history_goes_first_when_it_is_lifted() {
    let (_database, mut session) = migrated().await;
    let store = store();
    store.park(&mut session, &[row("other", at(3, 0), "m", NOW)]).await.unwrap();
    assert_eq!(place(&mut session, "r1", &["k"]).await, None);
    assert_eq!(answer(&store, &session, at(9, 0)).await, 1);
    let spilled = |row| walrelay_outbox_store::ParkRow { error_code: Some("SPILLED"), ..row };
    let waits = [spilled(row("10", at(10, 0), "k", NOW)), row("11", at(11, 0), "k", BEHIND)];
    store.park(&mut session, &waits).await.unwrap();

    assert_eq!(due(&store, &session).await, ["m"]);
    let keys = [key("k"), key("m")];
    assert_eq!(ids(&store.claim(&session, &keys, LIMITS).await.unwrap()), ["other"]);
    assert!(store.read_spilled(&session, &keys, LIMITS).await.unwrap().is_empty());
    let told = store.parked_keys(&session).await.unwrap();
    assert!(told.iter().any(|told| told.ordering_key == "k" && told.is_held), "{told:?}");

    let history = [(at(5, 0), "5"), (at(6, 1), "6"), (at(9, 0), "9"), (at(9, 1), "behind")];
    assert_eq!(add(&session, &history[..2], HistorySource::Log).await, 2);
    assert_eq!(add(&session, &history, HistorySource::Log).await, 1, "once, and no further");
    lift(&mut session, "r1").await;

    assert_eq!(due(&store, &session).await, ["k"]);
    let first = store.claim(&session, &[key("k")], LIMITS).await.unwrap();
    assert_eq!(ids(&first), ["5@r1", "6@r1", "9@r1"]);
    assert_eq!(first[1].position, at(6, 1));
    let streamed_again = store.recorded_from(&mut session, at(0, 0), 10).await.unwrap();
    let known: Vec<_> = streamed_again.rows.iter().map(|row| row.event_id.as_str()).collect();
    assert_eq!(known, ["other", "10", "11"], "the slot does not send copies");
}

#[tokio::test]
async fn rows_that_a_replay_has_held_follow_its_copies_at_once_however_many_keys_it_held() {
    for on_dead in [OnDead::Continue, OnDead::Hold] {
        let (_database, mut session) = migrated().await;
        let store = store().with_on_dead(on_dead);
        assert_eq!(place(&mut session, "r1", &["k"]).await, None);
        assert_eq!(answer(&store, &session, at(9, 0)).await, 1);
        let waits = [row("10", at(10, 0), "k", NOW), row("11", at(11, 0), "k", BEHIND)];
        store.park(&mut session, &waits).await.unwrap();

        // The held key fills the result of each query until it has no due time.
        let crowded = store.due_keys(&session, &[], 1).await.unwrap();
        assert!(crowded.keys.is_empty() && crowded.has_more, "{crowded:?}");
        let free = store.due_keys(&session, &[], 1).await.unwrap();
        assert!(free.keys.is_empty() && !free.has_more, "{free:?}");

        assert_eq!(add(&session, &[(at(5, 0), "5")], HistorySource::Log).await, 1);
        lift(&mut session, "r1").await;
        assert_eq!(due(&store, &session).await, ["k"]);
        let claimed = store.claim(&session, &[key("k")], LIMITS).await.unwrap();
        assert_eq!(ids(&claimed), ["5@r1", "10", "11"], "{on_dead:?}");
    }
}

#[tokio::test]
async fn a_key_whose_replay_is_cancelled_continues_at_once_however_many_keys_it_held() {
    let (_database, mut session) = migrated().await;
    let store = store();
    assert_eq!(place(&mut session, "r1", &["k"]).await, None);
    assert_eq!(answer(&store, &session, at(9, 0)).await, 1);
    store.park(&mut session, &[row("10", at(10, 0), "k", NOW)]).await.unwrap();
    assert!(store.due_keys(&session, &[], 1).await.unwrap().has_more);
    assert_eq!(add(&session, &[(at(5, 0), "5")], HistorySource::Log).await, 1);

    let transaction = session.transaction().await.unwrap();
    assert_eq!(store.remove_replayed(&transaction, "r1").await.unwrap(), 1);
    transaction.commit().await.unwrap();
    lift(&mut session, "r1").await;
    assert_eq!(due(&store, &session).await, ["k"]);
    assert_eq!(ids(&store.claim(&session, &[key("k")], LIMITS).await.unwrap()), ["10"]);
}

#[tokio::test]
async fn rows_of_two_tables_with_one_id_are_both_history() {
    let (_database, mut session) = migrated().await;
    assert_eq!(place(&mut session, "r1", &["k"]).await, None);
    assert_eq!(answer(&store(), &session, at(9, 0)).await, 1);
    assert_eq!(add(&session, &[(at(1, 0), "7"), (at(2, 0), "7")], HistorySource::Log).await, 2);
    assert_eq!(add(&session, &[(at(3, 0), "7"), (at(1, 0), "7")], HistorySource::Log).await, 1);
    let ids = "SELECT string_agg(event_id, ' ' ORDER BY commit_lsn) FROM app_outbox_dispatch";
    assert_eq!(session.text(ids).await, "7@r1 7@0/2/0@r1 7@0/3/0@r1");
}

#[tokio::test]
async fn rows_of_the_table_that_wait_are_no_history_of_it() {
    let (_database, mut session) = migrated().await;
    let store = store();
    assert_eq!(place(&mut session, "r1", &["k"]).await, None);
    assert_eq!(answer(&store, &session, at(0x90, 0)).await, 1);
    store.park(&mut session, &[row("waits", at(0xA0, 0), "k", NOW)]).await.unwrap();
    let rows = [(at(1, 0), "gone"), (at(1, 1), "waits")];
    assert_eq!(add(&session, &rows, HistorySource::Table).await, 1);
    let transaction = session.transaction().await.unwrap();
    assert_eq!(store.remove_replayed(&transaction, "r1").await.unwrap(), 1);
    transaction.commit().await.unwrap();
    assert_eq!(
        session.text("SELECT string_agg(event_id, ' ') FROM app_outbox_dispatch").await,
        "waits"
    );
}

#[tokio::test]
async fn a_second_replay_of_a_key_is_refused_until_the_first_is_published() {
    let (_database, mut session) = migrated().await;
    assert_eq!(place(&mut session, "r1", &["k"]).await, None);
    let r1 = Some("r1".to_owned());
    assert_eq!(place(&mut session, "r2", &["free", "k"]).await, r1, "it is held");
    assert_eq!(answer(&store(), &session, at(9, 0)).await, 1);
    assert_eq!(add(&session, &[(at(1, 0), "1")], HistorySource::Log).await, 1);
    lift(&mut session, "r1").await;
    assert_eq!(place(&mut session, "r2", &["free", "k"]).await, r1, "a row is on its way");
    assert_eq!(session.text("SELECT count(*)::text FROM app_outbox_hold").await, "0");
    session.run("UPDATE app_outbox_dispatch SET status = 'published'").await;
    assert_eq!(place(&mut session, "r2", &["free", "k"]).await, None);
}
