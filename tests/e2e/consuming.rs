//! The whole pipeline: an INSERT, the relay, Pub/Sub, a consumer, and the effect in the database.

use std::collections::BTreeMap;

use futures_util::StreamExt as _;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::StreamingPullRequest;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_postgres::{NoTls, SimpleQueryMessage};
use walrelay_pubsub::{Endpoint, Subscriber};
use walrelay_testkit::process::Signal;
use walrelay_testkit::proxy::{Network, Proxy};
use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase, PgBouncer};

async fn world() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world.set_up_consumer().await;
    Some(world)
}

#[tokio::test]
async fn every_event_takes_effect_once_and_in_order_and_what_comes_later_too() {
    let Some(world) = world().await else { return };
    world.insert_events(20, 500).await;
    world.catch_up().await;
    world.consume_all().await;
    world.assert_applied_exactly_once().await;

    world.insert_events(20, 500).await;
    world.catch_up().await;
    let mut consumer = world.start_consumer([]).await;
    world.wait_applied(1000).await;
    assert_eq!(consumer.terminate(DEADLINE).await, Some(0));
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn copies_of_messages_and_lost_acknowledgements_have_no_effect() {
    let Some(world) = world().await else { return };
    world.pubsub.fault(&format!("on=acknowledge,subscription={CONSUMER},percent=60,lose"));
    world.pubsub.fault("percent=50,first=20,fail-after=UNAVAILABLE");
    world.insert_events(10, 300).await;
    world.catch_up().await;
    let consumer = world.start_consumer([]).await;
    world.wait_applied(300).await;
    drop(consumer);
    world.pubsub.heal();
    world.consume_all().await;
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn two_instances_share_a_subscription() {
    let Some(world) = world().await else { return };
    let mut consumers = [world.start_consumer([]).await, world.start_consumer([]).await];
    world.insert_events(50, 2000).await;
    world.catch_up().await;
    world.wait_applied(2000).await;
    for consumer in &mut consumers {
        assert_eq!(consumer.terminate(DEADLINE).await, Some(0));
    }
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn poison_is_isolated_and_its_key_waits_while_all_others_go_on() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'key-1', 'made', 51, '{\"fails\": true}')",
        )
        .await;
    world.insert_events(5, 50).await;
    world.catch_up().await;
    let consumer = world.start_consumer(["--max-attempts", "2"]).await;
    wait_until(DEADLINE, "the poison to be dead", async || {
        let dead = "SELECT count(*) FROM app_inbox WHERE status = 'dead'";
        (world.number(dead).await == 1).then_some(())
    })
    .await;
    wait_until(DEADLINE, "all others to be applied or stored", async || {
        (world.number("SELECT count(*) FROM app_inbox").await == 101).then_some(())
    })
    .await;
    // Ten events of key-1 precede the poison event. The later ones wait, and block no other key.
    assert_eq!(world.applied_count().await, 90);
    let waiting =
        "SELECT count(*) FROM app_inbox WHERE status = 'retrying' AND ordering_key = 'key-1'";
    assert_eq!(world.number(waiting).await, 10);
    let status = world.succeed(["consumer", "status", CONSUMER, "--output", "json"]).await;
    assert!(status.contains("\"keys_held\": 1"), "{status}");
    let page = world.succeed(["consumer", "status", CONSUMER]).await;
    assert!(page.contains("blocked keys                 1\n"), "{page}");
    assert!(page.contains("1 dead event(s) wait for a person\n  to see why: "), "{page}");

    // The commands of `dispatch` also work for the inbox: list, show, retry and edit. After the
    // edit, the key continues in order.
    let dead = "SELECT event_id FROM app_inbox WHERE status = 'dead'";
    let row = world.client().query_one(dead, &[]).await.expect("one is dead");
    let id: String = row.get(0);
    let listed = world.succeed(["inbox", "list", "--status", "dead", "--output", "json"]).await;
    assert!(listed.contains(&id) && listed.contains("\"holds_its_key\": true"), "{listed}");
    let of_type = ["inbox", "list", "--event-type", "other"];
    assert!(!world.succeed(of_type).await.contains(&id));
    let shown = world.succeed(["inbox", "show", &id]).await;
    assert!(shown.contains("attempt 2") && shown.contains("poison"), "{shown}");
    // `show` prints the decoded data, not the stored bytes.
    assert!(shown.contains("\"fails\": true"), "{shown}");
    consumer.wait_for_line(DEADLINE, "is dead").await;
    let file = std::env::temp_dir().join(format!("{}-payload.json", world.name()));
    std::fs::write(&file, "{\"n\": 51}").expect("a file");
    let path = file.to_str().expect("a plain name");
    world.succeed(["inbox", "edit", "--yes", &id, "--payload-file", path]).await;
    std::fs::remove_file(&file).expect("it is there");
    world.wait_applied(101).await;
    consumer.wait_for_line(DEADLINE, "stored events are applied, and their keys continue").await;
    let edited = world.succeed(["inbox", "show", &id]).await;
    assert!(edited.contains("\n  edited at ") && edited.contains("done"), "{edited}");
    let inversions = "SELECT count(*) FROM (
          SELECT o.version, lag(o.version) OVER (PARTITION BY a.key ORDER BY a.n) AS before
            FROM effect.applied AS a JOIN app_outbox AS o ON o.id::text = a.event_id) AS x
        WHERE before > version";
    assert_eq!(world.number(inversions).await, 0);
    ends(&world, &["inbox", "discard", "--yes", &id, "--reason", "no"], 2, "already").await;
}

