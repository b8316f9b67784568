//! A consumer's subscription: correct setup, a mistyped name, and the change to another
//! subscription.

use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::Subscription;
use walrelay_emulator::{Ordering, SubscriptionOptions};
use walrelay_pubsub::{Admin, Endpoint, Subscriber};
use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase, topic};

const DAY: Duration = Duration::from_hours(24);

const OTHER: &str = "projects/test/subscriptions/other";

fn subscribe(world: &InboxDatabase, name: &str, topic_name: &str, ordering: Ordering) {
    let options = SubscriptionOptions { ordering, ..SubscriptionOptions::default() };
    let emulator = world.pubsub.emulator();
    emulator.create_subscription(name, &topic(topic_name), options).expect("a subscription");
}

/// Runs `consumer init` with these options, and checks the exit code and the output.
async fn init(world: &InboxDatabase, options: &[&str], code: i32, says: &[&str]) {
    let done = world.run(["consumer", "init", CONSUMER, "-v"].iter().chain(options).copied()).await;
    assert_eq!(done.code, Some(code), "{options:?}: {}", done.text);
    for part in says {
        assert!(done.text.contains(part), "{options:?} without {part:?}: {}", done.text);
    }
}

async fn consumers(world: &InboxDatabase) -> i64 {
    world.number("SELECT count(*) FROM app_inbox_consumer").await
}

#[tokio::test]
async fn a_subscription_that_exists_and_is_another_one_is_refused_with_what_differs() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.pubsub.create_topic("other.events");
    let create = ["--create", "--topic", "video.events", "--subscription"];
    let create = |name| [&create[..], &[name]].concat();

    subscribe(&world, OTHER, "video.events", Ordering::Ignored);
    let hint = "subscription-differs";
    init(&world, &create("other"), 3, &["it does not deliver in order", hint]).await;
    subscribe(&world, "projects/test/subscriptions/elsewhere", "other.events", Ordering::PerKey);
    let differs =
        "its topic is projects/test/topics/other.events, not projects/test/topics/video.events";
    init(&world, &create("elsewhere"), 3, &[differs]).await;
    assert_eq!(consumers(&world).await, 0, "a consumer was set up all the same");

    let filtered = [&create(CONSUMER)[..], &["--filter", "attributes:event_type"]].concat();
    init(&world, &filtered, 0, &["created: subscription"]).await;
    init(&world, &create(CONSUMER), 3, &["its filter is "]).await;
    init(&world, &filtered, 0, &["already there: subscription", "already there: consumer"]).await;
}

#[tokio::test]
async fn a_topic_that_does_not_exist_is_named_with_what_creates_it() {
    let Some(world) = InboxDatabase::create().await else { return };
    let create = |name| ["--subscription", CONSUMER, "--create", "--topic", name];
    let says = [
        "topic projects/test/topics/nosuch does not exist",
        "walrelay init --create-topics=projects/test/topics/nosuch",
    ];
    init(&world, &create("nosuch"), 4, &says).await;
    let dead_letters = [&create("video.events")[..], &["--dead-letter-topic", "nosuch"]].concat();
    init(&world, &dead_letters, 4, &says).await;
    assert_eq!(consumers(&world).await, 0, "a consumer was set up all the same");
}

#[tokio::test]
async fn the_next_command_after_a_set_up_names_the_database_that_was_typed() {
    let Some(world) = InboxDatabase::create().await else { return };
    let url = world.url().to_owned();
    let create = ["--subscription", CONSUMER, "--create", "--topic", "video.events"];
    let place = ["consumer", "init", CONSUMER, "--database-url", &url];
    let done = world.succeed(place.into_iter().chain(create)).await;
    let next = format!("walrelay consumer run --database-url {url} {CONSUMER} --handler FUNCTION");
    assert!(done.contains(&next), "{done}");
}

