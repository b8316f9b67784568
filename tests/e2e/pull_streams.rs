//! Streams of a consumer that are silent, and messages that something changes on their way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::DeleteTopicRequest;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::publisher_client::PublisherClient;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tonic::transport::Channel;
use walrelay_testkit::proxy::{Network, Proxy};
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase, topic};

async fn world() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world.set_up_consumer().await;
    Some(world)
}

#[tokio::test]
async fn a_stream_whose_opening_hangs_is_opened_again_and_not_ready_until_it_answers() {
    let Some(world) = world().await else { return };
    world.pubsub.fault("on=streaming-pull,first=1,black-hole");
    world.insert_events(5, 20).await;
    world.catch_up().await;
    let consumer = world.consumer([]).with_http().start();
    consumer.wait_for_line(DEADLINE, "no answer on the stream").await;
    world.wait_applied(20).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
    world.assert_applied_exactly_once().await;
}

/// With the client id of the cut stream, Pub/Sub would send later messages of a key before those that
/// were lost in transit.
#[tokio::test]
async fn connections_cut_in_the_middle_of_a_response_keep_the_order_of_every_key() {
    let Some(world) = world().await else { return };
    world.insert_events(20, 2000).await;
    world.catch_up().await;
    let proxy = Proxy::start(world.pubsub.address()).await;
    // Slow enough that every cut is within a response.
    proxy.set(Network::Throttled { bytes_per_second: 200_000 });
    let address = proxy.address().to_string();
    let consumer = world.consumer([]).with_http().env("PUBSUB_EMULATOR_HOST", &address).start();
    for count in [100, 400] {
        world.wait_applied(count).await;
        proxy.cut();
    }
    proxy.set(Network::Fine);
    world.wait_applied(2000).await;
    world.assert_applied_exactly_once().await;
    let late = "SELECT count(*) FROM app_inbox WHERE status = 'late'";
    assert_eq!(world.number(late).await, 0, "{:?}", consumer.lines());
}

#[tokio::test]
async fn a_running_consumer_whose_topic_is_deleted_is_not_ready_and_reports_it_once() {
    let Some(world) = world().await else { return };
    let consumer = world.start_consumer([]).await;
    let url = format!("http://{}", world.pubsub.address());
    let channel = Channel::from_shared(url).expect("an address").connect().await;
    let mut publisher = PublisherClient::new(channel.expect("a connection"));
    let request = DeleteTopicRequest { topic: topic("video.events") };
    publisher.delete_topic(request).await.expect("the topic is there");
    let body = consumer.wait_for_http(DEADLINE, "/readyz", 503).await;
    assert!(body.contains("was deleted: nothing arrives"), "{body}");
    consumer.wait_for_line(DEADLINE, "topic-not-found").await;
    drop(consumer);

    let next = world.consumer([]).with_http().start();
    let line = next.wait_for_line(DEADLINE, "topic-not-found").await;
    assert!(line.contains(CONSUMER), "{line}");
    next.wait_for_http(DEADLINE, "/readyz", 503).await;
}

/// Text of an event that the proxy makes unreadable, and the bytes that are no text.
const SPOILED: &[u8] = b"event-to-be-spoiled";
const GARBAGE: [u8; SPOILED.len()] = [0xFF; SPOILED.len()];

/// Starts a proxy that spoils each event of the type [`SPOILED`]. Returns its address and the number
/// of spoiled deliveries.
async fn spoiling_proxy(upstream: &str) -> (String, Arc<AtomicUsize>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let (upstream, spoiled) = (upstream.to_owned(), Arc::new(AtomicUsize::new(0)));
    let (counter, mut tasks) = (Arc::clone(&spoiled), JoinSet::new());
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&upstream).await.expect("the Pub/Sub is there");
            connections.spawn(pass(client, server, Arc::clone(&counter)));
        }
    });
    (address, spoiled, tasks)
}

async fn pass(mut client: TcpStream, mut server: TcpStream, spoiled: Arc<AtomicUsize>) {
    let (mut client_read, mut client_write) = client.split();
    let (mut server_read, mut server_write) = server.split();
    let forward = async { copy(&mut client_read, &mut server_write).await.map(drop) };
    let backward = async {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let count = server_read.read(&mut buffer).await?;
            if count == 0 {
                return client_write.shutdown().await;
            }
            let mut from = 0;
            while let Some(at) = find(&buffer[from..count]) {
                buffer[from + at..from + at + SPOILED.len()].copy_from_slice(&GARBAGE);
                spoiled.fetch_add(1, Ordering::SeqCst);
                from += at + SPOILED.len();
            }
            client_write.write_all(&buffer[..count]).await?;
        }
    };
    drop(tokio::try_join!(forward, backward));
}

fn find(bytes: &[u8]) -> Option<usize> {
    bytes.windows(SPOILED.len()).position(|window| window == SPOILED)
}

#[tokio::test]
async fn a_malformed_message_is_skipped_and_stops_no_other() {
    let Some(world) = world().await else { return };
    let (proxy, spoiled, _tasks) = spoiling_proxy(world.pubsub.address()).await;
    world.insert_events(5, 20).await;
    let spoiled_type = String::from_utf8_lossy(SPOILED).into_owned();
    world.insert_events_of(("video", &spoiled_type), 1, 1).await;
    world.insert_events(5, 20).await;
    world.catch_up().await;
    // It does not wait for the spoiled message, which is redelivered after each lease.
    let consumer = world.consumer(["--until-caught-up"]).env("PUBSUB_EMULATOR_HOST", &proxy);
    let done = consumer.finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    assert!(spoiled.load(Ordering::SeqCst) > 0, "nothing was spoiled");
    assert_eq!(done.text.matches("cannot be read is skipped").count(), 1, "{}", done.text);
    let other_keys = "SELECT count(*) FROM effect.applied WHERE key <> 'key-0'";
    assert_eq!(world.number(other_keys).await, 32, "{}", done.text);

    // Without the proxy, the event is applied when its lease has run out.
    let direct = world.consumer(["--until-caught-up", "--quiet-for", "22s"]);
    let last = direct.finish(DEADLINE).await;
    assert_eq!((last.code, world.applied_count().await), (Some(0), 41), "{}", last.text);
}

#[tokio::test]
async fn check_reports_consumers_of_two_databases_on_one_subscription() {
    let Some(world) = world().await else { return };
    let Some(other) = InboxDatabase::create().await else { return };
    let init = ["consumer", "init", "copy", "--subscription", CONSUMER];
    let shared = |command: walrelay_testkit::relay::RelayCommand| {
        command.env("PUBSUB_EMULATOR_HOST", world.pubsub.address())
    };
    let done = shared(other.command(init)).finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    let (here, there) = (format!("{CONSUMER}={}", world.url()), format!("copy={}", other.url()));
    for places in [vec!["--inbox", &here, "--inbox", &there], vec!["--inbox", &there]] {
        let checked = world.run(["check"].into_iter().chain(places.iter().copied())).await;
        let told = format!("another consumer ({CONSUMER}) also reads");
        assert!(checked.text.contains(&told), "{places:?}: {}", checked.text);
    }
    let alone = world.succeed(["check", "--inbox", &here]).await;
    assert!(!alone.contains("another consumer"), "{alone}");
}
