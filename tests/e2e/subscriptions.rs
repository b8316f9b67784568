//! A consumer's subscription: correct setup, a mistyped name, and the change to another
//! subscription.

use walrelay_emulator::{Ordering, SubscriptionOptions};
use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase, topic};

const OTHER: &str = "projects/test/subscriptions/other";

fn subscribe(world: &InboxDatabase, name: &str, topic_name: &str, ordering: Ordering) {
    let options = SubscriptionOptions { ordering, ..SubscriptionOptions::default() };
    let emulator = world.pubsub.emulator();
    emulator.create_subscription(name, &topic(topic_name), options).expect("a subscription");
}

/// Runs `consumer init` with these options, and checks the exit code and the output.
async fn init(world: &InboxDatabase, options: &[&str], code: i32, says: &[&str]) {
    let done = world.run(["consumer", "init", CONSUMER].iter().chain(options).copied()).await;
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
    let says = ["topic projects/test/topics/nosuch does not exist", "gcloud pubsub topics create"];
    init(&world, &create("nosuch"), 4, &says).await;
    let dead_letters = [&create("video.events")[..], &["--dead-letter-topic", "nosuch"]].concat();
    init(&world, &dead_letters, 4, &says).await;
    assert_eq!(consumers(&world).await, 0, "a consumer was set up all the same");
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
    assert!(told.text.contains("whether the subscription exists cannot be told"), "{}", told.text);

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
