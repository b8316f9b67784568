//! Reading spilled rows back writes nothing, and they are deleted once they are stored.

use std::time::Duration;

use pgoutput_parser::Lsn;
use walrelay_core::{CallCode, FailureCause, OnDead, Outcome};
use walrelay_outbox_store::{
    ClaimLimits, ClaimedRow, DispatchStatus, DispatchStore, ParkRow, ParkStatus,
};
use walrelay_testkit::postgres::TestClient;

use super::rows::{
    BEHIND, LIMITS, NOW, RELEASED, TOPIC, all, at, failure, ids, key, published, row, status_of,
    store,
};
use crate::support::migrated;

/// Returns the row, recorded as spilled because too much WAL was retained.
fn spilled(row: ParkRow<'_>) -> ParkRow<'_> {
    ParkRow { error_code: Some("SPILLED"), last_error: None, attempts: 0, ..row }
}

/// Parks a key with two spilled rows, one row queued behind them, and one more spilled row.
async fn park_mixed(store: &DispatchStore, session: &mut TestClient) {
    let rows = [
        spilled(row("a", at(1, 0), "k", NOW)),
        spilled(row("b", at(2, 0), "k", BEHIND)),
        row("c", at(3, 0), "k", BEHIND),
        spilled(row("d", at(4, 0), "k", BEHIND)),
    ];
    store.park(session, &rows).await.expect("they are recorded");
}

async fn read(store: &DispatchStore, session: &TestClient) -> Vec<ClaimedRow> {
    store.read_spilled(session, &[key("k"), key("")], LIMITS).await.expect("they are read")
}

async fn rows_left(session: &TestClient) -> String {
    session.text("SELECT coalesce(string_agg(event_id, ' ' ORDER BY event_id), '') FROM app_outbox_dispatch").await
}

#[tokio::test]
async fn spilled_rows_are_read_up_to_one_that_was_not_and_nothing_is_written() {
    let (_database, mut session) = migrated().await;
    let store = store();
    park_mixed(&store, &mut session).await;
    let versions = "SELECT string_agg(concat_ws(' ', ctid, xmin, xmax, next_attempt_at), ', ' ORDER BY event_id)
                      FROM app_outbox_dispatch";
    let before = session.text(versions).await;

    assert_eq!(ids(&read(&store, &session).await), ["a", "b"]);
    assert!(store.claim(&session, &[key("k")], LIMITS).await.unwrap().is_empty());
    let released = all(read(&store, &session).await, &RELEASED);
    assert_eq!(store.finish_before(&session, &released, Lsn::ZERO).await.unwrap(), 0);

    assert_eq!(session.text(versions).await, before);
    let shown = store.show(&session, "a").await.unwrap().row;
    assert_eq!((shown.error_code.as_deref(), shown.last_error), (Some("SPILLED"), None));
}

#[tokio::test]
async fn a_spilled_row_that_is_stored_is_gone_once_the_slot_is_past_it() {
    let (_database, mut session) = migrated().await;
    let store = store();
    park_mixed(&store, &mut session).await;
    let published = published();
    let outcomes = all(read(&store, &session).await, &published);

    assert_eq!(store.finish_before(&session, &outcomes, Lsn::new(2)).await.unwrap(), 2);
    assert_eq!(rows_left(&session).await, "b c d");
    assert_eq!(status_of(&store, &session, "b").await, DispatchStatus::Published);
    let recorded = store.recorded_from(&mut session, at(0, 0), 100).await.unwrap();
    let positions: Vec<_> = recorded.rows.iter().map(|recorded| recorded.position).collect();
    assert_eq!(positions, [at(2, 0), at(3, 0), at(4, 0)], "the slot may send it again");
    // A later session finds the row if this one is killed here.
    let stored = store.stored_spilled(&session).await.unwrap();
    assert_eq!(stored, Some((Lsn::new(2), Lsn::new(2))));

    let to = |lsn| (Lsn::ZERO, Lsn::new(lsn));
    for (lsn, left) in [(2, "b c d"), (3, "c d")] {
        let (from, settled) = to(lsn);
        let further = store.delete_spilled_between(&session, from, settled).await.unwrap();
        assert_eq!((further, rows_left(&session).await.as_str()), (None, left));
    }
    assert_eq!(store.stored_spilled(&session).await.unwrap(), None);
    let claimed = store.claim(&session, &[key("k")], LIMITS).await.unwrap();
    assert_eq!(ids(&claimed), ["c"], "up to one that was spilled");
    let behind = all(claimed, &published);
    assert_eq!(store.finish_before(&session, &behind, Lsn::new(9)).await.unwrap(), 1);
    assert_eq!(rows_left(&session).await, "c d", "what was tried and failed is kept");
    assert_eq!(ids(&read(&store, &session).await), ["d"]);
}

#[tokio::test]
async fn a_stored_row_is_gone_although_it_was_moved_in_the_table_meanwhile() {
    for moved in [
        "VACUUM FULL app_outbox_dispatch",
        "UPDATE app_outbox_dispatch SET next_attempt_at = now()",
    ] {
        let (_database, mut session) = migrated().await;
        let store = store();
        park_mixed(&store, &mut session).await;
        // The free space before the rows makes a rewrite move them.
        session.run("DELETE FROM app_outbox_dispatch WHERE event_id = 'a'").await;
        let published = published();
        let outcomes = all(read(&store, &session).await, &published);

        session.run(moved).await;

        assert_eq!(
            store.finish_before(&session, &outcomes, Lsn::new(9)).await.unwrap(),
            1,
            "{moved}"
        );
        assert_eq!(rows_left(&session).await, "c d", "{moved}");
    }
}

#[tokio::test]
async fn a_row_that_lies_where_a_stored_one_was_read_stays() {
    let (_database, mut session) = migrated().await;
    let store = store();
    store.park(&mut session, &[spilled(row("a", at(1, 0), "k", NOW))]).await.unwrap();
    let place = "SELECT ctid::text FROM app_outbox_dispatch";
    let before = session.text(place).await;
    let published = published();
    let outcomes = all(read(&store, &session).await, &published);

    session.run("DELETE FROM app_outbox_dispatch").await;
    session.run("VACUUM app_outbox_dispatch").await;
    store.park(&mut session, &[spilled(row("b", at(2, 0), "k", NOW))]).await.unwrap();
    session.run("UPDATE app_outbox_dispatch SET updated_at = 'epoch'").await;
    session.run("VACUUM FULL app_outbox_dispatch").await;
    assert_eq!(session.text(place).await, before, "there is another row now");

    assert_eq!(store.finish_before(&session, &outcomes, Lsn::new(9)).await.unwrap(), 0);
    assert_eq!(rows_left(&session).await, "b");
}

#[tokio::test]
async fn rows_without_a_key_are_leased_and_deleted_alike() {
    let (_database, mut session) = migrated().await;
    let store = store();
    store.park(&mut session, &[spilled(row("a", at(1, 0), "", NOW))]).await.unwrap();

    assert!(read(&store, &session).await.is_empty());
    let claimed = store.claim(&session, &[key("")], LIMITS).await.unwrap();
    assert_eq!(ids(&claimed), ["a"]);
    assert!(store.claim(&session, &[key("")], LIMITS).await.unwrap().is_empty());
    let published = published();
    let outcomes = all(claimed, &published);
    assert_eq!(store.finish_before(&session, &outcomes, Lsn::new(9)).await.unwrap(), 1);
    assert_eq!(rows_left(&session).await, "");
}

#[tokio::test]
async fn what_an_operator_does_to_a_spilled_row_on_its_way_is_not_lost() {
    let (_database, mut session) = migrated().await;
    let store = store();
    park_mixed(&store, &mut session).await;
    let on_their_way = read(&store, &session).await;
    store.edit(&mut session, "a", b"better").await.unwrap();
    store.discard(&mut session, "b", "by hand").await.unwrap();

    let published = published();
    let outcomes = all(on_their_way, &published);
    assert_eq!(store.finish_before(&session, &outcomes, Lsn::new(9)).await.unwrap(), 0);

    assert_eq!(rows_left(&session).await, "a b c d");
    assert_eq!(status_of(&store, &session, "b").await, DispatchStatus::Discarded);
    let claimed = store.claim(&session, &[key("k")], LIMITS).await.unwrap();
    assert_eq!(ids(&claimed), ["a", "c"]);
    assert_eq!(claimed[0].message, b"better");
}

#[tokio::test]
async fn a_spilled_row_that_fails_in_an_outage_stays_one_and_backs_off() {
    let (_database, mut session) = migrated().await;
    let store = store();
    park_mixed(&store, &mut session).await;
    let after_an_hour = failed(Duration::from_secs(3_600), FailureCause::Nobody);
    let claim = read(&store, &session).await.remove(0).claim;
    store.finish_before(&session, &[(claim, &after_an_hour)], Lsn::new(9)).await.unwrap();
    assert!(read(&store, &session).await.is_empty(), "it is not due");

    session.execute("UPDATE app_outbox_dispatch SET next_attempt_at = now()", &[]).await.unwrap();
    assert_eq!(ids(&read(&store, &session).await), ["a", "b"]);
    let row = store.show(&session, "a").await.unwrap().row;
    assert_eq!((row.error_code.as_deref(), row.attempts), (Some("SPILLED"), 0));
    assert!(row.last_error.unwrap().contains("no route"), "the history has it");
}

#[tokio::test]
async fn spilled_rows_wait_until_they_are_stored_have_failed_themselves_or_need_a_person() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let waits = async |client: &TestClient, before: u64| {
        store.has_spilled_before(client, Lsn::new(before)).await.unwrap()
    };
    assert!(!waits(&session, 9).await, "there is nothing");
    park_mixed(&store, &mut session).await;
    assert!(waits(&session, 9).await && waits(&session, 2).await);
    assert!(!waits(&session, 1).await, "it was committed later");

    let dead = ParkRow { status: ParkStatus::Dead, ..row("dead", at(0, 5), "k", NOW) };
    store.park(&mut session, &[dead]).await.unwrap();
    assert!(waits(&session, 9).await, "dead rows hold nothing by default");
    let holding = store.clone().with_on_dead(OnDead::Hold);
    assert!(!holding.has_spilled_before(&session, Lsn::new(9)).await.unwrap());

    let claim = read(&store, &session).await.remove(0).claim;
    let by_itself = failed(Duration::ZERO, FailureCause::Row);
    store.finish_before(&session, &[(claim, &by_itself)], Lsn::new(9)).await.unwrap();
    assert!(!waits(&session, 9).await, "it has had its turn, and those behind it");

    let loose = [row("x", at(5, 0), "", NOW), spilled(row("y", at(6, 0), "", NOW))];
    store.park(&mut session, &loose).await.unwrap();
    assert!(waits(&session, 9).await && !waits(&session, 6).await);
}

