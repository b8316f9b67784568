//! No operation is slow with a hundred thousand rows.

use std::time::{Duration, Instant};
use walrelay_testkit::postgres::TestClient;

use walrelay_core::OnDead;
use walrelay_outbox_store::{ClaimLimits, Key, StoreError};

use super::rows::{BEHIND, LIMITS, RELEASED, TOPIC, all, at, key, published, row, store};
use crate::support::migrated;

/// Inserts 100,000 rows with one statement, and without `ANALYZE`, as just after an outage.
/// Returns what no operation may take: three times the time of the insert. A table scan for each key
/// takes far longer, on any machine.
async fn fill(session: &TestClient, ordering_key: &str) -> Duration {
    let started = Instant::now();
    session
        .run(&format!(
            "INSERT INTO app_outbox_dispatch
               (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status, next_attempt_at)
             SELECT 'walrelay', 'e' || n, '0/1'::pg_lsn + n, 0, '{TOPIC}', {ordering_key}, repeat('x', 500)::bytea,
                    'retrying', CASE WHEN {ordering_key} = 'hot' AND n > 1 THEN NULL ELSE now() END
               FROM generate_series(1, 100000) AS n"
        ))
        .await;
    started.elapsed() * 3
}

async fn timed<T>(
    what: &str,
    limit: Duration,
    work: impl Future<Output = Result<T, StoreError>>,
) -> T {
    let started = Instant::now();
    let value = work.await.expect(what);
    let elapsed = started.elapsed();
    assert!(elapsed < limit, "{what} took {elapsed:?} of {limit:?}");
    eprintln!("{what}: {elapsed:?}");
    value
}

#[tokio::test]
async fn a_key_with_a_hundred_thousand_rows_is_claimed_fast() {
    let (_database, session) = migrated().await;
    let limit = fill(&session, "'hot'").await;
    for store in [store(), store().with_on_dead(OnDead::Hold)] {
        let parked = timed("parked keys", limit, store.parked_keys(&session)).await;
        assert_eq!(parked.len(), 1);
        assert_eq!(
            timed("due keys", limit, store.due_keys(&session, &[], 100)).await.keys.len(),
            1
        );
        let claimed = timed("claim", limit, store.claim(&session, &[key("hot")], LIMITS)).await;
        assert_eq!(claimed.len(), 100);
        let released = all(claimed, &RELEASED);
        assert_eq!(timed("finish", limit, store.finish(&session, &released)).await, 100);
        session
            .run("UPDATE app_outbox_dispatch SET next_attempt_at = now() WHERE event_id = 'e1'")
            .await;
    }
}

#[tokio::test]
async fn one_of_a_hundred_thousand_keys_is_claimed_fast() {
    let (_database, session) = migrated().await;
    let limit = fill(&session, "'k' || n").await;
    let store = store();
    assert_eq!(timed("parked keys", limit, store.parked_keys(&session)).await.len(), 100_000);
    let due = timed("due keys", limit, store.due_keys(&session, &[], 500)).await.keys;
    assert_eq!(due.len(), 500);
    let keys: Vec<Key<'_>> = due.iter().map(|(_, ordering_key)| key(ordering_key)).collect();
    let claimed = timed("claim", limit, store.claim(&session, &keys, LIMITS)).await;
    assert_eq!(claimed.len(), 500);
    let published = published();
    let published = all(claimed, &published);
    assert_eq!(timed("finish", limit, store.finish(&session, &published)).await, 500);
    assert_eq!(timed("counts", limit, store.counts(&session)).await.retrying, 99_500);
}

/// Statistics from a time without rows, which mislead the planner more than no statistics.
const EMPTY_STATISTICS: &str = "ANALYZE app_outbox_dispatch";

#[tokio::test]
async fn outcomes_of_ten_thousand_rows_are_written_fast_whatever_the_statistics_say() {
    for statistics in ["SELECT", EMPTY_STATISTICS] {
        let (_database, session) = migrated().await;
        session.run(statistics).await;
        session.run("ALTER TABLE app_outbox_dispatch SET (autovacuum_enabled = off)").await;
        let limit = fill(&session, "'k' || n % 50").await;
        let names: Vec<String> = (0..50).map(|n| format!("k{n}")).collect();
        let keys: Vec<Key<'_>> = names.iter().map(|name| key(name)).collect();
        let limits = ClaimLimits { per_key_rows: 200, bytes_max: 64 << 20, ..LIMITS };
        let claimed = timed("claim", limit, store().claim(&session, &keys, limits)).await;
        assert_eq!(claimed.len(), 10_000);
        let published = published();
        let outcomes = all(claimed, &published);
        assert_eq!(timed("finish", limit, store().finish(&session, &outcomes)).await, 10_000);
        assert_eq!(
            timed("again", limit, store().finish(&session, &outcomes)).await,
            0,
            "each once"
        );
    }
}

