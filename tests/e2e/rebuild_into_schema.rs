//! `consumer rebuild --into`: rebuilds the read model in another schema, while the current one is
//! read and written.

use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase};

/// The content of these tests' read model.
const READ_MODEL: &str =
    "SELECT coalesce(string_agg(key || '=' || events, ',' ORDER BY key), '') FROM effect.balance";

/// Creates the shared handler with unqualified table names that the search path resolves, and the
/// schema to fill.
pub(crate) const PLAIN: &str = "
DO $do$ BEGIN
  EXECUTE format('ALTER DATABASE %I SET search_path = effect, public', current_database());
  EXECUTE replace(replace(replace(pg_get_functiondef('effect.add(app_inbox_event[])'::regprocedure),
    'effect.add(', 'effect.add_plain('), 'effect.applied', 'applied'), 'effect.balance', 'balance');
END $do$;
CREATE SCHEMA fresh;
CREATE TABLE fresh.balance (LIKE effect.balance INCLUDING ALL);
CREATE TABLE fresh.applied (LIKE effect.applied INCLUDING ALL);
CREATE VIEW effect.total AS SELECT sum(events)::bigint AS events FROM effect.balance;
";

pub(crate) const INTO: [&str; 7] =
    ["consumer", "rebuild", CONSUMER, "--into", "fresh", "--handler", "effect.add_plain"];

pub(crate) async fn world() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world.set_up_consumer().await;
    world.execute(PLAIN).await;
    Some(world)
}

pub(crate) async fn read_model(world: &InboxDatabase) -> String {
    world.client().query_one(READ_MODEL, &[]).await.expect("the read model").get(0)
}

async fn generation(world: &InboxDatabase) -> i64 {
    world.number("SELECT generation::bigint FROM app_inbox_consumer").await
}

/// Checks that every event of the outbox is in the read model once, in the order of its key's
/// versions.
async fn assert_each_once(world: &InboxDatabase) {
    let wrong = "SELECT count(*) FROM app_outbox AS o
          FULL JOIN (SELECT event_id, count(*) AS times FROM effect.applied GROUP BY 1) AS a
            ON a.event_id = o.id::text
         WHERE a.times IS DISTINCT FROM 1 OR o.id IS NULL";
    assert_eq!(world.number(wrong).await, 0, "applied twice, or not at all");
    let inversions = "SELECT count(*) FROM (
          SELECT o.version, lag(o.version) OVER (PARTITION BY a.key ORDER BY a.n) AS before
            FROM effect.applied AS a JOIN app_outbox AS o ON o.id::text = a.event_id) AS x
        WHERE before > version";
    assert_eq!(world.number(inversions).await, 0);
    let differs = "SELECT (SELECT count(*) FROM app_outbox) - (SELECT events FROM effect.total)";
    assert_eq!(world.number(differs).await, 0, "the sums differ");
}

#[tokio::test]
async fn a_rebuild_beside_replaces_a_wrong_read_model_in_one_moment_while_an_instance_runs() {
    let Some(world) = world().await else { return };
    let consumer = world.start_consumer([]).await;
    world.insert_events(20, 1_200).await;
    world.catch_up().await;
    world.wait_applied(1_200).await;
    world.execute("UPDATE effect.balance SET events = events + 1").await;

    let told = world.succeed(INTO).await;
    assert!(told.contains("generation 1 stays live"), "{told}");
    assert!(told.contains("switched: generation 2 is live"), "{told}");
    assert_each_once(&world).await;
    assert_eq!(world.number("SELECT count(*) FROM fresh.applied").await, 0);
    // Later events are applied to the current tables, from the same subscription as before.
    world.insert_events(20, 100).await;
    world.catch_up().await;
    world.wait_applied(1_300).await;
    drop(consumer);
    world.consume_all().await;
    assert_each_once(&world).await;
}

