//! Several sessions, overlapping redeliveries, and backends killed at any time. Each event takes
//! effect once and in order, and no session deadlocks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use walrelay_testkit::postgres::TestClient;

use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;
use walrelay_testkit::seed::Seed;
use walrelay_testkit::wait_until;

use super::messages::event;
use super::world::{BOTH, EACH, InboxDatabase, apply_sql, world};

const EVENTS: usize = 1_500;
const KEYS: usize = 40;
const WORKERS: usize = 6;
const KILLS: usize = 15;
const DEADLINE: Duration = Duration::from_secs(120);

/// A model of a subscription. It delivers the messages of a key in order, after the last
/// acknowledged one. It sometimes starts earlier, and sometimes delivers to two subscribers at
/// once.
struct Subscription {
    seed: Seed,
    /// For each key: its events, the number of acknowledged events, and whether a subscriber has a
    /// lease.
    keys: Vec<(Vec<usize>, usize, bool)>,
}

struct Delivery {
    events: Vec<(usize, usize)>,
}

impl Subscription {
    fn new(mut seed: Seed) -> Self {
        let mut keys = vec![(Vec::new(), 0, false); KEYS];
        for number in 0..EVENTS {
            keys[seed.count(0, KEYS - 1)].0.push(number);
        }
        Self { seed, keys }
    }

    fn deliver(&mut self) -> Option<Delivery> {
        let mut events = Vec::new();
        for _ in 0..self.seed.count(1, 12) {
            let key = self.seed.count(0, KEYS - 1);
            let (all, acknowledged, is_leased) = &mut self.keys[key];
            if *is_leased || events.iter().any(|(_, k)| *k == key) {
                continue;
            }
            let from = acknowledged.saturating_sub(self.seed.count(0, 3));
            let to = all.len().min(*acknowledged + self.seed.count(1, 8));
            events.extend(all[from..to].iter().map(|number| (*number, key)));
            // An expired lease: another subscriber receives the same messages meanwhile.
            *is_leased = self.seed.chance(800);
        }
        (!events.is_empty()).then_some(Delivery { events })
    }

    fn answer(&mut self, delivery: &Delivery, results: Option<&[String]>) {
        for (n, (number, key)) in delivery.events.iter().enumerate() {
            let (all, acknowledged, is_leased) = &mut self.keys[*key];
            *is_leased = false;
            let place = all.iter().position(|event| event == number).expect("an event of its key");
            let is_safe = results.is_some_and(|results| results[n] != "deferred");
            if is_safe && place == *acknowledged {
                *acknowledged += 1;
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.keys.iter().all(|(all, acknowledged, _)| *acknowledged == all.len())
    }
}

/// The messages are in a table, so that a batch is a list of numbers. One in fifty is poison until
/// `mended` has a row.
const FEED: &str = "
CREATE TABLE mended (at timestamptz);
CREATE TABLE feed (n int PRIMARY KEY, message app_inbox_message);
CREATE FUNCTION sum_all(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
  IF EXISTS (SELECT FROM unnest(events) AS e WHERE e.payload ? 'poison') AND NOT EXISTS (SELECT FROM mended) THEN
    RAISE EXCEPTION 'poison';
  END IF;
  PERFORM add_all(events);
END $$;
CREATE FUNCTION sum_each(event app_inbox_event) RETURNS void LANGUAGE sql AS 'SELECT sum_all(ARRAY[event])';
";

async fn fill(world: &InboxDatabase, subscription: &Subscription) {
    world.run(FEED).await;
    for (key, (events, _, _)) in subscription.keys.iter().enumerate() {
        let rows: Vec<String> = events.iter().map(|n| format!("({n})")).collect();
        world
            .run(&format!(
                "INSERT INTO feed SELECT n, jsonb_populate_record(NULL::app_inbox_message, jsonb_build_object(
                   'event_id', 'e' || n, 'ordering_key', CASE WHEN {key} = 0 THEN '' ELSE 'k{key}' END, 'version', n,
                   'commit_lsn', '0/0'::pg_lsn + n, 'tx_index', 0, 'attributes', '{{}}',
                   'data', convert_to(CASE WHEN n % 50 = 7 THEN '{{\"poison\": 1, \"amount\": ' ELSE '{{\"amount\": ' END
                                      || n || '}}', 'UTF8')))
                   FROM (VALUES {}) AS v(n)",
                rows.join(", ")
            ))
            .await;
    }
}

fn locked<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Applies deliveries until none is left. Replaces a session that was killed.
async fn work(url: String, subscription: Arc<Mutex<Subscription>>, number: usize) {
    let handlers = ["sum_each(app_inbox_event)", "sum_all(app_inbox_event[])"];
    let mut session = None;
    for round in number.. {
        let delivery = {
            let mut subscription = locked(&subscription);
            if subscription.is_empty() {
                return;
            }
            subscription.deliver()
        };
        let Some(delivery) = delivery else {
            tokio::task::yield_now().await;
            continue;
        };
        if session.is_none() {
            session = TestClient::try_connect(&url).await.ok();
        }
        let results = match &session {
            Some(session) => try_apply(session, &delivery, handlers[round % 2]).await,
            None => None,
        };
        if results.is_none() {
            session = None;
        }
        locked(&subscription).answer(&delivery, results.as_deref());
    }
}

/// None when the session is gone. Any other error is a fault of what is tested.
async fn try_apply(
    session: &TestClient,
    delivery: &Delivery,
    handler: &str,
) -> Option<Vec<String>> {
    let numbers: Vec<String> = delivery.events.iter().map(|(n, _)| n.to_string()).collect();
    let sql = format!(
        "SELECT result FROM app_inbox_apply('c', 1, '{handler}', ARRAY(
           SELECT f.message FROM unnest(ARRAY[{}]) WITH ORDINALITY AS u(n, place)
             JOIN feed AS f USING (n) ORDER BY u.place), max_attempts => 1000) ORDER BY index",
        numbers.join(", ")
    );
    rows_of(session, &sql).await
}

