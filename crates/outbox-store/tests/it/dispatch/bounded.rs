//! The cost of the relay's frequent queries does not depend on the number of parked rows.

use std::time::Duration;

use walrelay_core::OnDead;
use walrelay_outbox_store::{DispatchStore, IncrementalCount};
use walrelay_testkit::postgres::{TestClient, TestDatabase};

use super::rows::{LIMITS, TOPIC, due, key, store};
use crate::support::migrate_all;

/// Inserts `rows` rows of every kind that could slow a query down, and one key that is due.
async fn fill(session: &TestClient, rows: u32) {
    let insert = |id: &str, key: &str, status: &str, time: &str| {
        format!(
            "INSERT INTO app_outbox_dispatch
               (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status,
                next_attempt_at, updated_at)
             SELECT 'walrelay', '{id}' || n, '0/1'::pg_lsn + n, 0, '{TOPIC}', {key}, 'message', '{status}',
                    {time}, now() - interval '1 day'
               FROM generate_series(1, {rows}) AS n;"
        )
    };
    let leased_head =
        "CASE n WHEN 1 THEN now() + interval '1 hour' ELSE now() - interval '1 hour' END";
    let held = "CASE n WHEN 1 THEN now() - interval '1 hour' END";
    session
        .run(
            &[
                insert("hot", "'hot'", "retrying", leased_head),
                insert("held", "'held'", "retrying", held),
                insert("quiet", "'quiet' || n", "retrying", "now() + interval '1 hour'"),
                insert("loose", "''", "retrying", "now() - interval '1 hour'"),
                insert("dead", "'other'", "dead", "NULL"),
                insert("published", "'done'", "published", "NULL"),
            ]
            .concat(),
        )
        .await;
    session
        .run(&format!(
            "INSERT INTO app_outbox_dispatch
               (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status, next_attempt_at)
             VALUES ('walrelay', 'before', '0/0', 0, '{TOPIC}', 'held', 'message', 'dead', NULL),
                    ('walrelay', 'fresh', '0/1', 0, '{TOPIC}', 'fresh', 'message', 'retrying', now())"
        ))
        .await;
}

/// Returns the buffers of the table and its indexes that the session has touched.
async fn buffers(session: &TestClient) -> u64 {
    let sql = "SELECT (heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::text
                 FROM pg_statio_user_tables WHERE relname = 'app_outbox_dispatch'";
    // Statistics of one command may be written with those of the next. Reading them touches no
    // buffer.
    let mut before = None;
    loop {
        session.run("SELECT pg_stat_force_next_flush()").await;
        let now: u64 = session.text(sql).await.parse().expect("a number");
        if before == Some(now) {
            return now;
        }
        before = Some(now);
    }
}

/// Dispatch state in normal operation, without pending rows. It is analyzed and then emptied.
const EMPTIED_TABLE: &str = "
INSERT INTO app_outbox_dispatch
  (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status)
SELECT 'walrelay', status || n, '0/1'::pg_lsn + n, 0, 'projects/p/topics/t', 'k-' || status, 'message', status
  FROM generate_series(1, 3000) AS n, unnest(ARRAY['dead', 'published']) AS status;
ANALYZE app_outbox_dispatch;
DELETE FROM app_outbox_dispatch;";

/// Returns the buffers that each command touches, with `rows` rows of each kind in the table.
async fn cost(
    database: &TestDatabase,
    rows: u32,
    before: &str,
    after: &str,
) -> Vec<(&'static str, u64)> {
    let session = database.connect().await;
    session.run("TRUNCATE app_outbox_dispatch").await;
    session.run(before).await;
    fill(&session, rows).await;
    session.run(after).await;
    let store = store().with_on_dead(OnDead::Hold);
    let mut costs = Vec::new();
    let mut touched = buffers(&session).await;
    let mut note = async |command| {
        let now = buffers(&session).await;
        costs.push((command, now - touched));
        touched = now;
    };
    store.parked(&session, &[key("hot"), key("held"), key("")]).await.expect("keys");
    note("parked").await;
    store.due_keys(&session, &[], 1_000).await.expect("due keys");
    note("due keys").await;
    store.due_keys(&session, &[TOPIC], 1_000).await.expect("due keys");
    note("due keys of other topics").await;
    store.claim(&session, &[key("hot"), key("held"), key("fresh")], LIMITS).await.expect("a claim");
    note("claim").await;
    store.count_further(&session, &mut IncrementalCount::default()).await.expect("counts");
    note("count").await;
    assert!(store.prune(&session, Duration::ZERO).await.expect("pruned") > 0);
    note("prune").await;
    costs
}

