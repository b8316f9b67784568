//! Columns of the outbox that become attributes, on each way of a row to a consumer.

use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, topic};

use super::rebuild_into_schema::{INTO, PLAIN};

/// An outbox whose trigger fills the columns of attributes from the version. Odd versions have no
/// tenant.
const TABLE: &str = "CREATE TABLE app_outbox (
      id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid text NOT NULL,
      event_type text NOT NULL, version bigint NOT NULL, schema_version int NOT NULL DEFAULT 1, payload jsonb NOT NULL,
      headers jsonb, occurred_at timestamptz NOT NULL DEFAULT now(), tenant_id text, region bigint, is_even boolean);
    CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      NEW.region := NEW.version;
      NEW.is_even := NEW.version % 2 = 0;
      NEW.tenant_id := coalesce(NEW.tenant_id, CASE WHEN NEW.is_even THEN 'tenant ' || NEW.version END);
      RETURN NEW;
    END $$;
    CREATE TRIGGER fill BEFORE INSERT ON app_outbox FOR EACH ROW EXECUTE FUNCTION fill()";

const COLUMNS: [&str; 2] = ["--attribute-columns", "tenant_id,region:geo,is_even:even"];

/// Adds `rows` events of the key `v-1`, from this version on.
async fn insert(world: &InboxDatabase, version: u32, rows: u32) {
    let last = version + rows - 1;
    world
        .execute(&format!(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, headers)
             SELECT 'video', 'v-1', 'made', n, '{{}}', '{{\"geo\": \"forged\"}}' FROM generate_series({version}, {last}) AS n"
        ))
        .await;
}

/// Checks that exactly `count` messages are in the topic, each with the attributes of its version.
fn assert_attributes(world: &InboxDatabase, name: &str, count: usize) {
    let messages = world.pubsub.emulator().published(&topic(name));
    assert_eq!(messages.len(), count, "{name}");
    for message in messages {
        let version = message.attribute("version").unwrap_or_default();
        let is_even = version.parse::<u32>().is_ok_and(|number| number % 2 == 0);
        let tenant = is_even.then(|| format!("tenant {version}"));
        assert_eq!(message.attribute("geo"), Some(version), "{name}");
        assert_eq!(message.attribute("even"), Some(if is_even { "t" } else { "f" }), "{name}");
        assert_eq!(message.attribute("tenant_id"), tenant.as_deref(), "{name} {version}");
    }
}

#[tokio::test]
async fn a_column_is_an_attribute_on_each_way_of_a_row() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.execute(TABLE).await;
    insert(&world, 1, 4).await;
    world.succeed(["init", "--backfill", "--yes"].into_iter().chain(COLUMNS)).await;
    world.set_up_consumer().await;
    world.execute(PLAIN).await;
    world.catch_up().await;
    assert_attributes(&world, "video.events", 4);

    // The stream, and rows that went through dispatch state.
    world.succeed(["anchor", "create", "a"]).await;
    world.pubsub.fault("key=v-1,reject=PERMISSION_DENIED");
    let mut relay = world.start_relay(["--park-after", "300ms"]).await;
    insert(&world, 5, 4).await;
    world.wait_dispatch(DEADLINE, "retrying", 4).await;
    world.pubsub.heal();
    world.pubsub.wait_stored(DEADLINE, 8).await;
    world.wait_dispatch(DEADLINE, "retrying", 0).await;
    insert(&world, 9, 4).await;
    world.pubsub.wait_stored(DEADLINE, 12).await;
    assert_attributes(&world, "video.events", 12);

    // Replays from the WAL and from the table.
    for name in ["of-wal", "of-table"] {
        world.pubsub.create_topic(name);
    }
    let replay = ["replay", "start", "--yes"];
    let of_wal = ["--from-anchor", "a", "--to-topic", "of-wal"];
    world.succeed(replay.into_iter().chain(of_wal)).await;
    assert_attributes(&world, "of-wal", 8);
    let of_table = ["--source", "table", "--to-topic", "of-table"];
    world.succeed(replay.into_iter().chain(of_table)).await;
    assert_attributes(&world, "of-table", 12);
    world.succeed(replay.into_iter().chain(["--source", "table", "--in-place"])).await;
    assert_attributes(&world, "video.events", 24);

    // Events that a snapshot writes.
    world
        .execute("CREATE TABLE videos AS SELECT 2 AS id; ALTER TABLE videos ADD PRIMARY KEY (id)")
        .await;
    let snapshot = ["snapshot", "videos", "--aggregate-type", "video", "--aggregate-id", "id"];
    world.succeed(snapshot.into_iter().chain(["--yes"])).await;
    world.pubsub.wait_stored(DEADLINE, 8 + 12 + 25).await;
    assert_attributes(&world, "video.events", 25);
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));

    // A recovery.
    world.settle().await;
    insert(&world, 13, 4).await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;
    assert_attributes(&world, "video.events", 29);

    // A rebuild of the consumer from the table.
    world
        .execute(
            "CREATE TABLE fresh.seen (version bigint, attributes jsonb); CREATE TABLE effect.seen (LIKE fresh.seen);
             SET check_function_bodies = off;
             CREATE FUNCTION effect.see(events app_inbox_event[]) RETURNS void LANGUAGE sql AS $$
               INSERT INTO seen SELECT version, attributes FROM unnest(events) $$",
        )
        .await;
    let consume = ["consumer", "run", "ledger", "--until-caught-up", "--handler", "effect.see"];
    world.succeed(consume).await;
    let right = "SELECT count(*) FROM effect.seen WHERE attributes ->> 'geo' = version::text
                  AND attributes ->> 'tenant_id' IS NOT DISTINCT FROM CASE WHEN version % 2 = 0 THEN 'tenant ' || version END";
    assert_eq!(world.number(right).await, 17);
    world.execute("DELETE FROM effect.seen; DROP TABLE fresh.balance, fresh.applied").await;
    let rebuild = INTO.map(|it| if it == "effect.add_plain" { "effect.see" } else { it });
    world.succeed(rebuild).await;
    assert_eq!(world.number(right).await, 17);
}

