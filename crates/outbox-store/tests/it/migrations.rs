//! Runs the migrations on a real server: twice, from two sessions, and next to other tables.

use super::support::migrated;
use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;
use walrelay_outbox_store::{StoreError, migrate, migrations};
use walrelay_pg_client::QualifiedName;
use walrelay_testkit::postgres::{TestClient, TestDatabase};

/// Returns every catalog row that a migration could change, with the transaction that wrote it.
async fn catalog(session: &TestClient) -> String {
    session
        .text(
            "SELECT string_agg(line, E'\\n' ORDER BY line)
               FROM (
                 SELECT 'class ' || c.xmin || ' ' || c::text AS line FROM pg_class c
                  WHERE relnamespace NOT IN ('pg_catalog'::regnamespace, 'pg_toast'::regnamespace)
                 UNION ALL SELECT 'attribute ' || a.xmin || ' ' || attrelid::regclass || attname || attnum
                   FROM pg_attribute a WHERE attrelid >= 16384
                 UNION ALL SELECT 'trigger ' || t.xmin || ' ' || t::text FROM pg_trigger t
                 UNION ALL SELECT 'proc ' || p.xmin || ' ' || p::text FROM pg_proc p WHERE oid >= 16384
                 UNION ALL SELECT 'constraint ' || c.xmin || ' ' || c::text FROM pg_constraint c WHERE oid >= 16384
                 UNION ALL SELECT 'policy ' || p::text FROM pg_policy p
                 UNION ALL SELECT 'namespace ' || n.xmin || ' ' || n::text FROM pg_namespace n WHERE nspname !~ '^pg_'
               ) AS lines",
        )
        .await
}

fn outbox() -> QualifiedName {
    QualifiedName::new("public", "app_outbox")
}

async fn refused(session: &TestClient, sql: &str) -> tokio_postgres::Error {
    let done = session.batch_execute(sql).await;
    done.expect_err(&format!("{sql} was accepted"))
}

const INSERT: &str =
    "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
                      VALUES ('order', '1', 'made', 1, '{}')";

#[tokio::test]
async fn running_the_migrations_again_changes_nothing() {
    let (_database, session) = migrated().await;
    let before = catalog(&session).await;
    assert!(before.contains("app_outbox_dispatch"), "{before}");

    migrate(&session, &[outbox()]).await.unwrap();

    assert_eq!(catalog(&session).await, before);
}

#[tokio::test]
async fn psql_and_init_run_the_same_files() {
    let (_database, by_init) = migrated().await;
    let database = TestDatabase::create().await;
    let by_psql = database.connect().await;
    // One transaction, as `supabase db push` and `psql -1` run the script.
    let files: String = migrations(&[outbox()]).into_iter().map(|m| m.sql).collect();
    by_psql.run(&format!("BEGIN; {files} COMMIT;")).await;

    let columns = "SELECT string_agg(format('%s %s %s %s %s', table_name, column_name, data_type, is_nullable, column_default), E'\\n'
                                     ORDER BY table_name, ordinal_position)
                     FROM information_schema.columns WHERE table_schema = 'public'";
    assert_eq!(by_init.text(columns).await, by_psql.text(columns).await);
}

#[tokio::test]
async fn two_runs_at_the_same_moment_both_succeed() {
    for _ in 0..5 {
        let database = TestDatabase::create().await;
        let mut runs = JoinSet::new();
        for _ in 0..4 {
            runs.spawn(migrate_on(database.connect().await));
        }
        while let Some(run) = runs.join_next().await {
            run.unwrap().unwrap();
        }
    }
}

async fn migrate_on(session: TestClient) -> Result<(), StoreError> {
    migrate(&session, &[outbox()]).await
}

#[tokio::test]
async fn an_outbox_that_exists_is_left_alone() {
    let database = TestDatabase::create().await;
    let session = database.connect().await;
    session
        .run("CREATE TABLE app_outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)")
        .await;
    let table = "SELECT c.xmin || ' ' || c::text || (SELECT count(*) FROM pg_trigger WHERE tgrelid = c.oid) FROM pg_class c WHERE relname = 'app_outbox'";
    let before = session.text(table).await;

    migrate(&session, &[outbox()]).await.unwrap();

    assert_eq!(session.text(table).await, before);
    assert_eq!(
        session.text("SELECT to_regclass('public.app_outbox_relay')::text").await,
        "app_outbox_relay"
    );
}

#[tokio::test]
async fn other_outbox_tables_are_created_beside() {
    let database = TestDatabase::create().await;
    let session = database.connect().await;
    session.run("CREATE SCHEMA billing; CREATE SCHEMA \"It's 100% \"\"odd\"\"\"").await;
    let tables = [
        QualifiedName::new("billing", "app_outbox"),
        QualifiedName::new("billing", "Second $ outbox"),
        QualifiedName::new("It's 100% \"odd\"", "a\\b"),
    ];

    migrate(&session, &tables).await.unwrap();
    let before = catalog(&session).await;
    migrate(&session, &tables).await.unwrap();

    assert_eq!(catalog(&session).await, before);
    assert_eq!(
        session.text("SELECT coalesce(to_regclass('public.app_outbox')::text, 'none')").await,
        "none"
    );
    for table in tables {
        session.run(&INSERT.replace("app_outbox", &table.to_string())).await;
        let error = refused(&session, &format!("UPDATE {table} SET version = 2")).await;
        let message = error.as_db_error().unwrap().message().to_owned();
        assert!(
            message.contains(&format!("{}.{} is append-only", table.schema(), table.table())),
            "{message}"
        );
    }
}

