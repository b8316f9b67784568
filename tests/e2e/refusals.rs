//! Invalid input: a clear error with its fix, the promised exit code, and no lost row.

use std::time::{Duration, Instant};

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::installation_or_skip;
use walrelay_testkit::relay::Finished;
use walrelay_tests::{DEADLINE, InboxDatabase};

fn assert_refused(done: &Finished, code: i32, words: &[&str]) {
    assert_eq!(done.code, Some(code), "{}", done.text);
    for word in words {
        assert!(done.text.contains(word), "{word:?} is not in:\n{}", done.text);
    }
}

#[tokio::test]
async fn run_without_init_says_to_run_init() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let done = world.relay([]).finish(DEADLINE).await;
    assert_refused(&done, 3, &["walrelay init"]);
}

#[tokio::test]
async fn a_slot_of_another_plugin_or_database_is_refused() {
    let (Some(world), Some(other)) =
        (InboxDatabase::create().await, InboxDatabase::create_empty().await)
    else {
        return;
    };
    let slot = format!("{}_text", world.name());
    world
        .execute(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')"))
        .await;
    let done = world.relay(["--slot", &slot]).finish(DEADLINE).await;
    assert_refused(&done, 3, &[&slot, "test_decoding"]);

    let far = format!("{}_far", other.name());
    other.execute(&format!("SELECT pg_create_logical_replication_slot('{far}', 'pgoutput')")).await;
    let refused = world.relay(["--slot", &far]).finish(DEADLINE).await;
    assert_refused(&refused, 3, &[&far, other.name()]);
}

#[tokio::test]
async fn a_publication_that_publishes_more_than_inserts_is_a_warning_with_its_fix() {
    let Some(world) = InboxDatabase::create().await else { return };
    world
        .execute(&format!("ALTER PUBLICATION {} SET (publish = 'insert, update')", world.name()))
        .await;
    let found = world.succeed(["check"]).await;
    for part in ["update", "ALTER PUBLICATION", "publish = 'insert'"] {
        assert!(found.contains(part), "{part}: {found}");
    }
}

#[tokio::test]
async fn a_missing_publication_or_slot_is_named() {
    let Some(world) = InboxDatabase::create().await else { return };
    let done = world.relay(["--publication", "nowhere"]).finish(DEADLINE).await;
    assert_refused(&done, 3, &["nowhere"]);
    let slotless = world.relay(["--slot", "nowhere"]).finish(DEADLINE).await;
    assert_refused(&slotless, 3, &["nowhere", "walrelay init"]);
}

#[tokio::test]
async fn a_missing_column_is_named_with_its_table_and_option() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["init", "--column-event-type", "kind"]).await;
    let done = world.relay([]).finish(DEADLINE).await;
    assert_refused(&done, 3, &["app_outbox", "kind", "event type", "--column-event-type"]);
}

#[tokio::test]
async fn a_column_renamed_at_run_time_stops_the_relay_until_it_is_fixed() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut relay = world.start_relay([]).await;
    Workload::of_rows(10).insert(world.client()).await.unwrap();
    world.pubsub.wait_stored(DEADLINE, 10).await;
    world.execute("ALTER TABLE app_outbox RENAME COLUMN payload TO body").await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, body)
             VALUES ('video', 'v-1', 'test.inserted', 100, '{}')",
        )
        .await;

    assert_eq!(relay.wait_ended(DEADLINE).await.code(), Some(3));
    let told = relay.lines().join("\n");
    assert!(told.contains("payload") && told.contains("--column-payload"), "{told}");

    world.succeed(["init", "--column-payload", "body"]).await;
    let done = world.relay(["--until-caught-up"]).finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    world.execute("ALTER TABLE app_outbox RENAME COLUMN body TO payload").await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
}

#[tokio::test]
async fn an_event_for_a_database_without_an_outbox_leads_to_init() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    for more in [&[][..], &["--idempotency-key", "request-1"]] {
        let emit = ["emit", "video", "v-1", "VideoPublished", "{}"]
            .into_iter()
            .chain(more.iter().copied());
        assert_refused(&world.run(emit).await, 3, &["outbox-table-missing", "run `walrelay init`"]);
    }
}

