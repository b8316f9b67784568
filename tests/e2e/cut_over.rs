//! `init --backfill --unpublished-where`: the rows that another publisher has not published, by a
//! condition.

use walrelay_tests::{DEADLINE, InboxDatabase, topic};

/// An outbox of a poller, with the marks of three kinds of pollers. Each row has its own version.
const TABLE: &str = "CREATE TYPE state AS ENUM ('new', 'sent', 'failed');
    CREATE TABLE app_outbox (
      id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL DEFAULT 'video',
      aggregateid text NOT NULL DEFAULT 'v-1', event_type text NOT NULL DEFAULT 'made', version bigint NOT NULL,
      schema_version int NOT NULL DEFAULT 1, payload jsonb NOT NULL DEFAULT '{}', headers jsonb,
      occurred_at timestamptz NOT NULL DEFAULT now(),
      status smallint, state state, processed_on timestamptz, error text, locked_by text);
    INSERT INTO app_outbox (version, status, state, processed_on, error, locked_by) VALUES
      (1, 0, 'new', NULL, NULL, NULL),
      (2, 2, 'sent', now(), NULL, NULL),
      (3, 1, 'failed', now(), 'no answer', NULL),
      (4, 0, 'new', NULL, NULL, 'poller-7'),
      (5, NULL, NULL, now(), NULL, NULL)";

async fn world() -> Option<InboxDatabase> {
    let world = InboxDatabase::create_empty().await?;
    world.execute(TABLE).await;
    Some(world)
}

/// Returns the versions that were published, in order.
fn published(world: &InboxDatabase) -> Vec<String> {
    let messages = world.pubsub.emulator().published(&topic("video.events"));
    messages.iter().filter_map(|it| it.attribute("version").map(str::to_owned)).collect()
}

#[tokio::test]
async fn a_status_an_error_or_a_lock_may_decide_which_rows_are_published() {
    for (condition, numbers, versions) in [
        (
            "status <> 2",
            "3 row(s) of public.app_outbox, and never 1 for which it is false and 1",
            "134",
        ),
        (
            "state <> 'sent'",
            "3 row(s) of public.app_outbox, and never 1 for which it is false and 1",
            "134",
        ),
        (
            "processed_on IS NULL OR error IS NOT NULL",
            "3 row(s) of public.app_outbox, and never 2",
            "134",
        ),
        // A lock says nothing about a row whose poller died.
        ("processed_on IS NULL", "2 row(s) of public.app_outbox, and never 3", "14"),
    ] {
        let Some(world) = world().await else { return };
        let init = ["init", "--backfill", "--unpublished-where", condition];
        let asked = world.run(init).await;
        assert_eq!(asked.code, Some(2), "{condition}: {}", asked.text);
        assert!(asked.text.contains(numbers), "{condition}: {}", asked.text);
        let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
        assert_eq!(world.number(slots).await, 0);
        world.succeed(init.into_iter().chain(["--yes"])).await;
        let stored = "SELECT count(*) FROM app_outbox_relay WHERE operation ->> 'unpublished_where' IS NOT NULL";
        assert_eq!(world.number(stored).await, 1, "{condition}");
        world.execute("INSERT INTO app_outbox (version, status) VALUES (6, 2)").await;
        world.catch_up().await;
        assert_eq!(published(&world).concat(), format!("{versions}6"), "{condition}");
    }
}

#[tokio::test]
async fn a_condition_that_could_change_its_answer_is_refused_with_the_reason() {
    let Some(world) = world().await else { return };
    world
        .execute("CREATE FUNCTION guess() RETURNS boolean LANGUAGE sql AS 'SELECT random() < 0.5'")
        .await;
    for (condition, reason) in [
        ("random() < 0.5", "must be marked IMMUTABLE"),
        ("guess()", "must be marked IMMUTABLE"),
        ("occurred_at < now()", "must be marked IMMUTABLE"),
        ("id IN (SELECT id FROM app_outbox)", "cannot use subquery"),
        ("EXISTS (SELECT FROM pg_class)", "cannot use subquery"),
        ("pg_class.relname = 'x'", "missing FROM-clause entry"),
        ("count(*) > 1", "aggregate functions are not allowed"),
        ("sent IS NULL", "does not exist"),
        ("status", "must be type boolean"),
        ("true); DROP TABLE app_outbox; SELECT (1", "cannot insert multiple commands"),
        ("true) --", "syntax error"),
        ("", "syntax error"),
    ] {
        let init = ["init", "--backfill", "--yes", "--unpublished-where", condition];
        let refused = world.run(init).await;
        assert_eq!(refused.code, Some(2), "{condition}: {}", refused.text);
        assert!(refused.text.contains(reason), "{condition}: {}", refused.text);
        assert!(refused.text.contains("--unpublished-where"), "{condition}: {}", refused.text);
    }
    assert_eq!(world.number("SELECT count(*) FROM app_outbox").await, 5);
    let both = ["--unpublished-where", "true", "--unpublished-column", "processed_on"];
    assert_eq!(world.run(["init", "--backfill"].into_iter().chain(both)).await.code, Some(2));
}

