//! The outbox on record: no command reads the slot of one outbox with the tables of another.

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::installation_or_skip;
use walrelay_tests::{DEADLINE, InboxDatabase};

/// An environment with a second outbox in the schema `team2`, and rows in the first that are not
/// published.
async fn world_of_two() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    let second = format!("{}_team2", world.name());
    world.succeed(["init", "--schema", "team2", "--slot", &second, "--publication", &second]).await;
    Workload::of_rows(5).insert(world.client()).await.expect("rows");
    Some(world)
}

#[tokio::test]
async fn the_slot_of_one_outbox_is_not_read_through_another() {
    let Some(world) = world_of_two().await else { return };
    let before = world.confirmed_flush().await;
    let second = format!("{}_team2", world.name());
    // The operator of the second outbox forgets --slot.
    let commands: [&[&str]; 8] = [
        &["run", "--until-caught-up", "--publication", &second],
        &["run", "--until-caught-up"],
        &["init", "--publication", &second],
        &["slot", "drop", "--yes"],
        &["slot", "release", "--yes"],
        &["reshard", "--shards", "2", "--yes"],
        &["prune", "--older-than", "1s", "--yes"],
        &["status"],
    ];
    for command in commands {
        let refused = world.run([command, &["--schema", "team2"]].concat()).await;
        assert_eq!(refused.code, Some(3), "{command:?}: {}", refused.text);
        assert!(refused.text.contains("outbox-undefined"), "{command:?}: {}", refused.text);
        // A fix for this publication would change the other outbox.
        assert!(!refused.text.contains("ALTER PUBLICATION"), "{command:?}: {}", refused.text);
    }
    let checked = world.run(["check", "--schema", "team2"]).await;
    assert!(checked.text.contains("[outbox-undefined]"), "{}", checked.text);
    assert_eq!(world.confirmed_flush().await, before);
    world.catch_up().await;
    world.check(&world.committed().await).assert_exactly_once();
}

#[tokio::test]
async fn a_command_without_a_slot_is_about_the_only_outbox_and_asks_where_there_are_several() {
    let Some(installation) = installation_or_skip() else { return };
    let server = PrivatePostgres::start(&installation, &[("wal_level", "logical")]);
    let server = server.expect("a server");
    let worlds = (
        InboxDatabase::create_empty_at(&server.url("postgres")).await,
        InboxDatabase::create_empty_at(&server.url("postgres")).await,
    );
    let (Some(first), Some(second)) = worlds else { return };
    let unnamed = async |world: &InboxDatabase, arguments: &[&str]| {
        let command = world.command(arguments.iter().copied());
        command.env("WALRELAY_SLOT", "").env("WALRELAY_PUBLICATION", "").finish(DEADLINE).await
    };
    let made = unnamed(&first, &["init"]).await;
    assert!(made.text.contains("slot walrelay\n"), "{}", made.text);
    // The name of a slot is taken for the whole server.
    let second_made = unnamed(&second, &["init"]).await;
    let slot = format!("walrelay_{}", second.name());
    assert!(second_made.text.contains(&format!("slot {slot}\n")), "{}", second_made.text);
    Workload::of_rows(5).insert(second.client()).await.expect("rows");
    let ran = unnamed(&second, &["run", "--until-caught-up"]).await;
    assert_eq!((ran.code, second.pubsub.stored().len()), (Some(0), 5), "{}", ran.text);
    let again = unnamed(&second, &["init"]).await;
    assert_eq!(again.code, Some(0), "{}", again.text);

    second.execute("CREATE TABLE other (LIKE app_outbox INCLUDING ALL)").await;
    let other = ["init", "--slot", "other", "--publication", "other", "--outbox-table", "other"];
    second.succeed(other).await;
    for command in [&["status"][..], &["run"], &["check"], &["init"], &["slot", "drop", "--yes"]] {
        let refused = unnamed(&second, command).await;
        assert_eq!(refused.code, Some(3), "{command:?}: {}", refused.text);
        let names = format!("other, {slot}");
        assert!(refused.text.contains(&names), "{command:?}: {}", refused.text);
    }
    let named = unnamed(&second, &["status", "--slot", "other"]).await;
    assert_eq!(named.code, Some(0), "{}", named.text);
}

#[tokio::test]
async fn a_relay_is_given_no_publication_or_table_that_differs_from_the_record() {
    let Some(world) = world_of_two().await else { return };
    let second = format!("{}_team2", world.name());
    for option in [
        &["--publication", &second][..],
        &["--outbox-table", "team2.app_outbox"],
        &["--outbox-table", "public.app_outbox,team2.app_outbox"],
        &["--column-id", "aggregateid"],
        &["--preset", "debezium"],
    ] {
        let refused = world.run([&["run", "--until-caught-up"][..], option].concat()).await;
        assert_eq!(refused.code, Some(3), "{option:?}: {}", refused.text);
        assert!(refused.text.contains("outbox-differs"), "{option:?}: {}", refused.text);
        assert!(refused.text.contains("on record"), "{option:?}: {}", refused.text);
    }
    assert_eq!(world.pubsub.stored(), []);
}

#[tokio::test]
async fn a_second_outbox_does_not_take_the_publication_of_the_first() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay([]).await;
    let second = format!("{}_s2", world.name());
    let refused = world.run(["init", "--schema", "s2", "--slot", &second]).await;
    assert_eq!(refused.code, Some(3), "{}", refused.text);
    assert!(refused.text.contains("name another publication"), "{}", refused.text);
    // With the default slot also, which is the first outbox's.
    let with_its_slot = world.run(["init", "--schema", "s2"]).await;
    assert_eq!(with_its_slot.code, Some(3), "{}", with_its_slot.text);
    assert!(with_its_slot.text.contains("outbox-undefined"), "{}", with_its_slot.text);
    assert_eq!(world.number("SELECT count(*) FROM pg_namespace WHERE nspname = 's2'").await, 0);
    Workload::of_rows(5).insert(world.client()).await.expect("rows");
    world.pubsub.wait_stored(DEADLINE, 5).await;
    drop(relay);
}

#[tokio::test]
async fn a_command_without_options_reads_tables_and_columns_on_record() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world
        .execute(
            "CREATE TABLE events (event_no bigint PRIMARY KEY, aggregatetype text, aggregateid text,
               event_type text, payload jsonb, at timestamptz DEFAULT now() - interval '2 days')",
        )
        .await;
    let columns = ["--column-id", "event_no", "--column-occurred-at", "at"];
    let none = ["--column-version", "", "--column-schema-version", "", "--column-headers", ""];
    let init = ["init", "--outbox-table", "public.events"];
    world.succeed(init.into_iter().chain(columns).chain(none)).await;
    world.succeed(["init"]).await;
    world.execute("INSERT INTO events VALUES (7, 'video', 'v', 'made', '{}')").await;
    world.settle_rows_of("events").await;
    assert_eq!(world.pubsub.stored()[0].event_id, "7");
    let pruned = world.succeed(["prune", "--older-than", "1d", "--yes"]).await;
    assert!(pruned.contains("public.events"), "{pruned}");
    assert_eq!(world.number("SELECT count(*) FROM events").await, 0);
}