#[tokio::test]
async fn edited_attributes_are_what_the_handler_reads_and_which_event_it_is_stays() {
    let Some(world) = world().await else { return };
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'key-1', 'made', 1, '{\"fails\": true}')",
        )
        .await;
    world.catch_up().await;
    let _consumer = world.start_consumer(["--max-attempts", "1"]).await;
    let row = wait_until(DEADLINE, "the poison to be dead", async || {
        let dead = "SELECT event_id FROM app_inbox WHERE status = 'dead'";
        world.client().query_opt(dead, &[]).await.expect("a row or none")
    })
    .await;
    let id: String = row.get(0);
    let file = std::env::temp_dir().join(format!("{}-attributes.json", world.name()));
    let path = file.to_str().expect("a plain name");
    std::fs::write(&file, "{\"event_id\": \"another\"}").expect("a file");
    ends(&world, &["inbox", "edit", &id, "--attributes-file", path], 2, "which event").await;
    std::fs::write(&file, "{\"event_type\": \"mended\"}").expect("a file");
    let edited = world.succeed(["inbox", "edit", &id, "--attributes-file", path]).await;
    assert!(edited.contains("event_type"), "{edited}");
    std::fs::remove_file(&file).expect("it is there");
    world.wait_applied(1).await;
    let mended = "SELECT count(*) FROM app_inbox WHERE event_type = 'mended' AND version = 1";
    assert_eq!(world.number(mended).await, 1);
}

#[tokio::test]
async fn until_caught_up_reports_pending_and_dead_events() {
    let Some(world) = world().await else { return };
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'poisoned', 'made', 1, '{\"fails\": true}'), ('video', 'poisoned', 'made', 2, '{}')",
        )
        .await;
    world.catch_up().await;
    let catch_up = ["--until-caught-up", "--max-attempts", "1"];
    let done = world.consumer(catch_up).finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    let stopped = done.text.lines().find(|line| line.contains("\"stopped\"")).expect("its end");
    for figure in ["\"retrying\":1", "\"dead\":1"] {
        assert!(stopped.contains(figure), "{stopped}");
    }
    let failed = done.text.lines().find(|line| line.contains("\"result\":\"dead\""));
    let failed = failed.expect("the failed event is logged");
    assert!(failed.contains(&format!("\"consumer\":\"{CONSUMER}\"")), "{failed}");
}