#[tokio::test]
async fn a_handler_that_names_its_schema_is_refused_and_has_written_nothing() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    let before = read_model(&world).await;
    let mut qualified = INTO;
    qualified[6] = "effect.add";
    let refused = world.run(qualified).await;
    assert_eq!(refused.code, Some(3), "{}", refused.text);
    for part in ["it writes effect.applied, effect.balance", "not in schema fresh"] {
        assert!(refused.text.contains(part), "{part}: {}", refused.text);
    }
    world.execute("DROP TABLE fresh.applied").await;
    let without_table = world.run(INTO).await.text;
    let create = "create each table that schema fresh lacks, like the live one (effect.applied)";
    assert!(without_table.contains(create), "{without_table}");
    assert_eq!(read_model(&world).await, before);
    assert_eq!(generation(&world).await, 1);
    world.succeed(["consumer", "rebuild", CONSUMER, "--cancel", "--yes"]).await;
    let status = world.succeed(["consumer", "status", CONSUMER]).await;
    assert!(!status.contains("is not finished"), "{status}");
    assert_eq!(world.number("SELECT count(*) FROM app_inbox WHERE generation = 2").await, 0);
}

#[tokio::test]
async fn a_read_model_with_less_than_the_one_in_use_is_not_put_in_use_unasked() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    let before = read_model(&world).await;
    world.execute("ALTER TABLE app_outbox DISABLE TRIGGER USER").await;
    world.execute("DELETE FROM app_outbox WHERE version <= 10").await;
    let refused = world.run(INTO).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("10 event(s) that generation 1 has applied"), "{}", refused.text);
    assert_eq!(read_model(&world).await, before);
    let told = world.succeed(INTO.into_iter().chain(["--yes"])).await;
    assert!(
        told.contains("continuing") && told.contains("switched: generation 2 is live"),
        "{told}"
    );
    assert_each_once(&world).await;
}

#[tokio::test]
async fn a_rebuild_beside_that_is_killed_leaves_the_read_model_in_use_and_is_continued() {
    for place in [
        "side-by-side-begun",
        "side-by-side-filled",
        "side-by-side-switching",
        "side-by-side-switched",
    ] {
        let Some(world) = world().await else { return };
        let consumer = world.start_consumer([]).await;
        world.insert_events(5, 100).await;
        world.catch_up().await;
        world.wait_applied(100).await;
        let before = read_model(&world).await;
        let killed = world.command(INTO).env("WALRELAY_FAILPOINT", place).finish(DEADLINE).await;
        assert_eq!(killed.code, None, "{place}: {}", killed.text);
        assert_eq!(read_model(&world).await, before, "{place}");
        let is_over = place == "side-by-side-switched";
        assert_eq!(generation(&world).await, 1 + i64::from(is_over), "{place}");
        let status = world.succeed(["consumer", "status", CONSUMER]).await;
        assert_eq!(status.contains("or cancel it"), !is_over, "{place}: {status}");
        for command in ["check", "status"] {
            let told = world.run([command]).await.text;
            assert_eq!(told.contains("a part of generation 2"), !is_over, "{place}: {told}");
        }
        consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
        // Later events need no manual step.
        world.insert_events(5, 50).await;
        world.catch_up().await;
        world.wait_applied(150).await;
        assert_each_once(&world).await;

        let told = world.succeed(INTO).await;
        assert_eq!(told.contains("continuing"), !is_over, "{place}: {told}");
        assert_each_once(&world).await;
        world.insert_events(5, 50).await;
        world.catch_up().await;
        world.wait_applied(200).await;
        drop(consumer);
        assert_each_once(&world).await;
    }
}

#[tokio::test]
async fn foreign_keys_that_the_switch_would_act_on_are_refused_before_the_fill() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    let notes = "
        CREATE TABLE effect.note (
          key text CONSTRAINT of_balance REFERENCES effect.balance (key) ON DELETE CASCADE, text text);
        INSERT INTO effect.note SELECT key, 'by hand' FROM effect.balance";
    world.execute(notes).await;
    for arguments in [vec!["--dry-run"], vec!["--yes"]] {
        let refused = world.run(INTO.into_iter().chain(arguments)).await;
        assert_eq!(refused.code, Some(2), "{}", refused.text);
        for part in [
            "rebuild-foreign-key-unsuitable",
            "of_balance of effect.note references effect.balance",
            "ON DELETE CASCADE would delete its rows",
            "ALTER TABLE effect.note DROP CONSTRAINT of_balance",
        ] {
            assert!(refused.text.contains(part), "{part}: {}", refused.text);
        }
    }
    assert_eq!(world.number("SELECT count(*) FROM fresh.applied").await, 0, "nothing was filled");
    // Checked at the commit and without an action, the key keeps its rows.
    let deferrable = "
        ALTER TABLE effect.note DROP CONSTRAINT of_balance;
        ALTER TABLE effect.note ADD CONSTRAINT of_balance FOREIGN KEY (key)
          REFERENCES effect.balance (key) DEFERRABLE";
    world.execute(deferrable).await;
    world.succeed(INTO).await;
    assert_each_once(&world).await;
    assert_eq!(world.number("SELECT count(key) FROM effect.note").await, 5);
}