#[tokio::test]
async fn a_mistyped_subscription_is_refused_and_an_empty_inbox_may_be_given_another_one() {
    let Some(world) = InboxDatabase::create().await else { return };
    let with = |name| ["--subscription", name];
    init(&world, &with("legder"), 4, &["legder does not exist", "--create --topic TOPIC"]).await;
    assert_eq!(consumers(&world).await, 0, "a consumer was set up all the same");
    // Without a reachable Pub/Sub, the name is accepted unchecked.
    let nobody = world.command(["consumer", "init", CONSUMER, "--subscription", "legder"]);
    let told = nobody.env("PUBSUB_EMULATOR_HOST", "127.0.0.1:1").finish(DEADLINE).await;
    assert_eq!(told.code, Some(0), "{}", told.text);
    assert!(told.text.contains("it is unknown whether the subscription exists"), "{}", told.text);

    let create = [&with(CONSUMER)[..], &["--create", "--topic", "video.events"]].concat();
    let moved = [
        "created: subscription",
        "moved: consumer ledger",
        "instead of projects/test/subscriptions/legder",
    ];
    init(&world, &create, 0, &moved).await;
    assert_eq!(consumers(&world).await, 1);
    // An existing consumer stays valid when its subscription is deleted.
    world
        .execute("UPDATE app_inbox_consumer SET subscription = 'projects/test/subscriptions/gone'")
        .await;
    init(&world, &with("gone"), 0, &["the subscription does not exist", "already there: consumer"])
        .await;
}

#[tokio::test]
async fn a_consumer_that_has_applied_something_is_not_moved_by_a_set_up() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    subscribe(&world, OTHER, "video.events", Ordering::PerKey);
    world.insert_events(1, 1).await;
    world.catch_up().await;
    world.consume_all().await;
    let other = ["--subscription", "other"];
    init(&world, &other, 2, &["has applied events from it"]).await;
    // A consumer whose inbox was emptied keeps its subscription as well.
    world.execute("DELETE FROM app_inbox; DELETE FROM app_inbox_key; UPDATE app_inbox_consumer SET pruned_before = now()").await;
    init(&world, &other, 2, &["has applied events from it"]).await;
}

#[tokio::test]
async fn a_consumer_whose_subscription_is_gone_is_told_how_to_create_it() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let gone = "projects/test/subscriptions/gone";
    world.execute(&format!("UPDATE app_inbox_consumer SET subscription = '{gone}'")).await;
    let page = world.succeed(["consumer", "status", CONSUMER]).await;
    assert!(page.starts_with("the subscription does not exist\n"), "{page}");
    let create = format!("walrelay consumer init {CONSUMER} --subscription {gone} --create");
    assert!(page.contains(&create), "{page}");
}

/// The steps in docs/how-to/operate/consumers.md, Move to another subscription.
#[tokio::test]
async fn a_consumer_that_is_moved_to_an_ordered_subscription_loses_nothing() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let unordered = "projects/test/subscriptions/unordered";
    subscribe(&world, unordered, "video.events", Ordering::Ignored);
    let read = |name: &str| {
        format!(
            "UPDATE app_inbox_consumer SET subscription = '{name}', updated_at = now() WHERE consumer = '{CONSUMER}'"
        )
    };
    world.execute(&read(unordered)).await;
    let consumer = world.start_consumer([]).await;
    consumer.wait_for_line(DEADLINE, "create an ordered subscription").await;
    world.insert_events(5, 100).await;
    world.catch_up().await;

    subscribe(&world, OTHER, "video.events", Ordering::PerKey);
    // Earlier events are already applied, and new events go to both subscriptions.
    world.insert_events(5, 100).await;
    world.catch_up().await;
    world.wait_applied(100).await;
    wait_until(DEADLINE, "what was published before to be in the inbox", async || {
        let lacking =
            "SELECT count(*) FROM (SELECT id::text FROM app_outbox ORDER BY version LIMIT 100) AS o
                        WHERE NOT EXISTS (SELECT FROM app_inbox AS i WHERE i.event_id = o.id)";
        (world.number(lacking).await == 0).then_some(())
    })
    .await;
    world.execute(&read(OTHER)).await;
    consumer.wait_for_line(DEADLINE, "going on with the other subscription").await;
    world.insert_events(5, 100).await;
    world.catch_up().await;
    world.wait_applied(300).await;
    drop(consumer);
    let sum = "SELECT sum(events)::bigint FROM effect.balance";
    assert_eq!(world.number(sum).await, 300, "each once");
}