/// Silence of Pub/Sub is no sign that nothing is left.
#[tokio::test]
async fn until_caught_up_waits_for_an_answer_and_for_the_leases_of_others() {
    let Some(world) = world().await else { return };
    world.pubsub.fault("on=streaming-pull,first=1,hold-before");
    let late = world.consumer(["--until-caught-up", "--quiet-for", "5s"]).start();
    world.pubsub.wait_held(DEADLINE).await;
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.pubsub.heal();
    let done = late.finish(DEADLINE).await;
    assert_eq!((done.code, world.applied_count().await), (Some(0), 50), "{}", done.text);

    // Another client holds these events, and dies.
    world.insert_events(5, 50).await;
    world.catch_up().await;
    let endpoint = Endpoint::emulator(world.pubsub.address()).expect("an address");
    let other = Subscriber::connect(&endpoint).expect("a client");
    let mut stream = other.pull(StreamingPullRequest {
        subscription: format!("projects/test/subscriptions/{CONSUMER}"),
        stream_ack_deadline_seconds: 10,
        ..StreamingPullRequest::default()
    });
    let mut held = 0;
    while held < 50 {
        let response = stream.responses.next().await.expect("the stream is open");
        held += response.expect("a response").messages().count();
    }
    drop(stream);
    let quiet = ["--until-caught-up", "--quiet-for", "12s"];
    let heir = world.consumer(quiet).finish(DEADLINE).await;
    assert_eq!((heir.code, world.applied_count().await), (Some(0), 100), "{}", heir.text);
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn a_pause_holds_everything_until_it_is_resumed() {
    let Some(world) = world().await else { return };
    world.succeed(["consumer", "pause", CONSUMER]).await;
    let consumer = world.consumer([]).with_http().start();
    wait_until(DEADLINE, "the pause to be told", async || {
        let body = consumer.wait_for_http(DEADLINE, "/readyz", 503).await;
        body.contains("until it is resumed").then_some(())
    })
    .await;
    world.insert_events(5, 100).await;
    world.catch_up().await;
    assert_eq!(world.applied_count().await, 0);
    world.succeed(["consumer", "resume", CONSUMER]).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
    world.wait_applied(100).await;
    world.assert_applied_exactly_once().await;
    let lines = || consumer.lines().iter().filter(|line| line.contains("paused: ")).count();
    assert_eq!(lines(), 1, "{:?}", consumer.lines());
    consumer.wait_for_line(DEADLINE, "resumed: events are applied again").await;

    // A pause also takes effect while events arrive, and the next batch detects it.
    world.succeed(["consumer", "pause", CONSUMER]).await;
    world.insert_events(5, 100).await;
    world.catch_up().await;
    wait_until(DEADLINE, "the second pause to be logged", async || {
        let told = consumer.lines();
        (told.iter().filter(|line| line.contains("paused: ")).count() == 2).then_some(())
    })
    .await;
    let catch_up = ["consumer", "run", CONSUMER, "--handler", "effect.add", "--until-caught-up"];
    ends(&world, &catch_up, 3, "walrelay consumer resume").await;
    drop(consumer);
    waits_for_what_began_before(&world).await;
}

/// Checks that `pause` waits for a batch that started before the pause. The batch may still commit.
async fn waits_for_what_began_before(world: &InboxDatabase) {
    let lock =
        format!("SELECT pg_advisory_lock_shared(hashtextextended('walrelay inbox {CONSUMER}', 0))");
    world.execute(&lock).await;
    let waits = wait_until(DEADLINE, "the pause to wait", async || {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        (world.number(waiting).await == 1).then_some(())
    });
    let ended = async {
        waits.await;
        world.execute("SELECT pg_advisory_unlock_all()").await;
    };
    let (said, ()) = futures_util::join!(world.succeed(["consumer", "pause", CONSUMER]), ended);
    assert!(said.contains("paused: consumer"), "{said}");
}

#[tokio::test]
async fn a_drained_or_killed_consumers_open_transaction_is_rolled_back() {
    let Some(world) = world().await else { return };
    world
        .execute(
            "CREATE FUNCTION effect.endless(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$
             BEGIN
               PERFORM effect.add(events);
               PERFORM pg_sleep(600);
             END $$",
        )
        .await;
    world.insert_events(2, 20).await;
    world.catch_up().await;
    let endless = ["consumer", "run", CONSUMER, "--handler", "effect.endless"];
    let options = ["--handler-timeout", "10m", "--drain-timeout", "100ms"];
    let left = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event = 'PgSleep'";
    for signal in [Signal::Terminate, Signal::Kill] {
        let mut consumer = world.command(endless.into_iter().chain(options)).start();
        wait_until(DEADLINE, "the handler to run", async || {
            (world.number(left).await > 0).then_some(())
        })
        .await;
        consumer.signal(signal);
        consumer.wait_ended(DEADLINE).await;
        wait_until(DEADLINE, "the server to notice that nobody is there", async || {
            (world.number(left).await == 0).then_some(())
        })
        .await;
    }
    assert_eq!(world.number("SELECT count(*) FROM app_inbox").await, 0);
    // No lock on a key is left.
    let consumer = world.start_consumer([]).await;
    world.wait_applied(20).await;
    drop(consumer);
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn a_prune_deletes_what_earlier_generations_of_its_consumer_have_left() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 20).await;
    world.catch_up().await;
    world.consume_all().await;
    world
        .execute(
            "INSERT INTO app_inbox_consumer (consumer, subscription) VALUES ('other', 's');
             INSERT INTO app_inbox (consumer, generation, event_id, ordering_key, status)
             VALUES ('ledger', 1, 'waits', 'key-1', 'retrying'), ('other', 1, 'theirs', 'key-1', 'done');
             SELECT app_inbox_new_generation('ledger');
             SELECT app_inbox_accept('ledger', 'new', 'key-1', 1, NULL, NULL)",
        )
        .await;
    let prune = ["consumer", "prune", CONSUMER, "--yes", "--older-than", "40d"];
    ends(&world, &prune, 0, "21 row(s) deleted").await;
    let left = "SELECT (SELECT string_agg(concat_ws(' ', consumer, generation, event_id), ', ' ORDER BY consumer) FROM app_inbox)
                 || '; ' || (SELECT string_agg(concat_ws(' ', consumer, generation, ordering_key), ', ') FROM app_inbox_key)";
    let left: String = world.client().query_one(left, &[]).await.expect("what is left").get(0);
    assert_eq!(left, "ledger 2 new, other 1 theirs; ledger 2 key-1");
}