async fn rows_of(session: &TestClient, sql: &str) -> Option<Vec<String>> {
    match session.query(sql, &[]).await {
        Ok(rows) => Some(rows.iter().map(|row| row.get(0)).collect()),
        Err(error) => {
            let is_gone = error.is_closed() || error.code() == Some(&SqlState::ADMIN_SHUTDOWN);
            assert!(is_gone, "{sql}: {error:?}");
            None
        }
    }
}

/// Retries stored events repeatedly while the workers run.
async fn redeliver(url: String, subscription: Arc<Mutex<Subscription>>) {
    let mut session = None;
    while !locked(&subscription).is_empty() {
        if session.is_none() {
            session = TestClient::try_connect(&url).await.ok();
        }
        let Some(current) = &session else { continue };
        let due = "UPDATE app_inbox SET next_attempt_at = now()
                    WHERE event_id IN (SELECT event_id FROM app_inbox WHERE status = 'retrying'
                      AND next_attempt_at > now() ORDER BY event_id FOR UPDATE SKIP LOCKED) RETURNING event_id";
        let again = "SELECT event_id FROM app_inbox_redeliver('c', 1, 'sum_each(app_inbox_event)',
                       max_attempts => 1000, batch => 30)";
        if rows_of(current, due).await.is_none() || rows_of(current, again).await.is_none() {
            session = None;
        }
    }
}

#[tokio::test]
async fn each_event_takes_effect_once_and_in_order_whoever_is_killed() {
    let Some(world) = world().await else { return };
    let mut seed = Seed::new(1);
    let subscription = Subscription::new(seed.fork());
    fill(&world, &subscription).await;
    let expected = subscription.keys.clone();
    let subscription = Arc::new(Mutex::new(subscription));
    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        let url = world.database.url().to_owned();
        workers.spawn(work(url, Arc::clone(&subscription), number));
    }
    workers.spawn(redeliver(world.database.url().to_owned(), Arc::clone(&subscription)));

    for kill in 0..KILLS {
        kill_one(&world, &subscription, EVENTS * kill / KILLS / 2, seed.count(0, WORKERS)).await;
    }
    tokio::time::timeout(DEADLINE, workers.join_all()).await.expect("the workers to end");

    // Fix the poison events. After that no event may remain.
    world.run("INSERT INTO mended VALUES (now())").await;
    wait_until(DEADLINE, "stored events to drain", async || {
        let drained = world.redeliver_with("sum_all(app_inbox_event[])", ", batch => 500").await;
        drained.is_empty().then_some(())
    })
    .await;
    judge(&world, &expected).await;
}

/// Terminates a working session once this many events have taken effect, each time at another
/// stage.
async fn kill_one(
    world: &InboxDatabase,
    subscription: &Mutex<Subscription>,
    applied_before: usize,
    place: usize,
) {
    wait_until(DEADLINE, "work to go on", async || {
        let count: i64 = world.query_one("SELECT count(*) FROM applied", &[]).await.ok()?.get(0);
        let is_over = locked(subscription).is_empty();
        (is_over || usize::try_from(count).ok()? >= applied_before).then_some(())
    })
    .await;
    world
        .run(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
              WHERE datname = current_database() AND pid <> pg_backend_pid()
                AND backend_type = 'client backend' ORDER BY pid OFFSET {place} LIMIT 1"
        ))
        .await;
}