#[tokio::test]
async fn a_foreign_key_between_rebuilt_tables_that_cannot_wait_is_refused_before_the_fill() {
    let Some(world) = world().await else { return };
    // The rows of effect.applied are inserted first.
    let key = "ALTER TABLE effect.applied ADD CONSTRAINT of_balance FOREIGN KEY (key)
        REFERENCES effect.balance (key)";
    world.execute(key).await;
    let refused = world.run(INTO).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("it is not deferrable"), "{}", refused.text);
    assert_eq!(world.number("SELECT count(rebuilding) FROM app_inbox_consumer").await, 0);
}

#[tokio::test]
async fn a_table_that_keeps_rows_from_delete_or_insert_is_not_switched() {
    for (obstacle, removal, told) in [
        (
            "CREATE RULE keep AS ON DELETE TO effect.applied DO INSTEAD NOTHING",
            "DROP RULE keep ON effect.applied",
            "remain after DELETE",
        ),
        (
            "CREATE FUNCTION effect.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE TRIGGER keep BEFORE DELETE ON effect.applied FOR EACH ROW EXECUTE FUNCTION effect.keep()",
            "DROP TRIGGER keep ON effect.applied",
            "remain after DELETE",
        ),
        (
            "CREATE FUNCTION effect.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE TRIGGER keep BEFORE INSERT ON effect.applied FOR EACH ROW EXECUTE FUNCTION effect.keep()",
            "DROP TRIGGER keep ON effect.applied",
            "has 0 row(s) after the move, and the new table 50 row(s)",
        ),
    ] {
        let Some(world) = world().await else { return };
        world.insert_events(5, 50).await;
        world.catch_up().await;
        world.consume_all().await;
        world.execute(obstacle).await;
        let refused = world.run(INTO).await;
        assert_eq!(refused.code, Some(2), "{obstacle}: {}", refused.text);
        for part in [told, "nothing was switched", "of your own: --switch-sql FILE"] {
            assert!(refused.text.contains(part), "{obstacle}: {}", refused.text);
        }
        assert_eq!(world.number("SELECT count(*) FROM effect.applied").await, 50, "{obstacle}");
        world.execute(removal).await;
        world.succeed(INTO).await;
        assert_each_once(&world).await;
    }
}

#[tokio::test]
async fn a_table_that_cannot_replace_a_live_one_is_named_with_the_way_out() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    for (obstacle, removal, told) in [
        (
            "CREATE TABLE fresh.extra (id int)",
            "DROP TABLE fresh.extra",
            "drop fresh.extra if the handler does not write it",
        ),
        (
            "ALTER TABLE fresh.applied ADD COLUMN more int",
            "ALTER TABLE fresh.applied DROP COLUMN more",
            "CREATE TABLE fresh.applied (LIKE effect.applied INCLUDING ALL)",
        ),
        (
            "ALTER TABLE effect.applied ADD CONSTRAINT few CHECK (n < 0) NOT VALID",
            "ALTER TABLE effect.applied DROP CONSTRAINT few",
            "violates check constraint",
        ),
    ] {
        world.execute(obstacle).await;
        let refused = world.run(INTO).await;
        assert_eq!(refused.code, Some(2), "{obstacle}: {}", refused.text);
        for part in ["rebuild-tables-unsuitable", told] {
            assert!(refused.text.contains(part), "{part}: {}", refused.text);
        }
        world.execute(removal).await;
    }
    world.succeed(INTO).await;
    assert_each_once(&world).await;
}

