//! A value has the same text in the stream, in the table and in SQL of commands.

use serde_json::Value;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, topic};

use super::archive::Directory;

/// An outbox whose event id, aggregate type and aggregate id have another text as `column::text`.
const TABLE: &str = "CREATE TABLE app_outbox (
    id char(40) PRIMARY KEY, aggregatetype char(8) NOT NULL, aggregateid boolean NOT NULL, event_type text NOT NULL,
    version bigint NOT NULL, schema_version int NOT NULL DEFAULT 1, payload jsonb NOT NULL, headers jsonb,
    occurred_at timestamptz NOT NULL DEFAULT now())";

/// Creates a world with this outbox. All options are for every command.
async fn world_with(table: &str) -> Option<InboxDatabase> {
    let world = InboxDatabase::create_empty().await?;
    world.execute(table).await;
    world.succeed(["init"]).await;
    Some(world)
}

fn insert(ids: std::ops::Range<u32>) -> String {
    format!(
        "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload)
         SELECT 'e-' || n, 'video', n % 2 = 0, 'made', n, jsonb_build_object('n', n)
           FROM generate_series({}, {}) AS n",
        ids.start,
        ids.end - 1
    )
}

const TOPIC: [&str; 2] = ["--topic-template", "video.events"];

#[tokio::test]
async fn audit_trace_replay_and_rebuild_find_events_whose_text_is_not_the_cast() {
    let Some(world) = world_with(TABLE).await else { return };
    world.set_up_consumer().await;
    world.execute(
        "CREATE FUNCTION effect.reset(keys text[]) RETURNS void LANGUAGE sql AS $$
           DELETE FROM effect.balance WHERE key = ANY (keys); DELETE FROM effect.applied WHERE key = ANY (keys) $$",
    ).await;
    world.execute(&insert(0..10)).await;
    let mut relay = world.start_relay(TOPIC).await;
    world.consume_all().await;
    assert_eq!(world.applied_count().await, 10);
    wait_until(DEADLINE, "an audit of every event", async || {
        let audit = ["audit", "--grace", "0s", "--output", "json", "--aggregate-type", "video   "];
        let done = world.run(audit).await;
        let report: Value = serde_json::from_str(&done.text).unwrap_or_default();
        let consumer = &report["consumers"][0];
        assert_eq!(consumer["missing"].as_u64().unwrap_or_default(), 0, "{}", done.text);
        (consumer["rows"] == 10 && done.code == Some(0)).then_some(())
    })
    .await;
    let id = format!("{:<40}", "e-4");
    let traced = world.succeed(["trace", &id]).await;
    assert!(traced.contains("settled            true"), "{traced}");

    let replay = ["replay", "start", "--source", "table", "--dry-run", "--yes"];
    let told = world.succeed(replay.into_iter().chain(["--aggregate-id", "t"]).chain(TOPIC)).await;
    assert!(told.contains("would publish 5 row(s)"), "{told}");

    world.execute("DELETE FROM effect.balance WHERE key = 't'; DELETE FROM effect.applied WHERE key = 't'").await;
    let rebuild = [
        "consumer",
        "rebuild",
        "ledger",
        "--key",
        "t",
        "--handler",
        "effect.add",
        "--reset-function",
        "effect.reset",
    ];
    world.succeed(rebuild.into_iter().chain(TOPIC)).await;
    assert_eq!(world.number("SELECT count(*) FROM effect.applied WHERE key = 't'").await, 5);
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
}

#[tokio::test]
async fn prune_keeps_the_row_of_a_dead_event_whose_id_is_not_the_cast() {
    let Some(world) = world_with(TABLE).await else { return };
    world.execute(&insert(0..10)).await;
    // An attribute has at most 1,024 bytes.
    world.execute(
        "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload, headers)
         VALUES ('dead', 'video', true, 'made', 1, '{}', jsonb_build_object('h', repeat('x', 2000)))",
    ).await;
    world.succeed(["run", "--until-caught-up"].into_iter().chain(TOPIC)).await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    wait_until(DEADLINE, "every other row to go", async || {
        world.succeed(["prune", "--yes", "--older-than", "1s"]).await;
        world.execute("SELECT pg_logical_emit_message(true, 'foreign', 'x')").await;
        world.succeed(["run", "--until-caught-up"].into_iter().chain(TOPIC)).await;
        (world.number("SELECT count(*) FROM app_outbox").await <= 1).then_some(())
    })
    .await;
    let kept = "SELECT count(*) FROM app_outbox WHERE id = 'dead'";
    assert_eq!(world.number(kept).await, 1);
}