#[tokio::test]
async fn a_column_alone_is_warned_of_where_failed_rows_may_have_it_set() {
    let Some(world) = world().await else { return };
    let init = ["init", "--backfill", "--unpublished-column", "processed_on", "--yes"];
    let told = world.succeed(init).await;
    let expected = "warning: public.app_outbox has status, processed_on, error. If the other publisher sets processed_on";
    assert!(told.contains(expected) && told.contains("--unpublished-where"), "{told}");
    world.catch_up().await;
    world.pubsub.wait_stored(DEADLINE, 2).await;
    assert_eq!(published(&world).concat(), "14");
}

#[tokio::test]
async fn a_condition_counts_only_rows_that_the_publication_sends() {
    let Some(world) = world().await else { return };
    world
        .execute(&format!(
            "CREATE PUBLICATION {} FOR TABLE ONLY app_outbox WHERE (version <> 4)
               WITH (publish = 'insert', publish_via_partition_root = true)",
            world.name()
        ))
        .await;
    let init = ["init", "--backfill", "--unpublished-where", "status <> 2"];
    let asked = world.run(init).await;
    assert!(asked.text.contains("2 row(s) of public.app_outbox, and never 1"), "{}", asked.text);
    world.succeed(init.into_iter().chain(["--yes"])).await;
    world.catch_up().await;
    assert_eq!(published(&world).concat(), "13");
}

#[tokio::test]
async fn a_condition_means_the_same_for_each_table_or_is_refused() {
    let Some(world) = world().await else { return };
    world
        .execute(
            "CREATE TABLE same (LIKE app_outbox INCLUDING ALL);
             CREATE TABLE other (LIKE app_outbox INCLUDING ALL);
             ALTER TABLE other ALTER COLUMN status TYPE text",
        )
        .await;
    let init = ["init", "--backfill", "--yes", "--unpublished-where", "status <> '2'"];
    let refused = world
        .run(init.into_iter().chain(["--outbox-table", "public.app_outbox,public.other"]))
        .await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("for public.other"), "{}", refused.text);
    let tables = ["--outbox-table", "public.app_outbox,public.same"];
    world.succeed(init.into_iter().chain(tables)).await;
    world.catch_up().await;
    assert_eq!(published(&world).concat(), "134");
}

#[tokio::test]
async fn a_column_of_a_table_that_does_not_exist_is_refused_before_anything_is_created() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let refused = world.run(["init", "--backfill", "--unpublished-column", "published_at"]).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("unpublished-column-missing"), "{}", refused.text);
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
    assert_eq!(world.number(slots).await, 0);
    let condition = ["init", "--backfill", "--unpublished-where", "status <> 2"];
    let missing = world.run(condition).await;
    assert_eq!(missing.code, Some(3), "{}", missing.text);
    assert!(missing.text.contains("outbox-table-missing"), "{}", missing.text);
}

#[tokio::test]
async fn a_begun_backfill_keeps_its_condition() {
    let Some(world) = world().await else { return };
    let init = ["init", "--backfill", "--yes", "--unpublished-where"];
    world.succeed(init.into_iter().chain(["true"])).await;
    world.succeed(init.into_iter().chain(["true"])).await;
    let other = world.run(init.into_iter().chain(["status <> 2"])).await;
    assert_eq!(other.code, Some(3), "{}", other.text);
    assert!(other.text.contains("a backfill of the rows for which true"), "{}", other.text);
    world.catch_up().await;
    assert_eq!(published(&world).concat().len(), 5);
}

#[tokio::test]
async fn a_later_row_on_which_the_condition_fails_is_published_by_the_slot() {
    let Some(world) = world().await else { return };
    world.execute("ALTER TABLE app_outbox ADD COLUMN code text DEFAULT '7'").await;
    world.succeed(["init", "--backfill", "--yes", "--unpublished-where", "code::int > 5"]).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, code)
             VALUES ('video', 'v-1', 'made', 6, '{}', 'no number')",
        )
        .await;
    world.catch_up().await;
    assert_eq!(published(&world).concat().len(), 6);
}
