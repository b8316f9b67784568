//! Parked rows are complete, unchanged, recorded once, and belong to their own slot.

use pgoutput_parser::Position;
use walrelay_core::{CallCode, Outcome};
use walrelay_outbox_store::{
    ClaimLimits, DispatchFilter, DispatchStatus, DispatchStore, ParkRow, ParkStatus, RecordedRow,
    RetrySelection, StoreError,
};
use walrelay_testkit::postgres::{TestClient, TestDatabase};

use super::rows::{
    BEHIND, LATER, LIMITS, NOW, TOPIC, all, at, due, failure, key, row, status_of, store,
};
use crate::support::{migrate_all, migrated};

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
    let recorded = store.recorded_from(&mut session, at(0x1_0000_0005, 0), 100).await.unwrap();
    let expected = [&rows[0], &rows[1], &rows[3]].map(|row| RecordedRow {
        position: row.position,
        event_id: row.event_id.to_owned(),
        parks: (row.status != ParkStatus::Dead)
            .then(|| (row.topic.to_owned(), row.ordering_key.to_owned())),
    });
    assert_eq!((recorded.rows.as_slice(), recorded.next), (expected.as_slice(), None));
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
    assert_eq!(store.recorded_from(&mut session, at(0, 0), 100).await.unwrap().rows.len(), 1);
}

#[tokio::test]
async fn recorded_rows_are_read_a_page_at_a_time_and_a_position_never_on_two_pages() {
    let (_database, mut session) = migrated().await;
    let store = store();
    let other_slot = DispatchStore::new("other".to_owned());
    other_slot.park(&mut session, &[row("x", at(1, 1), "k", NOW)]).await.unwrap();
    // Rows of another publication, which counts the transaction's rows differently.
    let places =
        [("a", at(1, 0)), ("b", at(1, 1)), ("c", at(1, 1)), ("d", at(1, 2)), ("e", at(9, 0))];
    let rows = places.map(|(id, position)| row(id, position, "k", NOW));
    store.park(&mut session, &rows).await.unwrap();
    store.discard(&mut session, "d", "by hand").await.unwrap();

    let (mut pages, mut next) = (Vec::new(), Some(at(0, 5)));
    while let Some(from) = next {
        let page = store.recorded_from(&mut session, from, 2).await.unwrap();
        let row = |row: &RecordedRow| {
            format!("{}{}", row.event_id, if row.parks.is_some() { "" } else { " finished" })
        };
        pages.push(page.rows.iter().map(row).collect::<Vec<_>>().join(","));
        next = page.next;
    }

    let of_the_tie = if pages[0].ends_with("b,c") { "a,b,c" } else { "a,c,b" };
    assert_eq!(pages, [of_the_tie, "d finished,e", ""]);
}

#[tokio::test]
async fn rows_that_share_an_event_id_are_all_recorded() {
    let (_database, mut session) = migrated().await;
    let store = store();
    store.park(&mut session, &[row("7", at(0x10, 0), "k", NOW)]).await.unwrap();
    // The third row's own id equals the next candidate for the second row.
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
    // 40 MB need several statements. A constraint refuses the last row.
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
async fn each_slot_has_its_own_rows() {
    let (_database, mut session) = migrated().await;
    let (mine, theirs) = (store(), DispatchStore::new("other".to_owned()));
    mine.park(&mut session, &[row("a", at(1, 0), "k", NOW)]).await.unwrap();
    theirs.park(&mut session, &[row("a", at(2, 0), "k", ParkStatus::Dead)]).await.unwrap();

    assert_eq!(mine.retry(&mut session, &RetrySelection::AllDead).await.unwrap(), 0);
    assert_eq!(due(&mine, &session).await.len(), 1);
    assert!(due(&theirs, &session).await.is_empty());
    assert_eq!(mine.claim(&session, &[key("k")], LIMITS).await.unwrap()[0].position, at(1, 0));
    assert_eq!(theirs.counts(&session).await.unwrap().dead, 1);
}

/// An error text from Pub/Sub may have any character, and some encodings lack some characters.
#[tokio::test]
async fn an_error_text_that_the_encoding_lacks_stops_no_row() {
    let database = TestDatabase::create().await;
    let session = database.connect().await;
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let name = format!("{}_{}", database.name(), encoding.to_lowercase());
        session
            .run(&format!(
                "CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}'
                   LC_COLLATE 'C' LC_CTYPE 'C'"
            ))
            .await;
        let mut config: tokio_postgres::Config = database.url().parse().unwrap();
        config.dbname(&name);
        let mut there = TestClient::open(&config).await.unwrap();
        migrate_all(&there).await;
        let store = store();
        let mut rejected = row("a", at(1, 0), "k", NOW);
        rejected.last_error = Some("key “ключ” is too long");
        store.park(&mut there, &[rejected]).await.unwrap();
        let claimed = store.claim(&there, &[key("k")], LIMITS).await.unwrap();
        let dead = Outcome::Dead {
            attempts: 4,
            failure: failure(CallCode::Internal, "nein – так нельзя"),
        };

        assert_eq!(store.finish(&there, &all(claimed, &dead)).await.unwrap(), 1);

        let history = store.show(&there, "a").await.unwrap().row.last_error.unwrap();
        assert!(history.contains("nein") && history.contains("is too long"), "{history}");
        drop(there);
        session.run(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
    }
}
