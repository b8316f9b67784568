//! All objects of relay and consumer in a schema of one's choice, whose name needs quotes.

use serde_json::Value;
use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase};

const SCHEMA: &str = "My-Events";

/// The event that Pub/Sub refuses.
const POISON: &str = "00000000-0000-4000-8000-00000000dead";

/// The page whose SQL removes everything.
const UNINSTALL: &str = include_str!("../../docs/how-to/operate/uninstall.md");

/// Runs the whole promise in the schema, and checks that `public` has nothing.
#[tokio::test]
async fn everything_is_kept_in_the_chosen_schema() {
    let Some(world) = InboxDatabase::create_in_schema(SCHEMA).await else { return };
    initialised(&world).await;
    consumed(&world).await;
    operated(&world).await;
    recovered(&world).await;
    assert_eq!(objects_in_public(&world).await, Vec::<String>::new());
    uninstalled(&world).await;
}

/// Sets up the outbox and a consumer.
async fn initialised(world: &InboxDatabase) {
    let first = world.succeed(["init"]).await;
    assert!(first.contains("created: schema \"My-Events\"\n"), "{first}");
    assert!(first.contains("created: table \"My-Events\".app_outbox_relay\n"), "{first}");
    let short = world.succeed(["init"]).await;
    assert!(short.starts_with("nothing to do: ") && short.lines().count() == 1, "{short}");
    let again = world.succeed(["init", "-v"]).await;
    assert!(again.contains("already there: schema \"My-Events\"\n"), "{again}");
    assert!(!again.contains("created"), "{again}");
    // The schema is closed to everybody but its owner.
    let opened = "SELECT count(*) FROM pg_namespace, aclexplode(nspacl) WHERE nspname = 'My-Events'
                     AND grantee <> nspowner";
    assert_eq!(world.number(opened).await, 0);
    world.set_up_consumer().await;
}

/// Writes events in both ways, and applies each exactly once.
async fn consumed(world: &InboxDatabase) {
    let emit = ["emit", "video", "v-1", "Published", "{}", "--idempotency-key", "k", "-o", "json"];
    world.succeed(emit).await;
    let again: Value = serde_json::from_str(&world.succeed(emit).await).expect("JSON");
    assert_eq!(again["is_new"], false);
    world.succeed(["emit", "video", "v-1", "Renamed", "{}"]).await;
    world
        .execute(
            "CREATE TABLE effect.videos (id int PRIMARY KEY);
             INSERT INTO effect.videos SELECT generate_series(1, 10)",
        )
        .await;
    let snapshot = ["snapshot", "effect.videos", "--aggregate-type", "video"];
    let rows = ["--aggregate-id", "id", "--yes"];
    world.succeed(snapshot.into_iter().chain(rows)).await;
    world.insert_events(5, 20).await;
    world.catch_up().await;
    world.consume_all().await;
    assert_eq!(world.applied_count().await, 32);
    world.assert_applied_exactly_once().await;
}

/// Runs the commands that read and change the tables of relay and consumer.
async fn operated(world: &InboxDatabase) {
    let id = "SELECT id::text FROM app_outbox WHERE event_type = 'Renamed'";
    let id: String = world.client().query_one(id, &[]).await.expect("one row").get(0);
    world.pubsub.fault(&format!("event_id={POISON},reject=INVALID_ARGUMENT"));
    let mut relay = world.start_relay(["--prune-older-than", "30d", "--park-after", "300ms"]).await;
    world
        .execute(&format!(
            "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('{POISON}', 'video', 'v-2', 'made', 1, '{{}}')"
        ))
        .await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    let listed = world.succeed(["dispatch", "list", "--status", "dead"]).await;
    assert!(listed.contains(POISON), "{listed}");
    world.pubsub.heal();
    world.succeed(["dispatch", "retry", POISON]).await;
    world.wait_dispatch(DEADLINE, "published", 1).await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    world.consume_all().await;
    world.assert_applied_exactly_once().await;

    let status = world.succeed(["status"]).await;
    assert!(status.contains("\"My-Events\".app_outbox_dispatch"), "{status}");
    let checked = world.succeed(["check", "-v"]).await;
    assert!(checked.contains("table \"My-Events\".app_outbox: has every column"), "{checked}");
    assert!(checked.contains(&format!("consumer {CONSUMER}: reads ")), "{checked}");
    let traced = world.succeed(["trace", &id]).await;
    assert!(traced.contains(CONSUMER) && traced.contains("done"), "{traced}");
    for command in [
        &["consumer", "status", CONSUMER][..],
        &["consumer", "list"],
        &["inbox", "list"],
        &["replay", "list"],
        &["anchor", "list"],
        &["consumer", "pause", CONSUMER],
        &["consumer", "resume", CONSUMER],
        &["consumer", "prune", CONSUMER, "--older-than", "30d", "--yes"],
        &["consumer", "reset-key", CONSUMER, "--key", "key-1", "--yes"],
        &["audit", "--grace", "0s"],
        &["forget", "video", "nobody", "--dry-run"],
    ] {
        world.succeed(command.iter().copied()).await;
    }
    let scaffold = world.succeed(["consumer", "scaffold", "effect.videos"]).await;
    assert!(scaffold.contains("(events \"My-Events\".app_inbox_event[])"), "{scaffold}");
}

