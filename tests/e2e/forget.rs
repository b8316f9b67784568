//! `forget`: only the named aggregates, and none whose event is being written.

use serde_json::{Value, json};
use walrelay_tests::InboxDatabase;

/// Writes this number of events of an aggregate.
async fn emit(world: &InboxDatabase, id: &str, events: usize) {
    let sql = format!("SELECT app_outbox_emit('order', '{id}', 'Changed', '{{}}');");
    world.execute(&sql.repeat(events)).await;
}

async fn forget<'a>(world: &InboxDatabase, arguments: impl IntoIterator<Item = &'a str>) -> Value {
    let arguments = ["forget", "order", "-o", "json", "--yes"].into_iter().chain(arguments);
    serde_json::from_str(&world.succeed(arguments).await).expect("a JSON object")
}

async fn known(world: &InboxDatabase) -> i64 {
    world.number("SELECT count(*) FROM app_outbox_aggregate").await
}

#[tokio::test]
async fn only_the_named_aggregates_are_forgotten_and_a_dry_run_forgets_none() {
    let Some(world) = InboxDatabase::create().await else { return };
    for id in ["A-1", "A-2", "A-3", "A-4"] {
        emit(&world, id, 2).await;
    }
    let told = world.succeed(["forget", "order", "A-1", "no such", "--dry-run"]).await;
    assert_eq!(told, "would forget the versions of 1 aggregate(s) of type order");
    let refused = world.run(["forget", "order", "A-1"]).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert_eq!(known(&world).await, 4);

    let first = forget(&world, ["A-1", "no such"]).await;
    assert_eq!(first, json!({ "forgotten": 1, "kept": [], "unknown": ["no such"] }));
    let path = std::env::temp_dir().join(format!("{}-ids", world.name()));
    std::fs::write(&path, "A-2\n\nA-3\n").expect("a file");
    let listed = forget(&world, ["--from-file", path.to_str().expect("UTF-8")]).await;
    std::fs::remove_file(&path).ok();
    assert_eq!(listed, json!({ "forgotten": 2, "kept": [], "unknown": [] }));
    let left =
        "SELECT count(*) FROM app_outbox_aggregate WHERE aggregateid = 'A-4' AND version = 2";
    assert_eq!((known(&world).await, world.number(left).await), (1, 1));
    assert_eq!(world.number("SELECT count(*) FROM app_outbox").await, 8, "an event is gone");
}

#[tokio::test]
async fn an_aggregate_whose_event_is_being_written_is_kept_and_its_versions_have_no_gap() {
    let Some(world) = InboxDatabase::create().await else { return };
    emit(&world, "A-1", 2).await;
    emit(&world, "A-2", 2).await;
    let producer = world.connect().await;
    let writing = "BEGIN; SELECT app_outbox_emit('order', 'A-1', 'Changed', '{}')";
    producer.batch_execute(writing).await.expect("an event in flight");
    let told = forget(&world, ["A-1", "A-2"]).await;
    assert_eq!(told, json!({ "forgotten": 1, "kept": ["A-1"], "unknown": [] }));
    producer.batch_execute("COMMIT").await.expect("committed");
    emit(&world, "A-1", 1).await;
    let versions = "SELECT count(DISTINCT version) FROM app_outbox
                     WHERE aggregateid = 'A-1' AND version BETWEEN 1 AND 4";
    assert_eq!(world.number(versions).await, 4);

    // An event that is rolled back also keeps its aggregate, because it may be written again.
    producer.batch_execute(writing).await.expect("an event in flight");
    assert_eq!(forget(&world, ["A-1"]).await["kept"], json!(["A-1"]));
    producer.batch_execute("ROLLBACK").await.expect("rolled back");
    assert_eq!(forget(&world, ["A-1"]).await["forgotten"], json!(1));
}

#[tokio::test]
async fn aggregates_that_row_level_security_hides_are_not_reported_as_unknown() {
    let Some(world) = InboxDatabase::create().await else { return };
    emit(&world, "A-1", 1).await;
    let role = format!("{}_forgets", world.name());
    world
        .execute(&format!(
            "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA public TO {role};
             GRANT SELECT, DELETE ON app_outbox_aggregate TO {role}"
        ))
        .await;
    let url = world.url().replacen("postgres@", &format!("{role}@"), 1);
    let arguments = ["forget", "order", "A-1", "--yes"];
    let refused = world.command(arguments).env("DATABASE_URL", &url);
    let refused = refused.finish(walrelay_tests::DEADLINE).await;
    world.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    assert!(refused.text.contains("rows-hidden"), "{}", refused.text);
    assert_eq!(known(&world).await, 1);
}