fn failed(after: Duration, blame: FailureCause) -> Outcome {
    let failure = Some(failure(CallCode::Unavailable, "no route"));
    Outcome::Again { attempts: 0, after: Some(after), failure, blame }
}

#[tokio::test]
async fn the_last_failure_of_spilled_rows_and_of_topics_that_wait_for_an_operator_is_counted() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let waiting = async |client: &TestClient| store.counts(client).await.unwrap().waiting;
    let sick = row("sick", at(1, 0), "s", NOW);
    store.park(&mut session, &[sick, spilled(row("a", at(2, 0), "k", NOW))]).await.unwrap();
    let none = waiting(&session).await;
    assert_eq!(
        (none.spilled, none.refused_at, &none.refused),
        (1, None, &None),
        "not one sick key"
    );

    // A failure without an answer, as of calls that are abandoned before a spill.
    let unanswered = ParkRow {
        failed_with: Some("DEADLINE_EXCEEDED"),
        last_error: Some("no answer"),
        ..spilled(row("b", at(3, 0), "l", NOW))
    };
    store.park(&mut session, &[unanswered]).await.unwrap();
    let no_answer = waiting(&session).await;
    assert!(no_answer.refused_at.is_some());
    assert_eq!(no_answer.refused_at, no_answer.unanswered_at);
    assert_eq!(no_answer.refused, None);

    // A missing permission changes the row's code, so the row is no longer spilled.
    let claim = read(&store, &session).await.remove(0).claim;
    let denied = Outcome::Again {
        attempts: 0,
        after: Some(Duration::from_secs(9)),
        failure: Some(failure(CallCode::PermissionDenied, "no: right")),
        blame: FailureCause::Row,
    };
    store.finish_before(&session, &[(claim, &denied)], Lsn::new(9)).await.unwrap();
    let refused = waiting(&session).await;
    assert!(refused.refused_at > refused.unanswered_at, "{refused:?}");
    let last = refused.refused.unwrap();
    assert_eq!((last.topic.as_str(), last.code.as_str()), (TOPIC, "PERMISSION_DENIED"));

    let later = "UPDATE app_outbox_dispatch SET updated_at = updated_at - interval '2 minutes'";
    session.execute(later, &[]).await.unwrap();
    let over = waiting(&session).await;
    assert_eq!((over.refused_at, over.unanswered_at, over.refused), (None, None, None));
}