#[tokio::test]
async fn a_different_event_with_an_id_that_is_taken_is_named_in_the_log() {
    let Some(world) = world().await else { return };
    world.insert_events(1, 1).await;
    world
        .execute(
            "INSERT INTO app_inbox (consumer, generation, event_id, ordering_key, status)
             SELECT 'ledger', 1, id::text, 'another', 'done' FROM app_outbox",
        )
        .await;
    world.catch_up().await;
    let consumer = world.start_consumer([]).await;
    let line = consumer.wait_for_line(DEADLINE, "a different event has the id of an event").await;
    let id = "SELECT id::text FROM app_outbox";
    let id: String = world.client().query_one(id, &[]).await.expect("one row").get(0);
    assert!(line.contains(&id) && line.contains("ID_COLLISION"), "{line}");
    let dead =
        "SELECT count(*) FROM app_inbox WHERE status = 'dead' AND error_code = 'ID_COLLISION'";
    assert_eq!((world.number(dead).await, world.applied_count().await), (1, 0));
}

/// The settings of a session that a consumer or its handler may change.
const SETTINGS: &str = "SELECT concat_ws(' ', current_user = session_user, coalesce(current_setting('test.batch', true), ''),
    (SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings WHERE name IN (
       'search_path', 'synchronous_commit', 'session_replication_role', 'row_security', 'statement_timeout',
       'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout',
       'client_connection_check_interval')))";