#[tokio::test]
async fn a_live_table_whose_rows_a_policy_may_hide_is_refused_before_the_fill() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    let role = format!("{}_clerk", world.name());
    // Only the live table hides rows from the role.
    let rights = "CREATE ROLE clerk LOGIN; GRANT pg_read_all_data, pg_write_all_data TO clerk;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public, effect TO clerk;
        DO $do$ DECLARE t text; BEGIN
          FOR t IN SELECT c.oid::regclass FROM pg_class AS c WHERE c.relrowsecurity LOOP
            EXECUTE format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY', t);
          END LOOP;
        END $do$;
        ALTER TABLE effect.balance ENABLE ROW LEVEL SECURITY;
        CREATE POLICY most ON effect.balance USING (key <> 'key-0')";
    world.execute(&rights.replace("clerk", &role)).await;
    let url = world.url().replacen("postgres@", &format!("{role}@"), 1);
    let refused = world.run(INTO.into_iter().chain(["--database-url", &url])).await;
    assert_eq!(refused.code, Some(3), "{}", refused.text);
    let told = "row level security hides the rows of effect.balance";
    assert!(refused.text.contains(told), "{}", refused.text);
    assert_eq!(generation(&world).await, 1);
    world.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn rows_of_a_table_that_inherits_from_a_rebuilt_one_stay() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    let child = "CREATE TABLE effect.old () INHERITS (effect.applied);
        INSERT INTO effect.old SELECT * FROM effect.applied LIMIT 1";
    world.execute(child).await;
    world.succeed(INTO).await;
    assert_eq!(world.number("SELECT count(*) FROM effect.old").await, 1);
    world.execute("DROP TABLE effect.old").await;
    assert_each_once(&world).await;
}

#[tokio::test]
async fn tables_that_inherit_from_each_other_are_moved_one_by_one() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    let heirs = "CREATE TABLE effect.heir () INHERITS (effect.applied);
        CREATE TABLE fresh.heir () INHERITS (fresh.applied);
        CREATE FUNCTION fresh.copy() RETURNS trigger LANGUAGE plpgsql AS
          'BEGIN INSERT INTO fresh.heir SELECT NEW.*; RETURN NEW; END';
        CREATE TRIGGER copy AFTER INSERT ON fresh.applied FOR EACH ROW EXECUTE FUNCTION fresh.copy()";
    world.execute(heirs).await;
    world.succeed(INTO).await;
    for table in ["applied", "heir"] {
        let rows = format!("SELECT count(*) FROM ONLY effect.{table}");
        assert_eq!(world.number(&rows).await, 50, "{table}");
    }
}

#[tokio::test]
async fn events_of_a_backlog_whose_rows_are_pruned_from_the_outbox_are_late_after_a_rebuild() {
    let Some(world) = world().await else { return };
    world.insert_events(2, 20).await;
    world.settle().await;
    // The outbox forgets rows that the consumer has yet to receive.
    world.execute("ALTER TABLE app_outbox DISABLE TRIGGER USER").await;
    world.execute("DELETE FROM app_outbox WHERE version <= 10").await;
    world.execute("ALTER TABLE app_outbox ENABLE TRIGGER USER").await;
    world.succeed(INTO).await;
    assert_eq!(world.applied_count().await, 10);
    world.insert_events(2, 4).await;
    world.catch_up().await;
    world.consume_all().await;
    let states = "SELECT count(*) FROM app_inbox WHERE generation = 2 AND status = ";
    assert_eq!(world.number(&format!("{states}'late'")).await, 10);
    assert_eq!(world.number(&format!("{states}'done'")).await, 14);
}