#[tokio::test]
async fn a_domain_has_the_type_below_it_in_the_stream_and_in_the_table() {
    let table = "CREATE DOMAIN inner_bytes AS bytea; CREATE DOMAIN bytes AS inner_bytes CHECK (value IS NOT NULL);
        CREATE DOMAIN moment AS timestamp; CREATE DOMAIN flag AS char(4);
        CREATE TABLE app_outbox (
          id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid flag NOT NULL,
          event_type text NOT NULL, version bigint NOT NULL, schema_version int NOT NULL DEFAULT 1,
          payload bytes, headers jsonb, occurred_at moment NOT NULL DEFAULT '2026-01-02 03:04:05')";
    let Some(world) = world_with(table).await else { return };
    let insert = r"INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
        SELECT 'video', 'v', 'made', n, '\x0a0500ff' FROM generate_series(1, 2) AS n";
    world.execute(insert).await;
    world.catch_up().await;
    world.pubsub.wait_stored(DEADLINE, 2).await;
    // The other rows come from the table.
    world.execute(insert).await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;
    let published = world.pubsub.emulator().published(&topic("video.events"));
    assert!(published.len() >= 4, "{}", published.len());
    for message in &published {
        assert_eq!(message.data().to_vec(), [0x0a, 0x05, 0x00, 0xff]);
        assert_eq!(message.key(), "v   ");
        let attributes: std::collections::BTreeMap<_, _> =
            message.attributes().into_iter().collect();
        assert_eq!(attributes["occurred_at"], "2026-01-02T03:04:05.000000Z");
    }
}

#[tokio::test]
async fn a_row_filter_of_the_publication_is_honoured_by_replay_audit_and_trace() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let publication = world.name();
    world
        .execute(&format!(
            "ALTER PUBLICATION {publication} SET TABLE app_outbox WHERE (event_type <> 'draft')"
        ))
        .await;
    world
        .execute(&format!(
            "SELECT pg_drop_replication_slot('{publication}'); DELETE FROM app_outbox_relay"
        ))
        .await;
    world.succeed(["init"]).await;
    world.insert_events_of(("video", "made"), 2, 6).await;
    world.insert_events_of(("video", "draft"), 2, 4).await;
    world.insert_events_of(("no such/topic", "draft"), 2, 1).await;
    let mut relay = world.start_relay([]).await;
    world.consume_all().await;
    world.wait_audited(6).await;
    let draft = "SELECT id::text FROM app_outbox WHERE event_type = 'draft' LIMIT 1";
    let draft: String = world.client().query_one(draft, &[]).await.expect("a row").get(0);
    let traced = world.succeed(["trace", &draft]).await;
    assert!(traced.contains("row filter of the publication leaves the event out"), "{traced}");

    world.pubsub.create_topic("again");
    let replay = ["replay", "start", "--source", "table", "--yes", "--to-topic", "again"];
    let told = world.succeed(replay).await;
    assert!(told.contains("6 row(s)"), "{told}");
    assert_eq!(world.pubsub.emulator().published(&topic("again")).len(), 6);
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
}