/// A transaction of another client of the pooler returns what it sees.
async fn seen_by_others(url: &str, seen: &Mutex<BTreeMap<String, u32>>) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    let mut serving = JoinSet::new();
    serving.spawn(connection);
    loop {
        let rows = client.simple_query(SETTINGS).await.expect("an answer");
        for row in rows {
            if let SimpleQueryMessage::Row(row) = row {
                let settings = row.get(0).unwrap_or_default().to_owned();
                *seen.lock().await.entry(settings).or_default() += 1;
            }
        }
    }
}

#[tokio::test]
async fn a_consumer_works_through_a_pooler_in_transaction_mode_and_changes_nothing_for_its_others()
{
    let Some(world) = world().await else { return };
    let Some(pooler) = PgBouncer::start(&world, "transaction", "extra_float_digits").await else {
        return;
    };
    let url = pooler.url(&world);
    // A handler that leaves settings behind in its session.
    world
        .execute(
            "ALTER FUNCTION effect.add(app_inbox_event[]) RENAME TO add_only;
             CREATE FUNCTION effect.add(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$
             BEGIN
               PERFORM effect.add_only(events);
               SET statement_timeout = '1h';
               SET search_path = pg_temp;
               SET synchronous_commit = off;
               SET test.batch = 'left';
               SET ROLE pg_monitor;
             END $$",
        )
        .await;
    world.insert_events(20, 1000).await;
    world.catch_up().await;
    let seen = Mutex::default();
    let consuming = async {
        let prune = ["--prune-older-than", "40d"];
        let options = ["--batch", "5", "--until-caught-up", "--database-url", &url];
        let done = world.consumer(options.into_iter().chain(prune)).finish(DEADLINE).await;
        assert_eq!(done.code, Some(0), "{}", done.text);
    };
    let others = futures_util::future::join_all((0..4).map(|_| seen_by_others(&url, &seen)));
    tokio::select! {
        () = consuming => {}
        _ = others => unreachable!("they do not end"),
    }
    let seen = seen.into_inner();
    let times: u32 = seen.values().sum();
    assert!(seen.len() == 1 && times > 100, "{times} transactions of others saw {seen:#?}");
    world.assert_applied_exactly_once().await;
}

/// Checks that a command exits with this code and prints this text.
async fn ends(world: &InboxDatabase, arguments: &[&str], code: i32, says: &str) {
    let done = world.run(arguments.iter().copied()).await;
    assert_eq!(done.code, Some(code), "{arguments:?}: {}", done.text);
    assert!(done.text.contains(says), "{arguments:?}: {}", done.text);
}

#[tokio::test]
async fn a_database_that_is_not_utf_8_is_refused_and_named_by_check() {
    let Some(world) = InboxDatabase::create_unchecked().await else { return };
    let says = "has the encoding SQL_ASCII";
    let init = ["consumer", "init", CONSUMER, "--subscription", CONSUMER];
    ends(&world, &[&init[..], &["--create", "--topic", "video.events"]].concat(), 3, says).await;
    let nothing = "SELECT count(*) FROM pg_class WHERE relname LIKE 'app_inbox%'";
    assert_eq!(world.number(nothing).await, 0);
    assert!(world.pubsub.emulator().subscriptions().is_empty());

    // The inbox may have been created by hand.
    let by_hand = world.succeed(init.into_iter().chain(["--sql"])).await;
    world.execute(&by_hand).await;
    let run = ["consumer", "run", CONSUMER, "--handler", "effect.add"];
    ends(&world, &run, 3, says).await;
    let place = format!("{CONSUMER}={}", world.url());
    for options in [vec!["check"], vec!["check", "--inbox", &place]] {
        let checked = world.run(options).await.text;
        assert!(checked.contains(says) && checked.contains("ENCODING 'UTF8'"), "{checked}");
    }
}

#[tokio::test]
async fn missing_objects_are_named_with_their_exit_code() {
    let Some(world) = InboxDatabase::create().await else { return };
    let nobody = ["consumer", "run", "nobody", "--handler", "effect.add"];
    ends(&world, &nobody, 3, "walrelay consumer init").await;
    world.set_up_consumer().await;
    ends(&world, &nobody, 3, "not known in this database").await;
    let consume = |handler| ["consumer", "run", CONSUMER, "--handler", handler];
    ends(&world, &consume("effect.missing"), 3, "there is no such function").await;
    let elsewhere = [&consume("effect.add")[..], &["--subscription", "elsewhere"]].concat();
    ends(&world, &elsewhere, 4, "does not exist").await;
    // Every command prints the same hint for the same cause.
    let nowhere = world.url().replacen(world.name(), "nowhere_at_all", 1);
    for (url, hint) in [
        (nowhere.as_str(), "does not exist"),
        ("postgresql://u@127.0.0.1:1/d", "postgres-unreachable"),
    ] {
        for command in [&consume("effect.add")[..], &["consumer", "status", CONSUMER]] {
            let command = [command, &["--database-url", url]].concat();
            let done = world.run(command.iter().copied()).await;
            assert_eq!(done.code, Some(3), "{}", done.text);
            assert!(done.text.contains(hint), "{}", done.text);
            assert!(!done.text.contains("consumer init"), "{}", done.text);
        }
    }
    let prune = ["consumer", "prune", CONSUMER, "--yes", "--older-than"];
    ends(&world, &[&prune[..], &["30d"]].concat(), 0, "0 row(s) deleted").await;
    ends(&world, &[&prune[..], &["7d"]].concat(), 2, "applied again").await;
    let retry = world.run(["inbox", "retry"]).await;
    assert_eq!(retry.code, Some(2), "{}", retry.text);
    assert!(retry.text.contains("--all-dead"), "{}", retry.text);
}

#[tokio::test]
async fn a_scaffold_takes_a_row_as_a_trigger_writes_it_arrays_and_all() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world
        .execute(
            "CREATE TABLE effect.tagged (
               id text PRIMARY KEY, version bigint, tags text[], counts int[], none text[], data bytea, at date)",
        )
        .await;
    let scaffold = world.succeed(["consumer", "scaffold", "effect.tagged"]).await;
    world.execute(&scaffold).await;
    world
        .execute(
            "SELECT effect.apply_tagged(ARRAY[jsonb_populate_record(NULL::app_inbox_event, jsonb_build_object(
                 'aggregate_id', 'a', 'version', 1, 'payload', to_jsonb(t)))])
               FROM (SELECT 'a' AS id, ARRAY['x', 'y\"z'] AS tags, ARRAY[1, 2] AS counts, NULL::text[] AS none,
                            '\\x00ff'::bytea AS data, date '2026-01-31' AS at) AS t",
        )
        .await;
    let written = "SELECT count(*) FROM effect.tagged WHERE tags = ARRAY['x', 'y\"z'] AND counts = ARRAY[1, 2]
                     AND none IS NULL AND data = '\\x00ff' AND at = '2026-01-31'";
    assert_eq!(world.number(written).await, 1);
}

