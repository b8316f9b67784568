//! A handler that fails: only the failing event is stored, and every other event takes effect.

use super::messages::{Message, array, event};
use super::world::{BOTH, EACH, InboxDatabase, SET, world};

#[tokio::test]
async fn a_culprit_is_stored_with_its_reason_and_everything_else_takes_effect() {
    let Some(world) = world().await else { return };
    for handler in BOTH {
        world.run("TRUNCATE app_inbox, app_inbox_key, balance, applied").await;
        let batch = [
            event(1, "a"),
            event(2, "b").failing("P0001"),
            event(3, "c"),
            event(4, "d").failing("22012"),
            event(5, "").failing("23505"),
            event(6, ""),
            event(7, "a"),
        ];
        assert_eq!(
            world.apply(handler, &batch).await,
            ["done", "retrying P0001", "done", "retrying 22012", "retrying 23505", "done", "done"]
        );

        assert_eq!(world.balance("a").await, "2 8");
        assert_eq!(world.balance("b").await, "-");
        assert_eq!(world.balance("").await, "1 6");
        assert_eq!(world.key("b").await, "- - held by e2");
        let row = "SELECT concat_ws(' ', attempts, next_attempt_at > now(), next_attempt_at < now() + interval '2 s',
                             done_at IS NULL, last_error ~ '^attempt 1 at 20..-..-..T..:..:..Z: P0001: cannot apply e2: It says so.$')
                     FROM app_inbox WHERE event_id = 'e2'";
        assert_eq!(world.text(row).await, "1 t t t t");
        let kept = "SELECT convert_from(decode(convert_from(message, 'UTF8')::json ->> 'data', 'base64'), 'UTF8')
                      FROM app_inbox WHERE event_id = 'e2'";
        assert_eq!(world.text(kept).await, r#"{"fails": "P0001"}"#);
    }
}

#[tokio::test]
async fn a_retry_that_was_due_before_the_clock_was_set_back_is_due_now() {
    let Some(world) = world().await else { return };
    world.apply(SET, &[event(1, "a").failing("P0001"), event(2, "").failing("P0001")]).await;
    world.run("UPDATE app_inbox SET next_attempt_at = next_attempt_at + interval '1 day'").await;
    assert_eq!(world.redeliver(SET).await.len(), 2);
    // A dead event that holds its key stays.
    world.run("UPDATE app_inbox SET status = 'dead', next_attempt_at = 'infinity'").await;
    assert_eq!(world.redeliver(SET).await, Vec::<String>::new());
}

#[tokio::test]
async fn any_error_that_is_nobody_elses_is_the_events() {
    let Some(world) = world().await else { return };
    // WHEN OTHERS does not catch an assertion.
    let codes = ["assert", "0A000", "54000", "XX000", "WR002", "ZZ999"];
    let cases = BOTH.into_iter().flat_map(|handler| codes.map(|code| (code, handler)));
    for (n, (code, handler)) in (1..).zip(cases) {
        fails_alone(&world, n, code, handler).await;
    }
}

async fn fails_alone(world: &InboxDatabase, n: u32, code: &str, handler: &str) {
    let batch = [event(n, &format!("bad{n}")).failing(code), event(n + 100, "good")];
    let reported = if code == "assert" { "P0004" } else { code };
    let expected = [format!("retrying {reported}"), "done".to_owned()];
    assert_eq!(world.apply(handler, &batch).await, expected, "{handler}");
}

#[tokio::test]
async fn what_fails_for_its_surroundings_while_others_pass_is_stored_and_never_dies_of_it() {
    let Some(world) = world().await else { return };
    let codes = ["08006", "42501", "42883", "53200", "57P03"];
    for (code, handler) in BOTH.into_iter().flat_map(|it| codes.map(|code| (code, it))) {
        world.run("TRUNCATE app_inbox, app_inbox_key, balance, applied").await;
        holds_its_key_alone(&world, code, handler).await;
    }
}

