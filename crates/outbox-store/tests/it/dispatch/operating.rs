//! Operators retry, discard, edit, list and prune, and the relay is notified.

use std::future::poll_fn;
use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::task::JoinSet;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{AsyncMessage, Connection, Notification, Socket};
use walrelay_outbox_store::{
    DispatchFilter, DispatchQuery, DispatchStatus, DispatchStore, ParkRow, ParkStatus,
    RetrySelection, StateFilter, StoreError,
};

use super::rows::{
    BEHIND, LATER, LIMITS, NOW, TOPIC, at, due, ids, key, published, row, status_of, store,
};
use crate::support::migrated;

#[tokio::test]
async fn discarding_the_head_wakes_what_waited_behind_it() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let rows = [row("head", at(1, 0), "k", LATER), row("behind", at(2, 0), "k", BEHIND)];
    store.park(&mut session, &rows).await.unwrap();

    store.discard(&mut session, "head", "wrong\nfrom the start").await.unwrap();

    assert_eq!(due(&store, &session).await, ["k"]);
    let history = store.show(&session, "head").await.unwrap().row.last_error.unwrap();
    assert!(history.starts_with("discarded at 2"), "{history}");
    assert!(history.contains(": wrong from the start\nattempt 3 "), "{history}");
}

#[tokio::test]
async fn rows_that_are_parked_later_are_not_gone_through_with_those_that_were_counted() {
    let (_database, mut session) = migrated().await;
    let store = store();
    store.park(&mut session, &[row("before", at(1, 0), "k", LATER)]).await.unwrap();
    let moment = store.moment(&session).await.unwrap();
    store.park(&mut session, &[row("after", at(2, 0), "l", LATER)]).await.unwrap();

    let all = DispatchQuery { state: StateFilter::Open, ..DispatchQuery::default() };
    let counted = DispatchQuery { until: Some(moment), ..all.clone() };
    let old = DispatchQuery { older_than: Some(Duration::from_secs(60)), ..counted.clone() };
    for (query, expected) in
        [(&all, vec!["before", "after"]), (&counted, vec!["before"]), (&old, vec![])]
    {
        let page = store.page(&session, query, None, 10).await.unwrap();
        let found: Vec<_> = page.iter().map(|row| row.event_id.as_str()).collect();
        assert_eq!(found, expected);
        assert_eq!(store.count(&session, query).await.unwrap(), expected.len() as u64);
    }
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

    assert_eq!(due(&store, &session).await, ["k"]);
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
    assert_eq!(due(&store, &session).await.len(), 3);
}

#[tokio::test]
async fn operators_are_refused_with_reasons_and_all_or_nothing() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let rows = [row("out", at(1, 0), "k", NOW), row("dead", at(2, 0), "m", ParkStatus::Dead)];
    store.park(&mut session, &rows).await.unwrap();
    let claim = store.claim(&session, &[key("k")], LIMITS).await.unwrap().remove(0).claim;
    store.finish(&session, &[(claim, &published())]).await.unwrap();

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
        discard_nothing.to_string().contains("\"walrelay\" has no event \"nothing\""),
        "{discard_nothing}"
    );
    // A row that was discarded by mistake can be restored.
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

/// Drives the connection until a notification arrives. None if the connection ends first.
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
