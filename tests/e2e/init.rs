//! The result of `walrelay init`, and repeated runs.

use walrelay_testkit::outbox::Workload;
use walrelay_testkit::process::Signal;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, topic};

/// Describes everything in the catalog that `init` creates, one line per object.
async fn catalog(world: &InboxDatabase) -> Vec<String> {
    let sql = "
        SELECT 'column ' || c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
               || ' ' || a.attnotnull || ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
          FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
          LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
         WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
        UNION ALL
        SELECT 'table ' || relname || ' row security ' || relrowsecurity || ' ' || coalesce(relacl::text, '')
          FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
        UNION ALL
        SELECT 'index ' || pg_get_indexdef(indexrelid) FROM pg_index
          JOIN pg_class c ON c.oid = indrelid WHERE c.relnamespace = 'public'::regnamespace
        UNION ALL
        SELECT 'trigger ' || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
        UNION ALL
        SELECT 'publication ' || puballtables || pubinsert || pubupdate || pubdelete || pubtruncate
               || pubviaroot FROM pg_publication WHERE pubname = current_database()
        UNION ALL
        SELECT 'published ' || schemaname || '.' || tablename FROM pg_publication_tables
         WHERE pubname = current_database()
        UNION ALL
        SELECT 'slot ' || plugin || ' ' || slot_type || ' ' || temporary || ' ' || two_phase
          FROM pg_replication_slots WHERE database = current_database()
        ORDER BY 1";
    let rows = world.client().query(sql, &[]).await.expect("the catalog can be read");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_second_init_changes_nothing() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(10).insert(world.client()).await.unwrap();
    let before = (catalog(&world).await, world.confirmed_flush().await);

    let again = world.succeed(["init"]).await;
    assert!(!again.contains("created"), "{}", again);
    assert_eq!((catalog(&world).await, world.confirmed_flush().await), before);
    assert!(before.0.iter().any(|line| line == "slot pgoutput logical false false"), "{before:?}");
}

#[tokio::test]
async fn an_init_that_fails_at_the_slot_says_what_it_has_made() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let role = format!("{}_owner", world.name());
    let database = world.name();
    world
        .execute(&format!(
            "CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE {database} TO {role};
             GRANT CREATE, USAGE ON SCHEMA public TO {role}"
        ))
        .await;
    let url = world.url().replacen("postgres@", &format!("{role}@"), 1);
    let done = world.run(["init", "--database-url", &url]).await;
    assert_eq!(done.code, Some(3), "{}", done.text);
    for made in ["created: table public.app_outbox\n", "created: publication "] {
        assert!(done.text.contains(made), "{made:?} is not in:\n{}", done.text);
    }
    assert!(!done.text.contains("created: slot"), "{}", done.text);
    world.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn the_printed_sql_makes_the_same_and_printing_touches_nothing() {
    let (Some(by_init), Some(by_sql)) =
        (InboxDatabase::create().await, InboxDatabase::create_empty().await)
    else {
        return;
    };

    let printed = by_sql.succeed(["init", "--sql"]).await;
    assert!(catalog(&by_sql).await.is_empty(), "printing has touched the database");
    // The statements run one by one, as in psql, because a slot cannot be created in a transaction
    // that has written.
    for _ in 0..2 {
        for statement in statements(&printed) {
            let done = by_sql.client().batch_execute(&statement).await;
            done.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
    }

    assert_eq!(catalog(&by_sql).await, catalog(&by_init).await);
    let committed = Workload::of_rows(30).insert(by_sql.client()).await.unwrap();
    by_sql.catch_up().await;
    by_sql.check(&committed).assert_exactly_once();
}

/// Splits the script into statements. A statement ends with a semicolon outside of dollar quotes
/// and comments.
fn statements(script: &str) -> Vec<String> {
    let mut statements = vec![String::new()];
    let mut quote: Option<String> = None;
    for line in script.lines() {
        let last = statements.last_mut().expect("never empty");
        last.push_str(line);
        last.push('\n');
        let code = line.split("--").next().unwrap_or(line);
        for tag in code.split('$').skip(1).step_by(2) {
            match &quote {
                Some(open) if open == tag => quote = None,
                Some(_) => {}
                None => quote = Some(tag.to_owned()),
            }
        }
        if quote.is_none() && code.trim_end().ends_with(';') {
            statements.push(String::new());
        }
    }
    statements.retain(|statement| {
        statement.lines().any(|line| !line.trim().is_empty() && !line.starts_with("--"))
    });
    statements
}

#[tokio::test]
async fn init_creates_the_topics_of_rows_and_the_topics_of_options() {
    let Some(world) = InboxDatabase::create().await else { return };
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('bad topic!', 'b-1', 'a', 1, '{}')",
        )
        .await;
    let audio = Workload { aggregate_type: "audio".into(), ..Workload::of_rows(5) };
    let committed = audio.insert(world.client()).await.unwrap();

    for told in [["created: topic", "audio"], ["already there: topic", "audio"]] {
        let done = world.run(["init", "-v", "--create-topics=true,extra.events"]).await;
        assert_eq!(done.code, Some(0), "{}", done.text);
        assert!(done.text.contains(told[0]) && done.text.contains(told[1]), "{}", done.text);
        assert!(
            done.text.contains("1 row leads to a name that no topic can have"),
            "{}",
            done.text
        );
    }
    let topics = world.pubsub.emulator().topics();
    for name in ["audio.events", "extra.events"] {
        assert!(topics.contains(&topic(name)), "{topics:?}");
    }
    let checked = world.succeed(["check"]).await;
    assert!(
        checked.contains("bad topic!.events") && checked.contains("dispatch edit"),
        "{checked}"
    );

    world.catch_up().await;
    assert_eq!(world.dispatch_count("dead").await, 1, "`check` had said so");
    world.check(&committed).assert_exactly_once();
}