async fn judge(world: &InboxDatabase, expected: &[(Vec<usize>, usize, bool)]) {
    let statuses = world
        .lines("SELECT status || ' ' || count(*) FROM app_inbox GROUP BY status ORDER BY status")
        .await;
    assert_eq!(statuses, [format!("done {EVENTS}")], "nothing was overtaken, nothing is left");
    let rows = world.query("SELECT key, event_id FROM applied ORDER BY n", &[]).await;
    let mut applied: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in rows.expect("what was applied") {
        applied.entry(row.get(0)).or_default().push(row.get(1));
    }
    for (key, (events, _, _)) in expected.iter().enumerate() {
        let name = if key == 0 { String::new() } else { format!("k{key}") };
        let mut wanted: Vec<String> = events.iter().map(|n| format!("e{n}")).collect();
        let mut seen = applied.remove(&name).unwrap_or_default();
        if name.is_empty() {
            // Events without a key have no order.
            wanted.sort();
            seen.sort();
        }
        assert_eq!(seen, wanted, "key {name:?}");
        let sum: usize = events.iter().sum();
        assert_eq!(world.balance(&name).await, format!("{} {sum}", events.len()));
    }
    let keys = "SELECT count(*)::text FROM app_inbox_key WHERE held_by IS NOT NULL";
    assert_eq!(world.text(keys).await, "0");
}

/// Repeats the batch until no event is deferred because another session has its key.
async fn until_none_is_deferred(session: TestClient, sql: String) {
    let started = Instant::now();
    while rows_of(&session, &sql).await.expect("the session").iter().any(|r| r.contains("deferred"))
    {
        assert!(started.elapsed() < DEADLINE, "keys stay deferred");
    }
}

#[tokio::test]
async fn two_that_create_the_same_keys_in_another_order_do_not_deadlock() {
    let Some(world) = world().await else { return };
    let mut runs = JoinSet::new();
    for number in 0..8_u32 {
        let session = world.session().await;
        // Forwards or backwards.
        let first = number % 2 * 39;
        let one = |k: u32| event(number * 100 + k, &format!("k{}", k.abs_diff(first)));
        let batch: Vec<_> = (0..40).map(one).collect();
        let handler = BOTH[usize::from(number % 3 == 0)];
        runs.spawn(until_none_is_deferred(session, apply_sql(handler, &batch, "")));
    }
    while let Some(run) = runs.join_next().await {
        run.unwrap();
    }
    assert_eq!(world.text("SELECT sum(events)::text FROM balance").await, "320");
}

#[tokio::test]
async fn a_new_generation_waits_for_what_is_being_applied_and_shuts_out_the_rest() {
    let Some(world) = world().await else { return };
    let applying = world.session().await;
    applying.run("BEGIN").await;
    applying.query(&apply_sql(EACH, &[event(1, "a")], ""), &[]).await.unwrap();

    // The rebuild waits for the batch, and then empties the projection.
    let rebuilding = world.session().await;
    let rebuilder = rebuilding.text("SELECT pg_backend_pid()::text").await;
    let mut rebuild = JoinSet::new();
    rebuild.spawn(async move {
        rebuilding
            .run("BEGIN; SELECT app_inbox_new_generation('c'); DELETE FROM balance; COMMIT")
            .await;
    });
    world.wait_until_blocked(&rebuilder).await;
    // A session that still uses the old generation arrives after both.
    let old = world.session().await;
    let latecomer = old.text("SELECT pg_backend_pid()::text").await;
    let mut late = JoinSet::new();
    late.spawn(async move {
        let error = old.query(&apply_sql(EACH, &[event(2, "a")], ""), &[]).await;
        error.expect_err("an apply of an old generation").code().cloned()
    });
    world.wait_until_blocked(&latecomer).await;

    applying.run("COMMIT").await;
    rebuild.join_next().await.unwrap().unwrap();

    assert_eq!(late.join_next().await.unwrap().unwrap(), Some(SqlState::from_code("WR002")));
    assert_eq!(world.balance("a").await, "-", "the old generation's effect is reset");
    // In the new generation every event is new.
    let again = apply_sql(EACH, &[event(1, "a"), event(2, "a")], "").replace("'c', 1", "'c', 2");
    assert_eq!(world.lines(&again).await, ["done", "done"]);
    assert_eq!(world.balance("a").await, "2 3");
}