#[tokio::test]
async fn a_spilled_row_that_fails_by_itself_is_one_like_any_other() {
    let (_database, mut session) = migrated().await;
    let store = store();
    park_mixed(&store, &mut session).await;
    let claim = read(&store, &session).await.remove(0).claim;
    let again = Outcome::Again {
        attempts: 1,
        after: Some(Duration::ZERO),
        failure: Some(failure(CallCode::Unavailable, "no route")),
        blame: FailureCause::Row,
    };
    assert_eq!(store.finish_before(&session, &[(claim, &again)], Lsn::new(9)).await.unwrap(), 1);

    assert!(read(&store, &session).await.is_empty(), "it stands before the others");
    let claimed = store.claim(&session, &[key("k")], LIMITS).await.unwrap();
    assert_eq!((ids(&claimed), claimed[0].attempts), (vec!["a"], 1));
}

#[tokio::test]
async fn of_the_bytes_every_key_has_its_share_and_a_larger_first_row_what_is_left() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let rows: Vec<_> =
        (0..3_u64).flat_map(|n| ["k", "l"].map(|key| (format!("{key}{n}"), key, n + 1))).collect();
    let rows: Vec<_> =
        rows.iter().map(|(id, key, lsn)| spilled(row(id, at(*lsn, 0), key, NOW))).collect();
    store.park(&mut session, &rows).await.unwrap();
    for (bytes_max, expected) in
        [(1, vec!["k0"]), (3, vec!["k0"]), (4, vec!["k0", "l0"]), (8, vec!["k0", "k1", "l0", "l1"])]
    {
        let limits = ClaimLimits { bytes_max, ..LIMITS };
        let read = store.read_spilled(&session, &[key("k"), key("l")], limits).await.unwrap();
        assert_eq!(ids(&read), expected);
    }
}

#[tokio::test]
async fn a_row_too_large_for_its_share_is_not_passed_by_those_behind_it() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let rows = [
        spilled(row("k-large", at(1, 0), "k", NOW)),
        spilled(row("k1", at(2, 0), "k", NOW)),
        spilled(row("l0", at(3, 0), "l", NOW)),
        spilled(row("l-large", at(4, 0), "l", NOW)),
        spilled(row("l2", at(5, 0), "l", NOW)),
    ];
    store.park(&mut session, &rows).await.unwrap();
    for (bytes_max, expected) in
        [(8, vec!["l0"]), (9, vec!["k-large", "l0"]), (18, vec!["k-large", "k1", "l0", "l-large"])]
    {
        let limits = ClaimLimits { bytes_max, ..LIMITS };
        let read = store.read_spilled(&session, &[key("k"), key("l")], limits).await.unwrap();
        assert_eq!(ids(&read), expected, "{bytes_max} bytes");
    }
}