#[tokio::test]
async fn the_outbox_is_append_only() {
    let (_database, session) = migrated().await;
    session.run(INSERT).await;

    for (sql, operation) in [
        ("UPDATE app_outbox SET version = 2", "UPDATE"),
        ("UPDATE app_outbox SET version = 2 WHERE false", "UPDATE"),
        (
            "INSERT INTO app_outbox SELECT * FROM app_outbox ON CONFLICT (id) DO UPDATE SET version = 3",
            "UPDATE",
        ),
        ("TRUNCATE app_outbox", "TRUNCATE"),
    ] {
        let error = refused(&session, sql).await;
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code(), &SqlState::RESTRICT_VIOLATION, "{sql}");
        assert_eq!(
            error.message(),
            format!("public.app_outbox is append-only: {operation} is refused")
        );
        assert!(error.hint().unwrap().contains("DELETE"), "{error:?}");
    }
    session.run("INSERT INTO app_outbox SELECT * FROM app_outbox ON CONFLICT DO NOTHING").await;
    session
        .run(&format!("BEGIN; DELETE FROM app_outbox; {INSERT}; DELETE FROM app_outbox; COMMIT"))
        .await;
    assert_eq!(session.text("SELECT count(*)::text FROM app_outbox").await, "0");
}

#[tokio::test]
async fn the_guard_does_not_depend_on_the_search_path() {
    let (_database, session) = migrated().await;
    // Replacements for the functions by which the guard detects an UPDATE, on the caller's search
    // path.
    session
        .run(
            "CREATE SCHEMA evil;
             CREATE FUNCTION evil.same(name, text) RETURNS bool LANGUAGE sql AS 'SELECT false';
             CREATE FUNCTION evil.same(text, text) RETURNS bool LANGUAGE sql AS 'SELECT false';
             CREATE OPERATOR evil.= (FUNCTION = evil.same, LEFTARG = text, RIGHTARG = text)",
        )
        .await;
    session.run("SET search_path = evil, pg_catalog, public").await;
    let error = refused(&session, "UPDATE app_outbox SET version = 2").await;
    let hint = error.as_db_error().unwrap().hint().unwrap();
    assert!(hint.starts_with("INSERT a new row"), "{hint}");
    let config = "SELECT array_to_string(proconfig, ' ') FROM pg_proc WHERE proname = 'app_outbox_is_append_only'";
    assert_eq!(session.text(config).await, "search_path=\"\"");
}

/// Creates the web roles if needed. All databases of a server, and therefore all tests, share
/// roles.
async fn ensure_web_roles(session: &TestClient) {
    session
        .run(
            "DO $$ BEGIN
               PERFORM pg_advisory_xact_lock(4711);
               IF to_regrole('anon') IS NULL THEN CREATE ROLE anon LOGIN; END IF;
               IF to_regrole('authenticated') IS NULL THEN CREATE ROLE authenticated LOGIN; END IF;
             END $$",
        )
        .await;
}

#[tokio::test]
async fn the_internet_gets_no_right_whatever_the_defaults_are() {
    let database = TestDatabase::create().await;
    let session = database.connect().await;
    ensure_web_roles(&session).await;
    // Defaults as on Supabase.
    session
        .run(
            "GRANT USAGE ON SCHEMA public TO anon, authenticated;
             ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO anon, authenticated, PUBLIC;
             ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON SEQUENCES TO anon, authenticated, PUBLIC;
             ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON FUNCTIONS TO anon, authenticated",
        )
        .await;

    migrate(&session, &[outbox()]).await.unwrap();

    session.run("CREATE TABLE control (n int)").await;
    let control = "SELECT has_table_privilege('anon', 'control', 'INSERT')::text";
    assert_eq!(session.text(control).await, "true", "the defaults are in force");
    let granted = session
        .text(
            "SELECT count(*)::text
               FROM unnest(ARRAY['anon', 'authenticated']) AS r(role),
                    unnest(ARRAY['app_outbox', 'app_outbox_dispatch', 'app_outbox_relay', 'app_outbox_aggregate',
                          'app_outbox_hold', 'app_outbox_key', 'app_outbox_snapshot', 'app_outbox_partitioning']) AS t(name),
                    unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS p(name)
              WHERE has_table_privilege(r.role, t.name, p.name)",
        )
        .await;
    assert_eq!(granted, "0");
    let sequences =
        "SELECT count(*)::text FROM pg_class WHERE relname LIKE 'app\\_outbox%'
                        AND CASE relkind WHEN 'S' THEN has_sequence_privilege('anon', oid, 'USAGE, SELECT, UPDATE') END";
    assert_eq!(session.text(sequences).await, "0");
    for role in ["anon", "authenticated"] {
        let sql = format!(
            "SELECT coalesce(string_agg(proname, ' '), 'none') FROM pg_proc
              WHERE proname LIKE 'app\\_outbox%' AND has_function_privilege('{role}', oid, 'EXECUTE')"
        );
        assert_eq!(session.text(&sql).await, "none");
        let visitor = TestClient::as_role(&database, role).await;
        let error = refused(&visitor, INSERT).await;
        assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
    }
    let unprotected = "SELECT count(*)::text FROM pg_class WHERE relname LIKE 'app\\_outbox%' AND relkind = 'r' AND NOT relrowsecurity";
    assert_eq!(session.text(unprotected).await, "0");
}