#[tokio::test]
async fn a_rebuild_that_continues_counts_no_event_as_late() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 100).await;
    world.catch_up().await;
    world.consume_all().await;
    let killed =
        world.command(INTO).env("WALRELAY_FAILPOINT", "side-by-side-filled").finish(DEADLINE).await;
    assert_eq!(killed.code, None, "{}", killed.text);
    // Fewer rows come before the new ones than before the old ones.
    world.execute("ALTER TABLE app_outbox DISABLE TRIGGER USER").await;
    world.execute("DELETE FROM app_outbox WHERE version <= 15").await;
    world.execute("ALTER TABLE app_outbox ENABLE TRIGGER USER").await;
    world.insert_events(5, 20).await;
    let told = world.succeed(INTO.into_iter().chain(["--yes"])).await;
    assert!(told.contains("continuing"), "{told}");
    let states = "SELECT count(*) FROM app_inbox WHERE generation = 2 AND status = ";
    assert_eq!(world.number(&format!("{states}'late'")).await, 0);
    assert_eq!(world.number(&format!("{states}'done'")).await, 120);
}

#[tokio::test]
async fn a_killed_rebuild_frees_its_lock_although_a_statement_is_running() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    let slow = "
        CREATE FUNCTION effect.add_slowly(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$
          BEGIN PERFORM pg_sleep(600); END $$";
    world.execute(slow).await;
    let mut slowly = INTO;
    slowly[6] = "effect.add_slowly";
    let mut running = world.command(slowly).start();
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'
        AND datname = current_database()";
    wait_until(DEADLINE, "the handler", async || (world.number(asleep).await == 1).then_some(()))
        .await;
    let refused = world.run(INTO).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    for part in ["server process ", "connected since ", "SELECT pg_terminate_backend("] {
        assert!(refused.text.contains(part), "{part}: {}", refused.text);
    }
    running.kill();
    wait_until(DEADLINE, "the end of the statement", async || {
        (world.number(asleep).await == 0).then_some(())
    })
    .await;
    let told = world.succeed(INTO).await;
    assert!(told.contains("switched: generation 2 is live"), "{told}");
    assert_each_once(&world).await;
}

/// Applies events, and runs a rebuild that is killed after the fill and before the switch.
async fn kill_after_the_fill(world: &InboxDatabase) {
    world.insert_events(5, 100).await;
    world.catch_up().await;
    world.consume_all().await;
    let killed =
        world.command(INTO).env("WALRELAY_FAILPOINT", "side-by-side-filled").finish(DEADLINE).await;
    assert_eq!(killed.code, None, "{}", killed.text);
}

#[tokio::test]
async fn a_rebuild_whose_tables_were_emptied_or_replaced_begins_from_the_first_row() {
    for change in [
        "DROP TABLE fresh.balance, fresh.applied;
         CREATE TABLE fresh.balance (LIKE effect.balance INCLUDING ALL);
         CREATE TABLE fresh.applied (LIKE effect.applied INCLUDING ALL)",
        "TRUNCATE fresh.balance, fresh.applied",
        "DELETE FROM fresh.balance; DELETE FROM fresh.applied",
    ] {
        let Some(world) = world().await else { return };
        kill_after_the_fill(&world).await;
        world.execute(change).await;
        let told = world.succeed(INTO).await;
        assert!(told.contains("beginning from the first row"), "{change}: {told}");
        assert!(!told.contains("continuing"), "{change}: {told}");
        assert_each_once(&world).await;
    }
}

#[tokio::test]
async fn a_rebuild_from_the_topic_beside_an_unfinished_one_is_refused_with_its_next_step() {
    let Some(world) = world().await else { return };
    kill_after_the_fill(&world).await;
    let refused = world.run(["consumer", "rebuild", CONSUMER, "--from-time", "1h", "--yes"]).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("rebuild-conflict"), "{}", refused.text);
    world.succeed(INTO).await;
    assert_each_once(&world).await;
}

#[tokio::test]
async fn a_rebuild_that_lost_one_of_its_tables_names_the_tables_to_empty() {
    let Some(world) = world().await else { return };
    kill_after_the_fill(&world).await;
    world.execute("TRUNCATE fresh.balance").await;
    let refused = world.run(INTO).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("TRUNCATE fresh.applied"), "{}", refused.text);
    world.execute("TRUNCATE fresh.applied").await;
    world.succeed(INTO).await;
    assert_each_once(&world).await;
}