#[tokio::test]
async fn a_timestamp_is_utc_in_stream_and_table_whatever_the_time_zone_of_the_server_is() {
    let table = TABLE.replace(
        "timestamptz NOT NULL DEFAULT now()",
        "timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'UTC')",
    );
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world
        .execute(&format!("ALTER DATABASE {} SET timezone TO 'Pacific/Kiritimati'", world.name()))
        .await;
    world.execute(&table).await;
    let told = world.succeed(["init"]).await;
    assert!(told.contains("warning: table public.app_outbox column occurred_at"), "{told}");
    assert!(told.contains("Pacific/Kiritimati"), "{told}");
    let checked = world.run(["check"]).await.text;
    assert!(checked.contains("published as UTC") && checked.contains("Kiritimati"), "{checked}");

    world.set_up_consumer().await;
    world.execute(&insert(0..4)).await;
    let old =
        "UPDATE app_outbox SET occurred_at = occurred_at - interval '5 hours' WHERE version < 2";
    world.execute(&insert(10..14)).await;
    world.execute(old).await;
    let mut relay = world.start_relay(TOPIC).await;
    world.consume_all().await;
    wait_until(DEADLINE, "an audit of every event", async || {
        let done =
            world.run(["audit", "--grace", "0s", "--from-time", "1d", "--output", "json"]).await;
        let report: Value = serde_json::from_str(&done.text).unwrap_or_default();
        let consumer = &report["consumers"][0];
        assert_eq!(consumer["missing"].as_u64().unwrap_or_default(), 0, "{}", done.text);
        (consumer["rows"] == 8 && done.code == Some(0)).then_some(())
    })
    .await;
    let replay =
        ["replay", "start", "--source", "table", "--dry-run", "--yes", "--from-time", "2h"];
    let counted = world.succeed(replay.into_iter().chain(TOPIC)).await;
    assert!(counted.contains("would publish 6 row(s)"), "{counted}");
    world.succeed(["prune", "--yes", "--older-than", "2h"]).await;
    assert_eq!(world.number("SELECT count(*) FROM app_outbox").await, 6, "hours count as in UTC");
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
}

#[tokio::test]
async fn a_time_that_is_a_number_is_refused_before_anything_is_recorded() {
    let table = TABLE.replace("timestamptz NOT NULL DEFAULT now()", "bigint NOT NULL DEFAULT 7");
    let Some(world) = world_with(&table).await else { return };
    world.pubsub.create_topic("again");
    world.execute(&insert(0..4)).await;
    world.succeed(["run", "--until-caught-up"].into_iter().chain(TOPIC)).await;
    let checked = world.run(["check"]).await.text;
    assert!(checked.contains("column occurred_at is bigint, not a timestamp"), "{checked}");
    let replay = ["replay", "start", "--source", "table", "--yes", "--to-topic", "again"];
    for (command, options) in [
        (&replay[..], &["--from-time", "2h"][..]),
        (&["prune", "--yes", "--older-than", "1s"], &[]),
    ] {
        let done = world.run(command.iter().chain(options).copied()).await;
        assert_eq!(done.code, Some(2), "{}", done.text);
        assert!(done.text.contains("time-column-missing"), "{}", done.text);
    }
    assert_eq!(world.number("SELECT count(*) FROM app_outbox_replay").await, 0);
    // Without a time, the replay works.
    assert!(world.succeed(replay).await.contains("4 row(s)"));
}

/// Settings of a role that change the text of values.
const SETTINGS: [&str; 6] = [
    "extra_float_digits TO -3",
    "datestyle TO 'German'",
    "intervalstyle TO 'sql_standard'",
    "bytea_output TO 'escape'",
    "timezone TO 'Asia/Kathmandu'",
    "lc_monetary TO 'C'",
];