/// Returns the settings of a subscription.
async fn settings(world: &InboxDatabase, name: &str) -> Subscription {
    let endpoint = Endpoint::emulator(world.pubsub.address()).expect("an address");
    let subscriber = Subscriber::connect(&endpoint).expect("a client");
    let name = format!("projects/test/subscriptions/{name}");
    subscriber.subscription(&name).await.expect("an answer").expect("a subscription")
}

#[tokio::test]
async fn a_created_subscription_is_named_after_its_topic_and_can_be_read_again() {
    let Some(world) = InboxDatabase::create().await else { return };
    let create = ["--create", "--topic", "video.events"];
    let name = "projects/test/subscriptions/video.events.ledger";
    init(&world, &create, 0, &[&format!("created: subscription {name}")]).await;
    let created = settings(&world, "video.events.ledger").await;
    assert!(created.retain_acked_messages && created.enable_message_ordering, "{created:?}");
    assert_eq!(created.message_retention_duration.map(|it| it.seconds), Some(7 * 24 * 3600));
    assert_eq!(created.expiration_policy.and_then(|policy| policy.ttl), None);

    // The topic of this test forgets acknowledged messages.
    let checked = world.succeed(["check"]).await;
    assert!(checked.contains("topic-retention-missing"), "{checked}");
    world.pubsub.emulator().retain(&topic("video.events"), DAY).expect("a topic");
    let fixed = world.succeed(["check"]).await;
    assert!(!fixed.contains("topic-retention-missing"), "{fixed}");
}

#[tokio::test]
async fn a_subscription_with_exactly_once_delivery_survives_a_kill_and_each_event_takes_effect_once()
 {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let create = ["--create", "--topic", "video.events", "--exactly-once"];
    init(&world, &create, 0, &["created: subscription"]).await;
    assert!(settings(&world, "video.events.ledger").await.enable_exactly_once_delivery);
    world.insert_events(10, 200).await;
    world.catch_up().await;
    let killed = world.start_consumer([]).await;
    world.wait_applied(20).await;
    drop(killed);
    let _consumer = world.start_consumer([]).await;
    world.wait_applied(200).await;
    let sum = "SELECT sum(events)::bigint FROM effect.balance";
    assert_eq!(world.number(sum).await, 200, "each once");
}

#[tokio::test]
async fn the_regions_of_a_created_topic_are_those_that_were_named() {
    let Some(world) = InboxDatabase::create().await else { return };
    let regions = "europe-west1,europe-west4";
    world.succeed(["init", "--create-topics=pinned.events", "--regions", regions]).await;
    let endpoint = Endpoint::emulator(world.pubsub.address()).expect("an address");
    let admin = Admin::connect(&endpoint).expect("a client");
    let found = admin.topic("projects/test/topics/pinned.events").await.expect("an answer");
    let policy = found.expect("the topic").message_storage_policy.expect("a policy");
    assert_eq!(policy.allowed_persistence_regions.join(","), regions);
}