#[tokio::test]
async fn tables_of_the_schema_that_reference_each_other_are_filled_and_put_in_use() {
    let Some(world) = world().await else { return };
    let keys = "
        ALTER TABLE fresh.applied ADD CONSTRAINT of_balance FOREIGN KEY (key)
          REFERENCES fresh.balance (key) DEFERRABLE INITIALLY DEFERRED;
        ALTER TABLE effect.applied ADD CONSTRAINT of_balance FOREIGN KEY (key)
          REFERENCES effect.balance (key) DEFERRABLE INITIALLY DEFERRED";
    world.execute(keys).await;
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    let told = world.succeed(INTO).await;
    assert!(told.contains("switched: generation 2 is live"), "{told}");
    assert_each_once(&world).await;
    assert_eq!(world.number("SELECT count(*) FROM fresh.applied").await, 0);
}

#[tokio::test]
async fn a_foreign_key_from_outside_to_a_table_of_the_schema_is_refused_before_the_fill() {
    let Some(world) = world().await else { return };
    let notes =
        "CREATE TABLE effect.note (key text CONSTRAINT of_fresh REFERENCES fresh.balance (key))";
    world.execute(notes).await;
    world.insert_events(5, 50).await;
    let refused = world.run(INTO).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    for part in [
        "rebuild-foreign-key-unsuitable",
        "of_fresh of effect.note references fresh.balance, and TRUNCATE would refuse",
        "drop each before the rebuild: ALTER TABLE effect.note DROP CONSTRAINT of_fresh",
    ] {
        assert!(refused.text.contains(part), "{part}: {}", refused.text);
    }
    assert_eq!(world.number("SELECT count(rebuilding) FROM app_inbox_consumer").await, 0);
}

#[tokio::test]
async fn a_consumer_whose_old_events_were_pruned_is_not_rebuilt_unasked() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    world.execute("UPDATE app_inbox SET received_at = received_at - interval '50 days'").await;
    world.succeed(["consumer", "prune", CONSUMER, "--older-than", "40d", "--yes"]).await;
    world.execute("DELETE FROM app_outbox").await;
    world.insert_events(5, 10).await;
    world.catch_up().await;
    world.consume_all().await;
    let before = read_model(&world).await;

    world
        .execute("CREATE FUNCTION effect.reset(keys text[]) RETURNS void LANGUAGE sql AS ''")
        .await;
    let rebuild = ["consumer", "rebuild", CONSUMER];
    let keys = ["--key", "key-1", "--handler", "effect.add", "--reset-function", "effect.reset"];
    for command in [&INTO[..], &[&rebuild[..], &keys].concat()] {
        for dry_run in [&["--dry-run"][..], &[]] {
            let refused = world.run([command, dry_run].concat()).await;
            assert_eq!(refused.code, Some(2), "{}", refused.text);
            assert!(refused.text.contains("were deleted from its inbox"), "{}", refused.text);
        }
    }
    assert_eq!(read_model(&world).await, before);
    assert_eq!(generation(&world).await, 1);
    let told = world.succeed(INTO.into_iter().chain(["--yes"])).await;
    assert!(told.contains("switched: generation 2 is live"), "{told}");
}

#[tokio::test]
async fn a_table_that_the_handler_leaves_empty_is_not_put_in_use_unasked() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    let before = read_model(&world).await;
    world
        .execute(
            "CREATE FUNCTION effect.other(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS
               'BEGIN INSERT INTO applied (event_id) SELECT event_id FROM unnest(events); END'",
        )
        .await;
    let mut other = INTO;
    other[6] = "effect.other";
    let refused = world.run(other).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("wrote no row to effect.balance"), "{}", refused.text);
    assert_eq!(read_model(&world).await, before);
    assert_eq!(generation(&world).await, 1);
}

#[tokio::test]
async fn a_discarded_event_is_not_applied_in_the_schema_unasked() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    world
        .execute(
            "UPDATE app_inbox SET status = 'discarded'
              WHERE event_id = (SELECT min(event_id) FROM app_inbox)",
        )
        .await;
    let before = read_model(&world).await;
    let refused = world.run(INTO).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("1 discarded event(s)"), "{}", refused.text);
    assert_eq!(read_model(&world).await, before);
    assert_eq!(generation(&world).await, 1);
    let told = world.succeed(INTO.into_iter().chain(["--yes"])).await;
    assert!(told.contains("switched: generation 2 is live"), "{told}");
}