#[tokio::test]
async fn a_consumer_that_reads_another_subscription_is_refused_before_one_is_created() {
    let Some(world) = world().await else { return };
    world.insert_events(1, 1).await;
    world.catch_up().await;
    world.consume_all().await;
    let init = ["consumer", "init", CONSUMER, "--create", "--topic", "video.events"];
    let other = [&init[..], &["--subscription", "another"]].concat();
    ends(&world, &other, 2, "Give the subscription in the message as `--subscription`").await;
    let subscriptions = world.pubsub.emulator().subscriptions();
    assert_eq!(subscriptions, ["projects/test/subscriptions/ledger"]);
    let again = [&init[..], &["--subscription", CONSUMER]].concat();
    ends(&world, &again, 0, "nothing to do: ").await;
    ends(&world, &[&again[..], &["-v"]].concat(), 0, "already there: tables and functions").await;
    ends(&world, &again, 0, "SELECT app_inbox_grant('walrelay_consumer');").await;
}

#[tokio::test]
async fn an_inbox_that_is_made_is_said_to_be_created_and_one_elsewhere_is_asked_for() {
    let Some(world) = InboxDatabase::create().await else { return };
    ends(&world, &["inbox", "list"], 3, "--database-url").await;
    ends(&world, &["consumer", "pause", CONSUMER], 3, "consumer init").await;
    let create = ["--subscription", CONSUMER, "--create", "--topic", "video.events"];
    let init = [&["consumer", "init", CONSUMER][..], &create].concat();
    ends(&world, &init, 0, "created: tables and functions of the inbox").await;
    // A database with only consumers has no outbox, and the commands must not create one.
    world.execute("DROP TABLE app_outbox_relay, app_outbox_dispatch, app_outbox CASCADE").await;
    for command in [&["audit"][..], &["trace", "e-1"]] {
        let done = world.run(command.iter().copied()).await;
        assert_eq!(done.code, Some(3), "{}", done.text);
        assert!(
            done.text.contains("Set `--database-url` to the outbox's database"),
            "{}",
            done.text
        );
    }
}