#[tokio::test]
async fn a_long_value_makes_its_row_dead_as_a_long_header_does() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.execute(TABLE).await;
    world.succeed(["init"].into_iter().chain(COLUMNS)).await;
    let long = "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, tenant_id)
                VALUES ('video', 'v-1', 'made', 2, '{}', repeat('x', 1025))";
    world.execute(long).await;
    world.catch_up().await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    let listed = world.succeed(["dispatch", "list"]).await;
    assert!(listed.contains("attribute \"tenant_id\" in bytes is 1025"), "{listed}");
}

#[tokio::test]
async fn the_columns_of_attributes_are_on_record_and_checked() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.execute(TABLE).await;
    world.execute("ALTER TABLE app_outbox ADD COLUMN missing text").await;
    world.succeed(["init", "--attribute-columns", "tenant_id,missing"]).await;
    world.execute("ALTER TABLE app_outbox DROP COLUMN missing").await;
    for command in [&["check"][..], &["run", "--until-caught-up"]] {
        let refused = world.run(command.iter().copied()).await;
        assert_eq!(refused.code, Some(3), "{}", refused.text);
        assert!(refused.text.contains("has no column missing"), "{}", refused.text);
    }
    world.succeed(["init"].into_iter().chain(COLUMNS)).await;
    let differs =
        world.run(["run", "--until-caught-up", "--attribute-columns", "region:geo"]).await;
    assert_eq!(differs.code, Some(3), "{}", differs.text);
    assert!(differs.text.contains("outbox-differs"), "{}", differs.text);
    let expected = "tenant_id:tenant_id,region:geo,is_even:even on record";
    assert!(differs.text.contains(expected), "{}", differs.text);

    let list = "id, aggregatetype, aggregateid, event_type, version, schema_version, payload, headers, occurred_at, is_even";
    world
        .execute(&format!(
            "ALTER PUBLICATION {} SET TABLE app_outbox ({list}, tenant_id)",
            world.name()
        ))
        .await;
    let checked = world.run(["check"]).await;
    assert_eq!(checked.code, Some(3), "{}", checked.text);
    assert!(
        checked.text.contains("leaves out column region of public.app_outbox"),
        "{}",
        checked.text
    );
    world.execute("ALTER TABLE app_outbox RENAME COLUMN is_even TO even").await;
    wait_until(DEADLINE, "the finding about the renamed column", async || {
        let found = world.run(["check"]).await.text;
        found.contains("has no column is_even").then_some(())
    })
    .await;
}

#[tokio::test]
async fn rows_from_before_the_column_are_published_without_the_attribute() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.insert_events(1, 2).await;
    world.execute("ALTER TABLE app_outbox ADD COLUMN tenant_id text DEFAULT 'a'").await;
    world.succeed(["init", "--attribute-columns", "tenant_id"]).await;
    world.insert_events(1, 2).await;
    world.catch_up().await;
    let messages = world.pubsub.emulator().published(&topic("video.events"));
    let tenants: Vec<_> = messages.iter().map(|it| it.attribute("tenant_id")).collect();
    assert_eq!(tenants, [None, None, Some("a"), Some("a")]);
}

#[tokio::test]
async fn a_column_that_no_table_has_is_not_put_on_record() {
    let Some(world) = InboxDatabase::create().await else { return };
    let refused = world.run(["init", "--attribute-columns", "tenant"]).await;
    assert_eq!(refused.code, Some(3), "{}", refused.text);
    assert!(refused.text.contains("that could become an attribute"), "{}", refused.text);
    assert!(refused.text.contains("correct --attribute-columns"), "{}", refused.text);
    world.catch_up().await;
}