#[tokio::test]
async fn a_server_without_logical_decoding_is_refused() {
    let Some(installation) = installation_or_skip() else { return };
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let server = PrivatePostgres::start(&installation, &[("wal_level", "replica")]).unwrap();
    let url = server.url("postgres");
    let run = world.command(["run", "--database-url", &url]).finish(DEADLINE).await;
    assert_refused(&run, 3, &["wal_level"]);
    let init = world.command(["init", "--database-url", &url]).finish(DEADLINE).await;
    assert_refused(&init, 3, &["wal-level-not-logical", "ALTER SYSTEM SET wal_level"]);
    let client = walrelay_testkit::postgres::TestClient::connect(&url).await;
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    let created: i64 = client.query_one(tables, &[]).await.unwrap().get(0);
    assert_eq!(created, 0, "nothing is created before the setting is right");
}

#[tokio::test]
async fn a_wrong_address_name_or_password_is_reported_clearly() {
    let Some(installation) = installation_or_skip() else { return };
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let server =
        PrivatePostgres::start(&installation, &[("password_encryption", "scram-sha-256")]).unwrap();
    let client = walrelay_testkit::postgres::TestClient::connect(&server.url("postgres")).await;
    let sql = "CREATE ROLE locked LOGIN REPLICATION PASSWORD 'right'";
    client.batch_execute(sql).await.unwrap();
    let rules = "COPY (SELECT 'host all locked 127.0.0.1/32 scram-sha-256' UNION ALL
                       SELECT 'host all all 127.0.0.1/32 trust' UNION ALL
                       SELECT 'local all all trust') TO PROGRAM 'cat > pg_hba.conf'";
    client.batch_execute(rules).await.unwrap();
    client.batch_execute("SELECT pg_reload_conf()").await.unwrap();

    let port = server.port();
    let secret = "hunter2-wrong";
    let refused = format!("postgresql://locked:{secret}@127.0.0.1:{port}/postgres");
    let silent = format!("postgresql://locked@127.0.0.1:{port}/postgres");
    let nowhere = format!("postgresql://postgres@127.0.0.1:{port}/nowhere");
    let unknown = "postgresql://postgres@no-such-host.invalid:5432/app".to_owned();
    let closed = "postgresql://postgres@127.0.0.1:1/app".to_owned();
    let cases = [
        (refused, [3, 3], "password"),
        (silent, [3, 3], "asks for a password and none is configured"),
        (nowhere, [3, 3], "nowhere"),
        (unknown, [3, 3], "no-such-host.invalid"),
        (closed, [3, 3], "127.0.0.1"),
    ];
    for (url, codes, word) in cases {
        for (command, code) in ["run", "init"].into_iter().zip(codes) {
            let done = world.command([command, "--database-url", &url]).finish(DEADLINE).await;
            assert_refused(&done, code, &[word]);
            assert!(!done.text.contains(secret), "the password is shown: {}", done.text);
        }
    }
}

#[tokio::test]
async fn a_wrong_value_is_refused_and_values_that_contradict_each_other_are_all_named() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    for (option, value) in [
        ("--park-after", "soon"),
        ("--max-in-flight-bytes", "1"),
        ("--on-dead", "cry"),
        ("--topic-template", "{unclosed"),
    ] {
        let done = world.relay([option, value]).finish(DEADLINE).await;
        assert_refused(&done, 2, &[option, value, "1 problem"]);
    }
    let contradicting = [
        "--status-interval",
        "30s",
        "--column-version",
        "",
        "--topic-template",
        "{version}.events",
    ];
    let done = world.relay(contradicting).finish(DEADLINE).await;
    assert_refused(&done, 2, &["--status-interval", "--topic-template", "2 problems"]);
}

#[tokio::test]
async fn a_template_that_names_an_unknown_column_is_refused_at_the_start() {
    let Some(world) = InboxDatabase::create().await else { return };
    for option in ["--topic-template", "--ordering-key"] {
        let done = world.relay([option, "{nonsense}"]).finish(DEADLINE).await;
        assert_refused(&done, 3, &["nonsense", "app_outbox"]);
    }
}

#[tokio::test]
async fn a_generated_column_is_refused_at_the_start_where_a_template_names_it() {
    let Some(world) = InboxDatabase::create().await else { return };
    world
        .execute(
            "ALTER TABLE app_outbox ADD COLUMN tenant text GENERATED ALWAYS AS (aggregateid || '!') STORED",
        )
        .await;
    for command in ["run", "check"] {
        let done = world.run([command, "--ordering-key", "{tenant}"]).await;
        assert_refused(&done, 3, &["tenant", "generated", "for the ordering key"]);
    }
    world.catch_up().await;
}