/// Replays the table, recovers a lost slot, and prunes what is settled.
async fn recovered(world: &InboxDatabase) {
    world.pubsub.create_topic("again");
    world.succeed(["replay", "start", "--yes", "--source", "table", "--to-topic", "again"]).await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    let lost = world.run(["check"]).await;
    assert_eq!(lost.code, Some(5), "{}", lost.text);
    world.insert_events(5, 10).await;
    let told = world.succeed(["slot", "recover", "--yes"]).await;
    assert!(told.contains("row(s) of \"My-Events\".app_outbox"), "{told}");
    world.catch_up().await;
    world.consume_all().await;
    world.assert_applied_exactly_once().await;
    world.settle().await;
    wait_until(DEADLINE, "rows old enough", async || {
        world.succeed(["prune", "--yes", "--older-than", "1s"]).await;
        (world.number("SELECT count(*) FROM app_outbox").await == 0).then_some(())
    })
    .await;
}

/// Returns the tables, functions and types in `public`.
async fn objects_in_public(world: &InboxDatabase) -> Vec<String> {
    let sql = "SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace
               UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
               UNION ALL SELECT typname FROM pg_type WHERE typnamespace = 'public'::regnamespace";
    let rows = world.client().query(sql, &[]).await.expect("the catalog");
    rows.iter().map(|row| row.get(0)).collect()
}

/// Runs the SQL of the page, and drops the schema, which must be empty.
async fn uninstalled(world: &InboxDatabase) {
    world.execute("DROP SCHEMA effect CASCADE").await;
    for block in UNINSTALL.split("```sql\n").skip(1).take(2) {
        let (sql, _) = block.split_once("\n```").expect("the end of the block");
        let name = world.name();
        let sql = sql.replace("'walrelay'", &format!("'{name}'"));
        world.execute(&sql.replace("PUBLICATION walrelay", &format!("PUBLICATION {name}"))).await;
    }
    world.execute("DROP SCHEMA \"My-Events\" RESTRICT").await;
}

#[tokio::test]
async fn a_missing_schema_and_a_missing_usage_are_reported_with_the_fix() {
    let Some(world) = InboxDatabase::create_in_schema(SCHEMA).await else { return };
    world.succeed(["init"]).await;
    world
        .succeed([
            "consumer",
            "init",
            CONSUMER,
            "--subscription",
            CONSUMER,
            "--create",
            "--topic",
            "video.events",
        ])
        .await;
    let elsewhere = world.run(["check", "--schema", "other"]).await;
    assert_eq!(elsewhere.code, Some(3), "{}", elsewhere.text);
    for part in ["schema other: does not exist", "schema My-Events has the relay's tables"] {
        assert!(elsewhere.text.contains(part), "{part}: {}", elsewhere.text);
    }

    let role = format!("{}_reader", world.name());
    world
        .execute(&format!(
            "CREATE ROLE {role} LOGIN REPLICATION BYPASSRLS;
             GRANT ALL ON ALL TABLES IN SCHEMA \"My-Events\" TO {role}"
        ))
        .await;
    let url = world.url().replacen("postgres@", &format!("{role}@"), 1);
    let denied = world.command(["check"]).env("DATABASE_URL", &url).finish(DEADLINE).await;
    let fix = format!("GRANT USAGE ON SCHEMA \"My-Events\" TO {role}");
    assert!(denied.text.contains("schema \"My-Events\": role"), "{}", denied.text);
    assert!(denied.text.contains(&fix), "{}", denied.text);
    let run = ["consumer", "run", CONSUMER, "--handler", "effect.add"];
    let consumer = world.command(run).env("DATABASE_URL", &url).finish(DEADLINE).await;
    // The fix is in a line of JSON.
    assert!(consumer.text.contains(&fix.replace('"', "\\\"")), "{}", consumer.text);
    world.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn a_table_of_the_user_in_public_stays_there() {
    let Some(world) = InboxDatabase::create_in_schema(SCHEMA).await else { return };
    let table = ["--outbox-table", "public.app_outbox"];
    world.succeed(["init"].into_iter().chain(table)).await;
    world
        .execute(
            "INSERT INTO public.app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'v-1', 'made', 1, '{}')",
        )
        .await;
    world.catch_up().await;
    assert_eq!(world.pubsub.stored().len(), 1);
    let own = "SELECT count(*) FROM pg_class WHERE relnamespace = '\"My-Events\"'::regnamespace
                  AND relname = 'app_outbox'";
    assert_eq!(world.number(own).await, 0);
    let dry = ["prune", "--older-than", "1s", "--dry-run"];
    let told = world.succeed(dry).await;
    assert!(told.contains("row(s) of public.app_outbox"), "{told}");
}