/// Returns the URL of this database through a proxy that closes new connections at once.
async fn behind_a_refusing_proxy(world: &InboxDatabase) -> (Proxy, String) {
    let (_, address) = world.url().split_once('@').expect("a user");
    let (upstream, database) = address.split_once('/').expect("a database");
    let proxy = Proxy::start(upstream).await;
    proxy.set(Network::Refusing);
    let url = format!("postgresql://postgres@{}/{database}?connect_timeout=1", proxy.address());
    (proxy, url)
}

#[tokio::test]
async fn relay_and_consumer_wait_for_a_first_connection_that_is_cut_or_not_answered() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world.insert_events(3, 30).await;
    let (proxy, url) = behind_a_refusing_proxy(&world).await;
    let relay = world.relay(["--database-url", &url]).start();
    let consumer = world.consumer(["--database-url", &url]).with_http().start();
    relay.wait_for_line(DEADLINE, "connecting again").await;
    consumer.wait_for_line(DEADLINE, "cannot start yet").await;
    for process in [&relay, &consumer] {
        process.wait_for_http(DEADLINE, "/readyz", 503).await;
        process.wait_for_http(DEADLINE, "/livez", 200).await;
    }
    proxy.set(Network::BlackHole);
    for process in [&relay, &consumer] {
        process.wait_for_line(DEADLINE, "did not answer within").await;
    }
    proxy.set(Network::Fine);
    for process in [&relay, &consumer] {
        process.wait_for_http(DEADLINE, "/readyz", 200).await;
    }
    world.wait_applied(30).await;
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn a_first_start_where_nothing_listens_or_the_database_is_unknown_ends() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let (proxy, _) = behind_a_refusing_proxy(&world).await;
    let port = proxy.port();
    drop(proxy);
    let nobody = format!("postgresql://postgres@127.0.0.1:{port}/d");
    let (server, _) = world.url().rsplit_once('/').expect("a database");
    let unknown = format!("{server}/absent");
    for url in [nobody, unknown] {
        // Where nothing listens, both try for half a minute first.
        let (consumer, relay) = tokio::join!(
            world.consumer(["--database-url", &url]).finish(DEADLINE),
            world.run(["run", "--database-url", &url])
        );
        assert_eq!(consumer.code, Some(3), "{}", consumer.text);
        assert_eq!(relay.code, Some(3), "{}", relay.text);
    }
}