async fn holds_its_key_alone(world: &InboxDatabase, code: &str, handler: &str) {
    let batch =
        [event(1, "a"), event(2, "b").failing(code), event(3, "b"), event(4, ""), event(5, "c")];
    let stored = format!("retrying {code}");
    let results = world.apply(handler, &batch).await;
    assert_eq!(results, ["done", &stored, "retrying", "done", "done"], "{handler}");

    // The result stays the same after any number of attempts, even if no other event succeeds.
    for _ in 0..3 {
        let again = world.redeliver_with(handler, ", max_attempts => 1").await;
        assert_eq!(again.first(), Some(&format!("e2 {stored}")));
    }
    let row = "SELECT concat_ws(' ', attempts, next_attempt_at BETWEEN now() AND now() + interval '1 min',
                 regexp_count(last_error, 'not counted at'), last_error ~ '^not counted at 20.*cannot apply e2')
                 FROM app_inbox WHERE event_id = 'e2'";
    let row = row.replace(
        "regexp_count(last_error, 'not counted at')",
        "(SELECT count(*) FROM string_to_table(last_error, E'\\n'))",
    );
    assert_eq!(world.text(&row).await, "0 t 1 t");
    assert_eq!(world.key("b").await, "- - held by e2");
}

#[tokio::test]
async fn an_event_whose_branch_of_the_handler_lacks_a_function_is_applied_once_it_is_there() {
    let Some(world) = world().await else { return };
    world
        .run(
            "CREATE FUNCTION branches(event app_inbox_event) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
               IF event.payload ->> 'refund' IS NOT NULL THEN PERFORM refund(event.event_id); END IF;
               PERFORM add(event);
             END $$",
        )
        .await;
    const BRANCHES: &str = "branches(app_inbox_event)";
    let batch = [event(1, "a"), event(2, "b").data(r#"{"refund": 1}"#), event(3, "b")];
    let results = world.apply(BRANCHES, &batch).await;
    assert_eq!(results, ["done", "retrying 42883", "retrying"]);
    let advice = "SELECT (last_error LIKE '%refund%does not exist; No function matches%')::text FROM app_inbox WHERE event_id = 'e2'";
    assert_eq!(world.text(advice).await, "true");

    world.run("CREATE FUNCTION refund(text) RETURNS void LANGUAGE sql AS 'SELECT'").await;
    let both = [world.redeliver(BRANCHES).await, world.redeliver(BRANCHES).await].concat();
    assert_eq!(both, ["e2 done", "e3 done"]);
    assert_eq!(world.applied("b").await, ["e2", "e3"]);
}

#[tokio::test]
async fn many_culprits_are_each_found() {
    let Some(world) = world().await else { return };
    for handler in BOTH {
        world.run("TRUNCATE app_inbox, app_inbox_key, balance, applied").await;
        finds_every_culprit(&world, handler).await;
    }
}

async fn finds_every_culprit(world: &InboxDatabase, handler: &str) {
    let is_bad = |n: u32| n % 17 == 3 || n.is_multiple_of(29);
    let one = |n: &u32| {
        let message = event(*n, &format!("k{}", n % 70));
        if is_bad(*n) { message.failing("P0001") } else { message }
    };
    let mut waiting: Vec<u32> = (0..200).collect();
    // A transaction defers events beyond its limit of savepoints, and deferred events are
    // redelivered.
    for round in 0.. {
        assert!(round < 20, "nothing moves any more: {waiting:?}");
        let batch: Vec<Message> = waiting.iter().map(one).collect();
        let results = world.apply(handler, &batch).await;
        let pairs = waiting.iter().zip(&results);
        waiting = pairs.filter(|(_, result)| *result == "deferred").map(|(n, _)| *n).collect();
        if waiting.is_empty() {
            break;
        }
    }

    // No event behind a failing event of its key took effect. Every other event took effect once.
    let is_behind = |n: u32| (0..=n).any(|before| before % 70 == n % 70 && is_bad(before));
    let expected: Vec<u32> = (0..200).filter(|n| !is_behind(*n)).collect();
    let sum: u32 = expected.iter().sum();
    let total = "SELECT concat_ws(' ', sum(events), sum(amount)) FROM balance";
    assert_eq!(world.text(total).await, format!("{} {sum}", expected.len()), "{handler}");
    let doubled = "SELECT count(*)::text FROM (SELECT event_id FROM applied GROUP BY 1 HAVING count(*) > 1) AS d";
    assert_eq!(world.text(doubled).await, "0");
}

#[tokio::test]
async fn isolation_never_holds_more_savepoints_than_the_server_has_at_hand() {
    let Some(world) = world().await else { return };
    // Every second event fails, so that each good event needs a savepoint of its own.
    let one =
        |n: u32| if n.is_multiple_of(2) { event(n, "").failing("P0001") } else { event(n, "") };
    let batch: Vec<Message> = (0..200).map(one).collect();
    for handler in BOTH {
        world.run("BEGIN").await;
        let results = world.apply(handler, &batch).await;
        has_few_savepoints(&world).await;
        world.run("ROLLBACK").await;
        let deferred = results.iter().filter(|result| *result == "deferred").count();
        assert!((60..=100).contains(&deferred), "{deferred} of 200 deferred by {handler}");
    }
}

#[tokio::test]
async fn once_something_is_known_of_a_batch_no_more_of_it_is_tried_than_there_is_patience_for() {
    let bad = |n: u32, key: &str| event(n, key).failing("08001");
    let good = |n: u32| event(n, "");
    // After a slow failure, a set handler is called for each event, and an event handler reports
    // its progress.
    let cases = [
        (
            vec![good(1), good(2), good(3), bad(4, "a"), good(5), good(6)],
            ["applied applied applied failed deferred deferred"; 2],
        ),
        (
            vec![bad(1, "a"), good(2), good(3), good(4)],
            ["failed applied deferred deferred", "failed applied applied applied"],
        ),
        (
            vec![bad(1, "a"), bad(2, "b"), event(3, "a"), good(4)],
            ["failed failed held deferred"; 2],
        ),
    ];
    let Some(world) = world().await else { return };
    for (batch, [of_a_set, of_an_event]) in &cases {
        assert_eq!(outcomes(&world, SET, batch, ", patience => '0'").await, *of_a_set);
        assert_eq!(outcomes(&world, EACH, batch, ", patience => '0'").await, *of_an_event);
        let patient = outcomes(&world, SET, batch, "").await;
        assert!(!patient.contains("deferred"), "{patient}");
    }
}

/// Runs a batch, returns its outcomes, and rolls it back.
async fn outcomes(
    world: &InboxDatabase,
    handler: &str,
    batch: &[Message],
    patience: &str,
) -> String {
    let batch = array(batch);
    world.run("BEGIN").await;
    let sql = format!(
        "SELECT array_to_string(outcomes, ' ') FROM app_inbox_run('{handler}', {batch}{patience})"
    );
    let outcomes = world.text(&sql).await;
    world.run("ROLLBACK").await;
    outcomes
}

/// Checks the savepoints of the open transaction. Before version 16 the server does not show them.
async fn has_few_savepoints(world: &InboxDatabase) {
    if world.database.server_version() < 16 {
        return;
    }
    let sql = "SELECT (subxact_count <= 62) || ' ' || subxact_overflowed AS open
                 FROM pg_stat_get_backend_subxact(
                   (SELECT id FROM pg_stat_get_backend_idset() AS id
                     WHERE pg_stat_get_backend_pid(id) = pg_backend_pid()))";
    assert_eq!(world.text(sql).await, "true false");
}

async fn with_deferred_constraints(world: &InboxDatabase) {
    world
        .run(
            "CREATE TABLE parent (id text PRIMARY KEY);
             CREATE TABLE child (id text REFERENCES parent DEFERRABLE INITIALLY DEFERRED,
                                 n int UNIQUE DEFERRABLE INITIALLY IMMEDIATE);
             -- The child first: legal only while the constraint is deferred. An orphan stays one.
             CREATE FUNCTION adopt(event app_inbox_event) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
               INSERT INTO child (id) VALUES (event.event_id);
               IF event.payload ->> 'orphan' IS NULL THEN
                 INSERT INTO parent VALUES (event.event_id);
               END IF;
               PERFORM add(event);
             END $$;
             CREATE FUNCTION adopt_all(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
               PERFORM adopt(e) FROM unnest(events) AS e;
             END $$",
        )
        .await;
}

#[tokio::test]
async fn what_would_fail_at_commit_is_found_and_is_its_events_fault() {
    let Some(world) = world().await else { return };
    with_deferred_constraints(&world).await;
    for handler in ["adopt(app_inbox_event)", "adopt_all(app_inbox_event[])"] {
        world.run("TRUNCATE app_inbox, app_inbox_key, balance, applied, parent, child").await;
        let orphan = |n: u32, key: &str| event(n, key).data(r#"{"orphan": true}"#);
        let batch = [event(1, "a"), orphan(2, "b"), event(3, "c"), orphan(4, "a"), event(5, "d")];

        let results = world.apply(handler, &batch).await;

        // The good events insert the child before its parent, in the second pass as in the
        // first.
        assert_eq!(results, ["done", "retrying 23503", "done", "retrying 23503", "done"]);
        assert_eq!(world.text("SELECT count(*)::text FROM child").await, "3");
    }
}

#[tokio::test]
async fn a_constraint_that_is_immediate_stays_so_in_the_second_pass() {
    let Some(world) = world().await else { return };
    world
        .run(
            "CREATE TABLE taken (n int, CONSTRAINT once UNIQUE (n) DEFERRABLE INITIALLY IMMEDIATE);
             INSERT INTO taken VALUES (1);
             CREATE FUNCTION claim(event app_inbox_event) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
               PERFORM add(event);
               INSERT INTO taken VALUES (1);
             EXCEPTION WHEN unique_violation THEN
               INSERT INTO balance VALUES (event.ordering_key, 0, -1);
             END $$",
        )
        .await;
    // `add` fails on the first event, outside the handler's exception block. The second event
    // needs that block.
    let batch = [event(1, "a").failing("P0001"), event(2, "b")];
    assert_eq!(world.apply("claim(app_inbox_event)", &batch).await, ["retrying P0001", "done"]);
    assert_eq!(world.balance("b").await, "0 -1");
}

#[tokio::test]
async fn the_last_attempt_makes_it_dead() {
    let Some(world) = world().await else { return };
    let poison = event(1, "a").failing("P0001");
    world.apply_with(EACH, &[poison, event(2, "b")], ", max_attempts => 3").await;
    const THREE: &str = ", max_attempts => 3";

    assert_eq!(world.redeliver_with(EACH, THREE).await, ["e1 retrying P0001"]);
    assert_eq!(world.redeliver_with(SET, THREE).await, ["e1 dead P0001"]);
    assert!(world.redeliver_with(EACH, THREE).await.is_empty());

    let row = "SELECT concat_ws(' ', attempts, next_attempt_at, (SELECT count(*) FROM string_to_table(last_error, E'\\n')),
                         left(last_error, 9)) FROM app_inbox WHERE event_id = 'e1'";
    assert_eq!(world.text(row).await, "3 infinity 3 attempt 3");
    assert_eq!(world.balance("b").await, "1 2");
}

#[tokio::test]
async fn waits_double_and_are_spread() {
    let Some(world) = world().await else { return };
    let batch: Vec<Message> = (1..=40).map(|n| event(n, "").failing("P0001")).collect();
    world.apply(EACH, &batch).await;
    let waits = "SELECT concat_ws(' ',
                   min(next_attempt_at - now()) > interval '0', max(next_attempt_at - now()) < interval '{max} s',
                   count(DISTINCT next_attempt_at) > 30, max(attempts)) FROM app_inbox";
    assert_eq!(world.text(&waits.replace("{max}", "1.1")).await, "t t t 1");
    for attempts in 2..=5 {
        world.redeliver_with(SET, ", max_attempts => 99").await;
        let max = format!("{}", (1 << (attempts - 1)) + 1);
        assert_eq!(world.text(&waits.replace("{max}", &max)).await, format!("t t t {attempts}"));
    }
}

#[tokio::test]
async fn ten_attempts_take_five_to_nine_minutes_whatever_chance_does() {
    let Some(world) = world().await else { return };
    // The nine waits between ten attempts, a thousand times.
    let totals = "SELECT concat_ws(' ', min(total) >= interval '5 min', max(total) <= interval '9 min',
                            max(total) - min(total) > interval '1 min')
        FROM (SELECT sum(app_inbox_next_attempt('22000', attempts, now()) - clock_timestamp()) AS total
                FROM generate_series(1, 1000) AS run, generate_series(1, 9) AS attempts GROUP BY run) AS runs";
    for seed in ["-0.5", "0", "0.17"] {
        let seeded = world.text(&format!("SELECT setseed({seed})::text")).await;
        assert!(seeded.is_empty());
        assert_eq!(world.text(totals).await, "t t t", "seed {seed}");
    }
}

#[tokio::test]
async fn a_row_keeps_the_newest_errors_within_bounds() {
    let Some(world) = world().await else { return };
    world
        .run(
            "CREATE FUNCTION rants(app_inbox_event) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
               RAISE EXCEPTION E'first\\nsecond%', repeat('!', 5000); END $$",
        )
        .await;
    world.apply("rants(app_inbox_event)", &[event(1, "")]).await;
    for _ in 0..6 {
        world.redeliver("rants(app_inbox_event)").await;
    }
    let row = "SELECT concat_ws(' ', attempts, length(last_error) <= 4000, last_error LIKE 'attempt 7 at%first second!%')
                 FROM app_inbox";
    assert_eq!(world.text(row).await, "7 t t");
}