#[tokio::test]
async fn no_command_costs_more_where_more_is_parked() {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let session = database.connect().await;
    migrate_all(&session).await;
    // Autovacuum would add to the count, and its statistics would be another case.
    session.run("ALTER TABLE app_outbox_dispatch SET (autovacuum_enabled = off)").await;
    let analyze = "ANALYZE app_outbox_dispatch";
    for (name, before, after) in [
        ("never analyzed", "", ""),
        ("analyzed", "", analyze),
        ("analyzed when nothing was parked", EMPTIED_TABLE, ""),
    ] {
        let small = cost(&database, 3_000, before, after).await;
        let large = cost(&database, 30_000, before, after).await;
        assert_alike(name, &small, &large);
    }
}

fn assert_alike(server: &str, small: &[(&str, u64)], large: &[(&str, u64)]) {
    for ((command, few), (_, many)) in small.iter().zip(large) {
        eprintln!("{server} {command}: {few} {many} buffers");
        // An index of ten times the size has at most one more level. One step of a count reads a
        // thousand blocks, and the small table has fewer.
        let bound = (few * 2 + 100).max(1_100);
        assert!(*many <= bound, "{server}: {command} touches {many} buffers, not {few}");
    }
}

/// Returns which query finds the key, at most `looks`. Each query moves rows out of the way.
async fn found_within(store: &DispatchStore, session: &TestClient, looks: u32) -> u32 {
    for look in 1..=looks {
        let due = store.due_keys(session, &[], 1_000).await.expect("due keys");
        if due.keys.iter().any(|(_, ordering_key)| ordering_key == "fresh") {
            return look;
        }
        assert!(due.has_more, "it stopped looking");
    }
    panic!("not found in {looks} looks");
}

#[tokio::test]
async fn rows_that_are_due_behind_a_leased_head_hide_no_other_key_for_long() {
    let (_database, session) = crate::support::migrated().await;
    fill(&session, 5_000).await;
    let store = store();

    let looks = found_within(&store, &session, 7).await;

    assert!(looks > 1, "they were not in the way");
    let mut left = due(&store, &session).await;
    left.sort();
    assert_eq!(left, ["", "fresh", "held"]);
}

#[tokio::test]
async fn heads_that_dead_rows_hold_hide_no_other_key() {
    let (_database, session) = crate::support::migrated().await;
    let insert = |status: &str, lsn: u32, time: &str| {
        format!(
            "INSERT INTO app_outbox_dispatch
               (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status, next_attempt_at)
             SELECT 'walrelay', '{status}' || n, '0/{lsn}', n, '{TOPIC}', 'k' || n, 'message', '{status}', {time}
               FROM generate_series(1, 2500) AS n;"
        )
    };
    let earlier = "now() - interval '1 hour'";
    session.run(&(insert("dead", 1, "NULL") + &insert("retrying", 2, earlier))).await;
    session
        .run(&format!(
            "INSERT INTO app_outbox_dispatch
               (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status, next_attempt_at)
             VALUES ('walrelay', 'fresh', '0/1', 0, '{TOPIC}', 'fresh', 'message', 'retrying', now())"
        ))
        .await;
    let store = store().with_on_dead(OnDead::Hold);

    assert!(found_within(&store, &session, 4).await > 1, "they were not in the way");
}