#[tokio::test]
async fn a_denied_prune_names_the_missing_permissions() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.catch_up().await;
    let role = format!("{}_weak", world.name());
    world
        .execute(&format!(
            "CREATE ROLE {role} LOGIN;
             GRANT SELECT ON app_outbox, app_outbox_definition, app_outbox_relay, app_outbox_dispatch TO {role};
             CREATE POLICY weak ON app_outbox TO {role} USING (true);
             CREATE POLICY weak ON app_outbox_relay TO {role} USING (true);
             CREATE POLICY weak ON app_outbox_dispatch TO {role} USING (true);"
        ))
        .await;
    let url = world.url().replacen("postgres@", &format!("{role}@"), 1);
    let done = world.run(["prune", "--yes", "--older-than", "30d", "--database-url", &url]).await;
    world.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    assert_refused(&done, 3, &["delete old rows of public.app_outbox", "prune-permission-missing"]);
}

#[tokio::test]
async fn commands_refuse_dispatch_state_hidden_by_row_level_security() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.catch_up().await;
    let role = format!("{}_blind", world.name());
    world
        .execute(&format!(
            "CREATE ROLE {role} LOGIN;
             GRANT SELECT, DELETE ON app_outbox, app_outbox_relay, app_outbox_dispatch TO {role};
             GRANT SELECT ON app_outbox_definition TO {role};
             CREATE POLICY blind ON app_outbox_relay TO {role} USING (true);"
        ))
        .await;
    let url = world.url().replacen("postgres@", &format!("{role}@"), 1);
    let mut done = Vec::new();
    for command in
        [&["status"][..], &["dispatch", "list"], &["prune", "--yes", "--older-than", "30d"]]
    {
        done.push(world.run(command.iter().copied().chain(["--database-url", &url])).await);
    }
    world.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    for refused in &done {
        assert_refused(
            refused,
            3,
            &["hides the rows of public.app_outbox_dispatch", "CREATE POLICY"],
        );
    }
}

#[tokio::test]
async fn an_unknown_option_is_a_usage_error() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let done = world.run(["run", "--colour", "red"]).await;
    assert_refused(&done, 2, &["--colour"]);
}

#[tokio::test]
async fn a_standby_relay_continues_within_a_second_of_the_release() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut first = world.start_relay([]).await;
    let second = world.relay([]).start();
    second.wait_for_line(DEADLINE, "standing by").await;
    let body = second.wait_for_http(DEADLINE, "/readyz", 503).await;
    assert!(body.contains("standby"), "{body}");
    second.wait_for_http(DEADLINE, "/livez", 200).await;
    let mut committed = Workload::of_rows(50).insert(world.client()).await.unwrap();
    world.pubsub.wait_stored(DEADLINE, 50).await;

    assert_eq!(first.terminate(DEADLINE).await, Some(0));
    let released = Instant::now();
    let more = Workload { first_number: 50, ..Workload::of_rows(10) };
    committed.extend(more.insert(world.client()).await.unwrap());
    world.pubsub.wait_stored(DEADLINE, 60).await;

    let pause = released.elapsed();
    // The promise is one second. The rest is slack for a machine that runs other tests.
    assert!(pause < Duration::from_secs(3), "the standby took {pause:?}");
    second.wait_for_http(DEADLINE, "/readyz", 200).await;
    world.wait_confirmed(DEADLINE).await;
    world.check(&committed).assert_exactly_once();
}

#[tokio::test]
async fn a_holder_that_does_not_let_go_is_ended_when_that_is_allowed() {
    let Some(world) = InboxDatabase::create().await else { return };
    let first = world.start_relay([]).await;
    // A frozen relay holds the slot and does nothing.
    first.signal(walrelay_testkit::process::Signal::Stop);
    let committed = Workload::of_rows(50).insert(world.client()).await.unwrap();

    let second = world.start_relay(["--take-over-after", "1s"]).await;
    world.pubsub.wait_stored(DEADLINE, 50).await;
    world.wait_confirmed(DEADLINE).await;
    drop(first);
    world.check(&committed).assert_clean();
    drop(second);
}

#[tokio::test]
async fn a_slot_that_was_dropped_after_it_was_used_is_lost() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(10).insert(world.client()).await.unwrap();
    world.catch_up().await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;

    let done = world.relay(["--on-slot-lost", "stop"]).finish(DEADLINE).await;
    assert_refused(&done, 5, &[world.name()]);
    let status = world.run(["status"]).await;
    assert_refused(&status, 5, &[world.name()]);
}
