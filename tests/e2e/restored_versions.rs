//! A restored database gives versions again. A handler that compares versions then ignores new
//! events, until the versions are raised or the read model is rebuilt.

use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase};

/// A handler that compares versions, like the one of `consumer scaffold`.
const HANDLER: &str = "
CREATE TABLE latest (id text PRIMARY KEY, version bigint NOT NULL, n bigint NOT NULL);
CREATE FUNCTION set_latest(events app_inbox_event[]) RETURNS void LANGUAGE sql AS $$
  INSERT INTO latest AS t
  SELECT DISTINCT ON (e.aggregate_id) e.aggregate_id, e.version, (e.payload ->> 'n')::bigint
    FROM unnest(events) AS e ORDER BY e.aggregate_id, e.version DESC
  ON CONFLICT (id) DO UPDATE SET version = excluded.version, n = excluded.n
    WHERE t.version < excluded.version
$$;
CREATE FUNCTION reset_latest(keys text[]) RETURNS void LANGUAGE sql AS $$
  DELETE FROM latest WHERE id = ANY (keys)
$$;";

/// The outbox and the counters of versions return to the state of the backup, as in a restore.
const RESTORE: &str = "
ALTER TABLE app_outbox DISABLE TRIGGER USER;
DELETE FROM app_outbox WHERE id NOT IN (SELECT id FROM backup_outbox);
UPDATE app_outbox_aggregate AS a SET version = b.version
  FROM backup_aggregate AS b WHERE b.aggregateid = a.aggregateid;";

/// Emits events of one aggregate, and applies them.
async fn emit(world: &InboxDatabase, numbers: &[i64]) {
    for n in numbers {
        let emit = format!("SELECT app_outbox_emit('video', 'x', 'made', '{{\"n\": {n}}}')");
        world.execute(&emit).await;
    }
    world.catch_up().await;
    let consume = ["consumer", "run", CONSUMER, "--handler", "set_latest", "--until-caught-up"];
    let done = world.command(consume).finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
}

/// Creates a world whose consumer has seen three versions that the restore has lost.
async fn restored_world() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world.set_up_consumer().await;
    world.execute(HANDLER).await;
    emit(&world, &[1]).await;
    let backup = "CREATE TABLE backup_outbox AS TABLE app_outbox;
        CREATE TABLE backup_aggregate AS TABLE app_outbox_aggregate";
    world.execute(backup).await;
    emit(&world, &[2, 3, 4]).await;
    world.execute(RESTORE).await;
    Some(world)
}

async fn latest(world: &InboxDatabase) -> (i64, i64) {
    let row = world.client().query_one("SELECT version, n FROM latest", &[]).await.expect("a row");
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn a_rebuild_of_a_key_applies_the_event_whose_version_was_given_before_a_restore() {
    let Some(world) = restored_world().await else { return };
    emit(&world, &[99]).await;
    assert_eq!(latest(&world).await, (4, 4), "the handler has ignored version 2");
    let rebuild = ["consumer", "rebuild", CONSUMER, "--key", "x", "--handler", "set_latest"];
    let options = ["--reset-function", "reset_latest", "--yes"];
    world.succeed(rebuild.into_iter().chain(options)).await;
    assert_eq!(latest(&world).await, (2, 99));
    emit(&world, &[100]).await;
    assert_eq!(latest(&world).await, (3, 100));
}

#[tokio::test]
async fn raised_versions_make_a_handler_apply_the_events_after_a_restore() {
    let Some(world) = restored_world().await else { return };
    world.execute("UPDATE app_outbox_aggregate SET version = version + 1000000").await;
    emit(&world, &[99]).await;
    assert_eq!(latest(&world).await, (1_000_002, 99));
    emit(&world, &[100]).await;
    assert_eq!(latest(&world).await, (1_000_003, 100));
}

#[tokio::test]
async fn positions_that_are_forgotten_after_a_restore_make_no_event_late() {
    let Some(world) = restored_world().await else { return };
    // As after a move to a server whose WAL has lower positions.
    world.execute("UPDATE app_inbox_key SET commit_lsn = 'FFFF/0'").await;
    let late = "SELECT count(*) FROM app_inbox WHERE status = 'late'";
    emit(&world, &[5]).await;
    assert_eq!(world.number(late).await, 1);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/how-to/operate/restored-database.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let from = page.find("UPDATE app_inbox_key").expect("the statement");
    let statement = page[from..].split(';').next().expect("its end");
    world.execute(&statement.replace("billing", CONSUMER)).await;
    emit(&world, &[6, 7]).await;
    assert_eq!(world.number(late).await, 1);
}