/// Number of rows that this transaction has read.
const ROWS_READ: &str = "SELECT (seq_tup_read + idx_tup_fetch)::text FROM pg_stat_xact_user_tables
                          WHERE relname = 'app_outbox_dispatch'";

/// Returns the number of rows that finished transactions have read.
async fn rows_read(session: &TestClient) -> u64 {
    session.run("SELECT pg_stat_force_next_flush()").await;
    let read = ROWS_READ.replace("pg_stat_xact_user_tables", "pg_stat_user_tables");
    session.text(&read).await.parse().expect("a number")
}

#[tokio::test]
async fn reading_what_is_recorded_page_by_page_reads_each_row_once() {
    let (_database, mut session) = migrated().await;
    let limit = fill(&session, "'hot'").await;
    let before = rows_read(&session).await;
    let (mut rows, mut next) = (0, Some(at(0, 0)));
    while let Some(from) = next {
        let page = timed("a page", limit, store().recorded_from(&mut session, from, 2_000)).await;
        rows += page.rows.len();
        next = page.next;
    }
    let read = rows_read(&session).await - before;
    assert_eq!(rows, 100_000);
    assert!(read < 110_000, "{read} rows read for 100,000");
}

#[tokio::test]
async fn recording_rows_beside_a_hundred_thousand_parked_keys_reads_none_of_those() {
    let (_database, mut session) = migrated().await;
    let limit = fill(&session, "'k' || n").await;
    let names: Vec<String> = (0..2_000).map(|n| format!("new {n}")).collect();
    let rows: Vec<_> =
        (1_000_000..).zip(&names).map(|(lsn, name)| row(name, at(lsn, 0), name, BEHIND)).collect();
    let before = rows_read(&session).await;
    timed("park", limit, store().park(&mut session, &rows)).await;
    let read = rows_read(&session).await - before;
    assert!(read < 10_000, "{read} rows read to record 2,000");
}

#[tokio::test]
async fn outcomes_of_a_few_thousand_of_a_hundred_thousand_rows_read_only_those() {
    let (_database, session) = migrated().await;
    let limit = fill(&session, "'k' || n").await;
    session
        .run("UPDATE app_outbox_dispatch SET error_code = 'SPILLED' WHERE commit_lsn < '0/800'")
        .await;
    let names: Vec<String> = (1..=2_000).map(|n| format!("k{n}")).collect();
    let spilled: Vec<Key<'_>> = names.iter().map(|name| key(name)).collect();
    let others: Vec<String> = (3_000..5_000).map(|n| format!("k{n}")).collect();
    let others: Vec<Key<'_>> = others.iter().map(|name| key(name)).collect();
    let limits = ClaimLimits { bytes_max: 64 << 20, ..LIMITS };
    let mut rows = store().read_spilled(&session, &spilled, limits).await.unwrap();
    rows.extend(store().claim(&session, &others, limits).await.unwrap());
    let published = published();
    let outcomes = all(rows, &published);
    let before = rows_read(&session).await;
    let settled = at(u64::MAX, 0).commit_lsn;
    let written =
        timed("outcomes", limit, store().finish_before(&session, &outcomes, settled)).await;
    let read = rows_read(&session).await - before;
    assert_eq!(written, 4_000);
    assert!(read < 30_000, "{read} rows read to write 4,000 outcomes");
}

#[tokio::test]
async fn a_claim_reads_little_more_than_it_takes() {
    let (_database, session) = migrated().await;
    fill(&session, "'hot'").await;
    let read = ROWS_READ;
    session.run("BEGIN").await;
    for store in [store(), store().with_on_dead(OnDead::Hold)] {
        let before: u64 = session.text(read).await.parse().unwrap();

        let claimed = store.claim(&session, &[key("hot")], LIMITS).await.unwrap();
        let released = all(claimed, &RELEASED);
        assert_eq!(store.finish(&session, &released).await.unwrap(), 100);

        let after: u64 = session.text(read).await.parse().unwrap();
        assert!(after - before < 5_000, "{} rows read for 100", after - before);
    }
    session.run("ROLLBACK").await;
}
