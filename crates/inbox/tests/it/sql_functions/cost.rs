//! The cost of an event does not depend on table sizes or planner statistics. The tests count
//! pages, which do not depend on the machine's load.

use super::messages::{Message, array, event};
use super::world::{InboxDatabase, SET, world};
use walrelay_testkit::postgres::TestClient;

/// Returns the number of pages that this statement touches.
async fn pages(session: &TestClient, sql: &str) -> u64 {
    let sql = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF, FORMAT JSON) {sql}");
    let row = session.query_one(&sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let plan: Json = row.get(0);
    let count = |name: &str| -> u64 {
        let (_, rest) = plan.0.split_once(&format!("\"{name}\": ")).expect(name);
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next().expect("a number");
        digits.parse().expect("a number")
    };
    count("Shared Hit Blocks") + count("Shared Read Blocks")
}

/// The text of a JSON value. Its first counters belong to the whole statement.
struct Json(String);

impl<'a> tokio_postgres::types::FromSql<'a> for Json {
    fn from_sql(
        _: &tokio_postgres::types::Type,
        raw: &'a [u8],
    ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(String::from_utf8(raw.to_vec())?))
    }

    fn accepts(kind: &tokio_postgres::types::Type) -> bool {
        *kind == tokio_postgres::types::Type::JSON
    }
}

const BATCH: u32 = 100;
/// A deeper tree costs a page or two for each lookup, but reading the table costs hundreds.
const GROWTH_MAX: u64 = 3;

fn batch(first: u32, keys: &str) -> Vec<Message> {
    (first..first + BATCH).map(|n| event(n, &format!("{keys}{n}"))).collect()
}

fn apply(messages: &[Message]) -> String {
    format!(
        "SELECT * FROM app_inbox_apply('c', 1, 'nothing(app_inbox_event[])', {})",
        array(messages)
    )
}

/// Inserts 50,000 rows into each table, as after months of work, without updating the statistics.
async fn grow(world: &InboxDatabase) {
    world
        .run(
            "INSERT INTO app_inbox (consumer, generation, event_id, ordering_key, status)
               SELECT 'c', 1, 'old' || n, 'old' || n, 'done' FROM generate_series(1, 50000) AS n;
             INSERT INTO app_inbox_key (consumer, generation, ordering_key)
               SELECT 'c', 1, 'old' || n FROM generate_series(1, 50000) AS n",
        )
        .await;
}

async fn prepare(world: &InboxDatabase) {
    world
        .run(
            "CREATE FUNCTION nothing(app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS 'BEGIN END';
             ALTER TABLE app_inbox SET (autovacuum_enabled = off);
             ALTER TABLE app_inbox_key SET (autovacuum_enabled = off)",
        )
        .await;
}

#[tokio::test]
async fn applying_costs_the_same_on_empty_unanalysed_and_large_tables() {
    let Some(world) = world().await else { return };
    prepare(&world).await;
    // This session plans on empty tables, and the next on analyzed tables with a few rows. Both
    // keep their plans while the tables grow.
    let early = world.session().await;
    for n in 0..3 {
        pages(&early, &apply(&batch(n * BATCH, "new"))).await;
    }
    let small = pages(&early, &apply(&batch(1000, "new"))).await;
    let seen = pages(&early, &apply(&batch(1000, "new"))).await;
    world.run("ANALYZE app_inbox, app_inbox_key").await;
    let analysed = world.session().await;
    pages(&analysed, &apply(&batch(1200, "new"))).await;

    grow(&world).await;

    let fresh = world.session().await;
    world.run("ANALYZE app_inbox, app_inbox_key").await;
    let late = world.session().await;
    let sessions = [("early", early), ("analysed", analysed), ("fresh", fresh), ("late", late)];
    for ((name, session), n) in sessions.into_iter().zip(2..) {
        pages(&session, &apply(&batch(n * 1000, "new"))).await;
        let large = pages(&session, &apply(&batch(n * 1000 + BATCH, "new"))).await;
        let again = pages(&session, &apply(&batch(n * 1000 + BATCH, "new"))).await;
        eprintln!("{name}: unseen {small} to {large} pages, seen {seen} to {again}");
        assert!(large <= small * GROWTH_MAX, "{name}: {small} pages became {large}");
        assert!(again <= seen * GROWTH_MAX, "{name}: {seen} pages for seen events became {again}");
    }
}

#[tokio::test]
async fn redelivery_costs_the_same_however_much_waits() {
    let Some(world) = world().await else { return };
    prepare(&world).await;
    let early = world.session().await;
    let redeliver =
        "SELECT * FROM app_inbox_redeliver('c', 1, 'nothing(app_inbox_event[])', batch => 20)";
    let fill = |key: &str, rows: u32| {
        format!(
            "INSERT INTO app_inbox (consumer, generation, event_id, ordering_key, commit_lsn, tx_index, status,
                                    next_attempt_at, message)
               SELECT 'c', 1, m.event_id, m.ordering_key, m.commit_lsn, 0, 'retrying',
                      CASE WHEN n % {rows} = 1 THEN now() END, app_inbox_encode(m)
                 FROM generate_series(1, {rows}) AS n,
                      LATERAL (SELECT * FROM jsonb_populate_record(NULL::app_inbox_message, jsonb_build_object(
                        'event_id', '{key}' || n, 'ordering_key', '{key}', 'commit_lsn', '0/0'::pg_lsn + n,
                        'tx_index', 0, 'attributes', '{{}}', 'data', '{{}}'::text::bytea))) AS m;
             INSERT INTO app_inbox_key (consumer, generation, ordering_key, held_by)
               VALUES ('c', 1, '{key}', '{key}1')"
        )
    };
    world.run(&fill("small", 20)).await;
    pages(&early, redeliver).await;
    world.run(&fill("again", 20)).await;
    let small = pages(&early, redeliver).await;

    // A hot key with 20,000 events behind its head, and many finished events.
    grow(&world).await;
    world.run(&fill("hot", 20000)).await;

    let fresh = world.session().await;
    pages(&fresh, redeliver).await;
    for (name, session) in [("early", early), ("fresh", fresh)] {
        let large = pages(&session, redeliver).await;
        eprintln!("{name}: {small} to {large} pages");
        assert!(large <= small * GROWTH_MAX, "{name}: {small} pages became {large}");
    }
    let done =
        "SELECT count(*)::text FROM app_inbox WHERE ordering_key = 'hot' AND status = 'done'";
    assert_eq!(world.text(done).await, "60");
}

#[tokio::test]
async fn a_parked_key_takes_more_behind_itself_at_the_same_cost() {
    let Some(world) = world().await else { return };
    prepare(&world).await;
    let session = world.session().await;
    let behind = |first: u32| {
        let messages: Vec<Message> = (first..first + BATCH).map(|n| event(n, "hot")).collect();
        apply(&messages)
    };
    world.apply(SET, &[event(1, "hot").failing("P0001")]).await;
    pages(&session, &behind(100)).await;
    let first = pages(&session, &behind(200)).await;
    for n in 3..40 {
        pages(&session, &behind(n * 100)).await;
    }
    grow(&world).await;
    let last = pages(&session, &behind(5000)).await;
    eprintln!("{first} to {last} pages");
    assert!(last <= first * GROWTH_MAX, "{first} pages became {last}");
}