#[tokio::test]
async fn dead_letters_have_a_topic_a_subscription_and_permissions_and_drain_into_the_same_inbox() {
    let Some(world) = InboxDatabase::create().await else { return };
    let dead = "video.events.ledger.dead";
    let create = ["--create", "--topic", "video.events", "--subscription", CONSUMER];
    let letters = [&create[..], &["--dead-letter"]].concat();
    let says = [
        "created: topic projects/test/topics/video.events.ledger.dead",
        "created: subscription projects/test/subscriptions/video.events.ledger.dead",
        "gcloud projects describe test",
        "gcloud pubsub topics add-iam-policy-binding video.events.ledger.dead --project=test",
        "gcloud pubsub subscriptions add-iam-policy-binding ledger --project=test",
    ];
    init(&world, &letters, 0, &says).await;
    let grant = [&letters[..], &["--project-number", "4711", "--grant"]].concat();
    let agent = "to serviceAccount:service-4711@gcp-sa-pubsub.iam.gserviceaccount.com";
    let publisher =
        format!("granted: roles/pubsub.publisher on projects/test/topics/{dead} {agent}");
    let subscriber = "granted: roles/pubsub.subscriber on projects/test/subscriptions/ledger";
    init(&world, &grant, 0, &[&publisher, subscriber]).await;
    init(&world, &grant, 0, &["already there: roles/pubsub.publisher on"]).await;

    let policy = settings(&world, CONSUMER).await.dead_letter_policy.expect("a policy");
    assert_eq!(policy.dead_letter_topic, topic(dead));
    let drained = settings(&world, dead).await;
    assert!(drained.enable_message_ordering && drained.topic == topic(dead), "{drained:?}");

    world.set_up_consumer().await;
    world.insert_events(5, 20).await;
    world.catch_up().await;
    let again = ["replay", "start", "--source", "table", "--to-topic", dead, "--yes"];
    world.succeed(again).await;
    let drain = ["--subscription", dead, "--until-caught-up"];
    let done = world.consumer(drain).finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    assert_eq!(world.applied_count().await, 20);
    // The consumer can drain these dead letters, so nothing warns about them.
    let checked = world.succeed(["check"]).await;
    assert!(!checked.contains("subscription-unsuitable"), "{checked}");
    let started = world.consumer(["--until-caught-up"]).finish(DEADLINE).await;
    assert!(!started.text.contains("dead-letter topic"), "{}", started.text);
    world.consume_all().await;
    assert_eq!(world.applied_count().await, 20);
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn an_existing_subscription_is_not_given_dead_letters_and_nothing_is_left_behind() {
    let Some(world) = InboxDatabase::create().await else { return };
    let create = ["--create", "--topic", "video.events", "--subscription", CONSUMER];
    init(&world, &create, 0, &["created: subscription"]).await;
    let letters = [&create[..], &["--dead-letter"]].concat();
    let update = "gcloud pubsub subscriptions update projects/test/subscriptions/ledger \
                  --dead-letter-topic=projects/test/topics/video.events.ledger.dead --max-delivery-attempts=100";
    init(&world, &letters, 3, &["subscription-differs", update]).await;
    let endpoint = Endpoint::emulator(world.pubsub.address()).expect("an address");
    let subscriber = Subscriber::connect(&endpoint).expect("a client");
    let dead = "projects/test/subscriptions/video.events.ledger.dead";
    assert!(subscriber.subscription(dead).await.expect("an answer").is_none(), "{dead} exists");
    let own = [&create[..], &["--dead-letter-topic", "video.events"]].concat();
    init(&world, &own, 2, &["dead letters would return to the consumer"]).await;
}

#[tokio::test]
async fn an_inbox_keeps_rows_for_as_long_as_dead_letters_may_be_delivered() {
    let Some(world) = InboxDatabase::create().await else { return };
    let create = ["--create", "--topic", "video.events", "--subscription", CONSUMER];
    init(&world, &[&create[..], &["--dead-letter"]].concat(), 0, &[]).await;
    // Seven days in the subscription, seven days among the dead letters, and one day more.
    for (older_than, code) in [("8d", 2), ("14d", 2), ("15d", 0)] {
        let prune = ["consumer", "prune", CONSUMER, "--yes", "--older-than", older_than];
        let done = world.run(prune).await;
        assert_eq!(done.code, Some(code), "{older_than}: {}", done.text);
        assert_eq!(done.text.contains("dead letters included"), code == 2, "{}", done.text);
    }
}

#[tokio::test]
async fn the_status_of_a_consumer_has_the_backlog_of_its_subscription() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world.insert_events(5, 20).await;
    world.catch_up().await;
    let status = async || -> serde_json::Value {
        let text = world.succeed(["consumer", "status", CONSUMER, "--output", "json"]).await;
        serde_json::from_str(&text).expect("JSON")
    };
    let behind = status().await;
    assert_eq!(behind["backlog_messages"], 20, "{behind}");
    assert!(behind["backlog_oldest_seconds"].is_u64(), "{behind}");
    world.consume_all().await;
    let caught_up = status().await;
    assert_eq!(caught_up["backlog_messages"], 0, "{caught_up}");
    assert_eq!(caught_up["backlog_oldest_seconds"], 0, "{caught_up}");

    let nobody = world.command(["consumer", "status", CONSUMER]);
    let told = nobody.env("PUBSUB_EMULATOR_HOST", "127.0.0.1:1").finish(DEADLINE).await;
    assert_eq!(told.code, Some(0), "{}", told.text);
    assert!(told.text.contains("is not known"), "{}", told.text);
}
