//! The inbox's migrations can run again and concurrently, and expose nothing to the internet.

use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;
use walrelay_inbox::{INBOX_TABLES, inbox_migrations, migrate_inbox};
use walrelay_pg_client::SqlError;
use walrelay_testkit::postgres::{TestClient, TestDatabase};

use super::messages::event;
use super::world::{EACH, apply_sql, world};

/// Lists every catalog row that a migration could change, with the transaction that wrote it.
const CATALOG: &str = "
SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
  SELECT 'class ' || xmin || ' ' || c::text AS line FROM pg_class c WHERE oid >= 16384
  UNION ALL SELECT 'attribute ' || xmin || ' ' || attrelid::regclass || attname FROM pg_attribute WHERE attrelid >= 16384
  UNION ALL SELECT 'proc ' || xmin || ' ' || p::text FROM pg_proc p WHERE oid >= 16384
  UNION ALL SELECT 'type ' || xmin || ' ' || t::text FROM pg_type t WHERE oid >= 16384
  UNION ALL SELECT 'constraint ' || xmin || ' ' || c::text FROM pg_constraint c WHERE oid >= 16384
) AS lines";

#[tokio::test]
async fn running_the_migrations_again_changes_nothing() {
    let Some(world) = world().await else { return };
    let before = world.text(CATALOG).await;
    assert!(before.contains("app_inbox_apply"), "{before}");

    migrate_inbox(&world).await.unwrap();

    assert_eq!(world.text(CATALOG).await, before);
}

const MADE: &str = "SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
      SELECT format('%s %s %s', table_name, column_name, data_type) AS line
        FROM information_schema.columns WHERE table_name LIKE 'app\\_inbox%'
      UNION ALL SELECT md5(p.prosrc) || p.oid::regprocedure FROM pg_proc p WHERE proname LIKE 'app\\_inbox%'
      UNION ALL SELECT indexdef FROM pg_indexes WHERE tablename LIKE 'app\\_inbox%') AS l";

#[tokio::test]
async fn one_script_in_one_transaction_makes_the_same() {
    let Some(world) = world().await else { return };
    let database = TestDatabase::create().await;
    let by_psql = database.connect().await;
    let files: String = inbox_migrations().into_iter().map(|m| m.sql).collect();
    by_psql.run(&format!("BEGIN; {files} COMMIT;")).await;

    assert_eq!(world.text(MADE).await, by_psql.text(MADE).await);
}

