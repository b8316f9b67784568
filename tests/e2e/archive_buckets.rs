//! The archive in a bucket: what is stored, each problem with its code, and a relay that publishes
//! while the bucket is away.

use std::collections::HashSet;

use serde_json::{Value, json};
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::relay::Finished;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, ObjectStore, ObjectStoreKind};

use super::archive::{Directory, ids, read_archive, wait_old_enough};

const ROWS: &str = "SELECT count(*) FROM app_outbox";

/// Writes some rows that may be deleted, and returns their ids.
async fn old_rows(world: &InboxDatabase) -> HashSet<String> {
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    world.settle().await;
    wait_old_enough(world).await;
    ids(world, "SELECT id::text FROM app_outbox").await
}

async fn prune(world: &InboxDatabase, store: &ObjectStore, location: &str) -> Finished {
    let arguments = ["prune", "--yes", "--older-than", "1s", "--archive", location];
    store.configure(world.command(arguments)).finish(DEADLINE).await
}

/// Checks that a prune fails with a code, deletes nothing and shows no secret.
async fn refused(world: &InboxDatabase, (store, location): (&ObjectStore, &str), code: &str) {
    let refused = prune(world, store, location).await;
    assert_eq!(refused.code, Some(1), "{}", refused.text);
    assert!(refused.text.contains(code), "{}", refused.text);
    assert!(!refused.text.contains("hunter2"), "{}", refused.text);
    assert_eq!(world.number(ROWS).await, 30, "{}", refused.text);
}

fn stored_rows(world: &InboxDatabase, store: &ObjectStore, ids: &HashSet<String>) -> Value {
    let copy = Directory::create(world);
    store.download(copy.path());
    read_archive(copy.path(), ids)
}

async fn rows_in_a_bucket(kind: ObjectStoreKind) {
    let Some(mut store) = ObjectStore::new(kind) else { return };
    let Some(world) = InboxDatabase::create().await else { return };
    let before = old_rows(&world).await;
    let location = store.location();
    refused(&world, (&store, &location), "archive-unreachable").await;
    store.start().await;
    let other = location.replace("walrelay-test", "walrelay-none");
    refused(&world, (&store, &other), "archive-missing").await;

    let done = prune(&world, &store, &location).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    assert_eq!(world.number(ROWS).await, 0);
    let read = stored_rows(&world, &store, &before);
    assert_eq!((&read["missing"], &read["lines"]), (&json!([]), &json!(30)), "{read}");

    let check = ["check", "--prune-older-than", "1s", "--prune-archive", &location, "-o", "json"];
    let checked = store.configure(world.command(check)).finish(DEADLINE).await;
    assert!(checked.text.contains("can be written and read"), "{}", checked.text);
    assert_eq!(stored_rows(&world, &store, &before)["files"], read["files"]);
}

#[tokio::test]
async fn pruned_rows_are_in_a_bucket_of_s3() {
    rows_in_a_bucket(ObjectStoreKind::S3).await;
}

#[tokio::test]
async fn pruned_rows_are_in_a_bucket_of_cloud_storage() {
    rows_in_a_bucket(ObjectStoreKind::CloudStorage).await;
}

#[tokio::test]
async fn a_refused_key_is_reported_with_the_needed_permissions() {
    let Some(mut store) = ObjectStore::new(ObjectStoreKind::S3) else { return };
    let Some(world) = InboxDatabase::create().await else { return };
    old_rows(&world).await;
    store.start().await;
    store.require_permissions();
    refused(&world, (&store, &store.location()), "s3:PutObject and s3:GetObject").await;
    let check = ["check", "--prune-older-than", "1s", "--prune-archive", &store.location()];
    let checked = store.configure(world.command(check)).finish(DEADLINE).await;
    assert_eq!(checked.code, Some(0), "{}", checked.text);
    assert!(checked.text.contains("archive-permission-missing"), "{}", checked.text);
}

#[tokio::test]
async fn a_relay_publishes_while_the_archive_is_away_and_archives_later() {
    let Some(mut store) = ObjectStore::new(ObjectStoreKind::S3) else { return };
    let Some(world) = InboxDatabase::create().await else { return };
    let location = store.location();
    let options =
        ["--prune-older-than", "1s", "--prune-interval", "1s", "--prune-archive", &location];
    let relay = store.configure(world.relay(options)).start();
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    let told = wait_until(DEADLINE, "the archive to be reported", async || {
        world.execute("SELECT pg_logical_emit_message(true, 'foreign', 'x')").await;
        relay.lines().into_iter().find(|line| line.contains("archive-unreachable"))
    })
    .await;
    assert!(told.contains("old rows stay in the outbox"), "{told}");
    world.pubsub.wait_stored(DEADLINE, 30).await;
    let is_counted = |metrics: &str| !metrics.contains("walrelay_prune_failures_total 0");
    relay.wait_for_metrics(DEADLINE, is_counted).await;
    assert_eq!(world.number(ROWS).await, 30);

    let before = ids(&world, "SELECT id::text FROM app_outbox").await;
    store.start().await;
    wait_until(DEADLINE, "the rows to be archived", async || {
        world.execute("SELECT pg_logical_emit_message(true, 'foreign', 'x')").await;
        (world.number(ROWS).await == 0).then_some(())
    })
    .await;
    assert_eq!(stored_rows(&world, &store, &before)["missing"], json!([]));
}

#[tokio::test]
async fn a_location_with_a_password_is_refused_and_not_shown() {
    let Some(world) = InboxDatabase::create().await else { return };
    let location = "s3://AKIA:hunter2@bucket";
    for arguments in [
        ["prune", "--older-than", "1s", "--archive", location],
        ["run", "--prune-older-than", "1s", "--prune-archive", location],
    ] {
        let refused = world.run(arguments).await;
        assert_eq!(refused.code, Some(2), "{}", refused.text);
        assert!(!refused.text.contains("hunter2"), "{}", refused.text);
        assert!(refused.text.contains("user name or a password"), "{}", refused.text);
    }
}

#[tokio::test]
async fn without_credentials_no_row_is_deleted() {
    let Some(world) = InboxDatabase::create().await else { return };
    old_rows(&world).await;
    let missing = [
        ("gs://bucket", ("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/credentials.json")),
        ("s3://bucket", ("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")),
    ];
    for (location, (name, value)) in missing {
        let arguments = ["prune", "--yes", "--older-than", "1s", "--archive", location];
        let refused = world.command(arguments).env(name, value).finish(DEADLINE).await;
        assert_eq!(refused.code, Some(1), "{}", refused.text);
        assert!(refused.text.contains("archive-credentials-missing"), "{}", refused.text);
        assert_eq!(world.number(ROWS).await, 30);
    }
}