#[tokio::test]
async fn updating_and_truncating_the_outbox_is_refused_and_deleting_is_not() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(5).insert(world.client()).await.unwrap();
    for refused in ["UPDATE app_outbox SET version = 0", "TRUNCATE app_outbox"] {
        let error = world.client().batch_execute(refused).await.unwrap_err();
        let error = error.as_db_error().expect("the server refuses");
        assert!(error.message().contains("append-only"), "{error}");
    }
    world.execute("DELETE FROM app_outbox").await;
}

#[tokio::test]
async fn a_database_that_is_set_up_passes_the_check() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["check"]).await;

    let done = world.succeed(["check", "--output", "json"]).await;
    serde_json::from_str::<serde_json::Value>(&done).unwrap();
}

#[tokio::test]
async fn an_init_that_waits_for_an_open_transaction_says_so_and_can_be_interrupted() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let writer = world.connect().await;
    writer.batch_execute("BEGIN; CREATE TABLE held (n int)").await.unwrap();
    let pid = writer.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get::<_, i32>(0);

    let mut waiting = world.command(["init"]).start();
    let line = waiting.wait_for_line(DEADLINE, "waits for a transaction to end").await;
    assert!(
        line.contains(&format!("process {pid}")) && line.contains("idle in transaction"),
        "{line}"
    );
    waiting.signal(Signal::Interrupt);
    assert_eq!(waiting.wait_ended(DEADLINE).await.code(), Some(1));

    // No statement keeps waiting on the server, so no slot is created after the writer ends.
    let others = "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database()
                   AND state = 'active' AND pid <> pg_backend_pid()";
    wait_until(DEADLINE, "the statement to end", async || {
        world.client().query_one(others, &[]).await.unwrap().get::<_, bool>(0).then_some(())
    })
    .await;
    writer.batch_execute("COMMIT").await.unwrap();
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
    assert_eq!(world.number(slots).await, 0);
    world.succeed(["init"]).await;
    assert_eq!(world.number(slots).await, 1);
}