#[tokio::test]
async fn two_runs_at_the_same_moment_both_succeed() {
    for _ in 0..3 {
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

async fn migrate_on(session: TestClient) -> Result<(), SqlError> {
    migrate_inbox(&session).await
}

/// Creates a role if needed. All databases of a server, and therefore all tests, share roles.
async fn ensure_role(session: &TestClient, role: &str) {
    session
        .run(&format!(
            "DO $$ BEGIN
               PERFORM pg_advisory_xact_lock(4711);
               IF to_regrole('{role}') IS NULL THEN CREATE ROLE {role} LOGIN; END IF;
             END $$"
        ))
        .await;
}

/// Creates a database with Supabase's default privileges.
async fn open_by_default() -> (TestDatabase, TestClient) {
    let database = TestDatabase::create().await;
    let session = database.connect().await;
    for role in ["anon", "authenticated"] {
        ensure_role(&session, role).await;
        session
            .run(&format!(
                "GRANT USAGE ON SCHEMA public TO {role};
                 ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO {role};
                 ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON SEQUENCES TO {role}, PUBLIC;
                 ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON FUNCTIONS TO {role}"
            ))
            .await;
    }
    (database, session)
}

/// Lists the inbox's sequences that the web roles may use.
const OPEN_SEQUENCES: &str = "SELECT coalesce(string_agg(r.role || ' ' || c.relname, ', '), 'none')
   FROM unnest(ARRAY['anon', 'authenticated', 'public']) AS r(role), pg_class AS c
  WHERE c.relname LIKE 'app\\_inbox%'
    AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege(r.role, c.oid, 'USAGE, SELECT, UPDATE') END";

#[tokio::test]
async fn the_internet_gets_no_right_whatever_the_defaults_are() {
    let (_database, session) = open_by_default().await;

    migrate_inbox(&session).await.unwrap();

    session.run("CREATE TABLE control (n int)").await;
    let control = "SELECT has_table_privilege('anon', 'control', 'INSERT')::text";
    assert_eq!(session.text(control).await, "true", "the defaults are in force");
    let granted = "SELECT coalesce(string_agg(r.role || ' ' || o.name, ', '), 'none')
       FROM unnest(ARRAY['anon', 'authenticated']) AS r(role),
       LATERAL (
         SELECT c.relname AS name FROM pg_class c,
                unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS p(name)
          WHERE c.relname LIKE 'app\\_inbox%' AND c.relkind = 'r' AND has_table_privilege(r.role, c.oid, p.name)
         UNION ALL
         SELECT proname FROM pg_proc f
          WHERE proname LIKE 'app\\_inbox%' AND has_function_privilege(r.role, f.oid, 'EXECUTE')) AS o";
    assert_eq!(session.text(granted).await, "none");
    assert_eq!(session.text(OPEN_SEQUENCES).await, "none");
    let unprotected = "SELECT count(*)::text FROM pg_class WHERE relname LIKE 'app\\_inbox%' AND relkind = 'r' AND NOT relrowsecurity";
    assert_eq!(session.text(unprotected).await, "0");
    let tables =
        "SELECT count(*)::text FROM pg_class WHERE relname LIKE 'app\\_inbox%' AND relkind = 'r'";
    assert_eq!(session.text(tables).await, INBOX_TABLES.len().to_string());
}

#[tokio::test]
async fn a_role_of_its_own_applies_with_the_grants_of_the_readme() {
    let Some(world) = world().await else { return };
    ensure_role(&world, "inbox_reader").await;
    let visitor = TestClient::as_role(&world.database, "inbox_reader").await;
    let sql = apply_sql(EACH, &[event(1, "a")], "");
    let error = visitor.query(&sql, &[]).await.expect_err("no right yet");
    assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));

    let grants = first_sql(ROLES, "## A role for a consumer");
    let grants: Vec<&str> = grants.lines().filter(|l| !l.starts_with("CREATE ROLE")).collect();
    world.run(&grants.join("\n").replace("walrelay_consumer", "inbox_reader")).await;
    world.run("GRANT INSERT, SELECT, UPDATE ON balance, applied TO inbox_reader").await;

    let rows = visitor.query(&sql, &[]).await.unwrap();
    assert_eq!(rows[0].get::<_, String>(0), "done");
    // Storing, retrying and settling an event need no further privilege.
    let failing = apply_sql(EACH, &[event(2, "a").failing("P0001"), event(3, "a")], "");
    visitor.query(&failing, &[]).await.unwrap();
    visitor
        .query("SELECT * FROM app_inbox_redeliver('c', 1, 'add(app_inbox_event)')", &[])
        .await
        .unwrap();
    visitor.query("SELECT app_inbox_accept('c', 'x', 'k', 1, NULL, NULL)", &[]).await.unwrap();
    world.run("DROP OWNED BY inbox_reader").await;
}

const ROLES: &str = include_str!("../../../../../docs/how-to/deploy/roles.md");
const UNINSTALL: &str = include_str!("../../../../../docs/how-to/operate/uninstall.md");

/// Returns the first SQL block after this text of a page.
fn first_sql(page: &'static str, text: &str) -> &'static str {
    let (_, section) = page.split_once(text).expect("the section");
    let (_, block) = section.split_once("```sql\n").expect("its SQL");
    block.split_once("```").expect("its end").0
}

#[tokio::test]
async fn the_page_about_uninstalling_removes_everything() {
    let Some(world) = world().await else { return };
    world.run("DROP FUNCTION add, add_all").await;
    world.run(first_sql(UNINSTALL, "In a consumer's database:\n")).await;

    let left = "SELECT count(*)::text FROM (SELECT relname FROM pg_class UNION ALL SELECT proname FROM pg_proc
                  UNION ALL SELECT typname FROM pg_type) AS n(name) WHERE name LIKE '%app\\_inbox%'";
    assert_eq!(world.text(left).await, "0");
    migrate_inbox(&world).await.unwrap();
}