#[tokio::test]
async fn the_archive_has_values_as_they_are_whatever_the_settings_and_the_columns_are_called() {
    // A column with the name of every alias that our statements use.
    let table = "CREATE TABLE app_outbox (
        id float8 PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL, event_type text NOT NULL,
        version bigint NOT NULL, schema_version int NOT NULL DEFAULT 1, payload jsonb NOT NULL, headers jsonb,
        occurred_at timestamptz NOT NULL DEFAULT now() - interval '1 day', bytes bytea DEFAULT '\\xff00'::bytea,
        span interval DEFAULT '1 year 2 days', days daterange DEFAULT '[2026-01-02,2026-02-03)',
        c text DEFAULT 'c', o text DEFAULT 'o', t text DEFAULT 't', d text DEFAULT 'd', r text DEFAULT 'r',
        part text DEFAULT 'part', rows text DEFAULT 'rows', name text DEFAULT 'name', value text DEFAULT 'value',
        status text DEFAULT 'status', slot text DEFAULT 'slot', event_id text DEFAULT 'event_id', old text DEFAULT 'old',
        place text DEFAULT 'place', key text DEFAULT 'key', n text DEFAULT 'n', settled text DEFAULT 'settled')";
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let archive = Directory::create(&world);
    for setting in SETTINGS {
        world.execute(&format!("ALTER DATABASE {} SET {setting}", world.name())).await;
    }
    world.execute(table).await;
    world.succeed(["init"]).await;
    world.set_up_consumer().await;
    world
        .execute(
            "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload)
             SELECT 0.1::float8 + 0.2::float8 + n, 'video', 'v', 'made', n, '{}' FROM generate_series(0, 3) AS n",
        )
        .await;
    let mut relay = world.start_relay([]).await;
    world.consume_all().await;
    wait_until(DEADLINE, "an audit of every event", async || {
        let done = world.run(["audit", "--grace", "0s", "--output", "json"]).await;
        let report: Value = serde_json::from_str(&done.text).unwrap_or_default();
        let consumer = &report["consumers"][0];
        assert_eq!(consumer["missing"].as_u64().unwrap_or_default(), 0, "{}", done.text);
        (consumer["rows"] == 4 && done.code == Some(0)).then_some(())
    })
    .await;
    let traced = world.succeed(["trace", "0.30000000000000004"]).await;
    assert!(traced.contains("settled            true"), "{traced}");
    let replay = ["replay", "start", "--source", "table", "--dry-run", "--yes"];
    let told = world.succeed(replay.into_iter().chain(["--event-id", "0.30000000000000004"])).await;
    assert!(told.contains("would publish 1 row(s)"), "{told}");

    world.succeed(["prune", "--yes", "--older-than", "1s", "--archive", archive.path()]).await;
    assert_eq!(world.number("SELECT count(*) FROM app_outbox").await, 0);
    let lines = archive.lines();
    let row = lines.iter().find(|line| line["event_id"] == "0.30000000000000004");
    let row = &row.unwrap_or_else(|| panic!("{lines:?}"))["row"];
    assert_eq!(row["id"].to_string(), "0.30000000000000004");
    assert_eq!((&row["bytes"], &row["span"]), (&"\\xff00".into(), &"1 year 2 days".into()));
    assert_eq!(row["days"], "[2026-01-02,2026-02-03)");
    assert!(row["occurred_at"].as_str().is_some_and(|at| at.ends_with("+00:00")), "{row}");
    for name in ["c", "o", "t", "d", "r", "part", "rows", "status", "settled"] {
        assert_eq!(row[name], name);
    }
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
}

#[tokio::test]
async fn a_stored_generated_column_is_read_by_a_recovery_as_in_the_stream() {
    let Some(world) = InboxDatabase::create_empty_since(18).await else { return };
    let table = "CREATE TABLE app_outbox (
        id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid text NOT NULL,
        event_type text NOT NULL, version bigint NOT NULL, schema_version int NOT NULL DEFAULT 1,
        n int, payload jsonb GENERATED ALWAYS AS (('{\"n\": ' || n::text || '}')::jsonb) STORED, headers jsonb,
        occurred_at timestamptz NOT NULL DEFAULT now())";
    world.execute(table).await;
    let publication = world.name();
    world
        .execute(&format!(
            "CREATE PUBLICATION {publication} FOR TABLE app_outbox
               WITH (publish = 'insert', publish_via_partition_root = true, publish_generated_columns = stored)"
        ))
        .await;
    world.succeed(["init"]).await;
    let insert = "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, n)
        SELECT 'video', 'v', 'made', n, n FROM generate_series(1, 2) AS n";
    world.execute(insert).await;
    world.catch_up().await;
    world.pubsub.wait_stored(DEADLINE, 2).await;
    world.execute(insert).await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{publication}')")).await;
    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;
    let published = world.pubsub.emulator().published(&topic("video.events"));
    assert!(published.len() >= 4, "{}", published.len());
    assert!(published.iter().all(|message| message.data().starts_with(b"{\"n\": ")));
}
