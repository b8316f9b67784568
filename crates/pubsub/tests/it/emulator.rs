//! Tests the publisher and the administration against the embedded Pub/Sub.

use std::time::Duration;

use pgoutput_parser::{Lsn, Position};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use walrelay_core::{CallCode, FailureClass, Message, Topic};
use walrelay_emulator::{Emulator, Log, Options};
use walrelay_pubsub::{
    Admin, Endpoint, GrpcPublisher, PublisherConfig, PubsubError, TopicSettings,
    install_crypto_provider, operator_fix_of,
};

const TOPIC: &str = "projects/p/topics/orders.events";
/// Far more time than any of these calls takes, so that a hanging test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts an emulator on a free port. Dropping the set of tasks stops it.
async fn emulator() -> (Emulator, Endpoint, JoinSet<()>) {
    install_crypto_provider();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let emulator = Emulator::new(Options { log: Log::Keep, ..Options::default() });
    let mut tasks = JoinSet::new();
    let serving = emulator.clone();
    tasks.spawn(async move { serving.serve(listener, std::future::pending()).await });
    let endpoint = Endpoint::emulator(&address.to_string()).expect("an endpoint");
    (emulator, endpoint, tasks)
}

#[tokio::test]
async fn a_topic_is_missing_until_it_is_created_and_may_be_created_twice() {
    let (_emulator, endpoint, _tasks) = emulator().await;
    let admin = Admin::connect(&endpoint).unwrap();
    let steps = async {
        assert!(!admin.topic_exists(TOPIC).await.unwrap());
        admin.create_topic(TOPIC, &TopicSettings::default()).await.unwrap();
        admin.create_topic(TOPIC, &TopicSettings::default()).await.unwrap();
        assert!(admin.topic_exists(TOPIC).await.unwrap());
    };
    timeout(PATIENCE, steps).await.expect("the emulator answers");
}

#[tokio::test]
async fn a_topic_that_cannot_be_created_is_named_with_its_code() {
    let (_emulator, endpoint, _tasks) = emulator().await;
    let admin = Admin::connect(&endpoint).unwrap();
    let created =
        timeout(PATIENCE, admin.create_topic("projects/p/topics/1!", &TopicSettings::default()))
            .await
            .unwrap();
    let error = created.unwrap_err();
    assert!(
        matches!(&error, PubsubError::Topic { code: CallCode::InvalidArgument, .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("projects/p/topics/1!"), "{error}");
}

#[tokio::test]
async fn a_message_is_stored_once_its_topic_exists() {
    let (emulator, endpoint, _tasks) = emulator().await;
    let publisher = GrpcPublisher::connect(&PublisherConfig::new(endpoint.clone())).unwrap();
    let position = Position { commit_lsn: Lsn::new(1), tx_index: 0 };
    // data "hi", ordering_key "k"
    let body = [0x0A, 2, b'h', b'i', 0x2A, 1, b'k'];
    let message = Message::from_encoded(TOPIC.into(), position, "event", &body).unwrap();
    let publish = || publisher.publish(&Topic::from(TOPIC), std::iter::once(&message));

    let failure = timeout(PATIENCE, publish()).await.unwrap().unwrap_err();
    assert_eq!(failure.class, FailureClass::Operator);
    let fix = operator_fix_of(&failure, TOPIC).unwrap();
    assert!(fix.contains("create topic orders.events"), "{fix}");

    emulator.create_topic(TOPIC).unwrap();
    let ids = timeout(PATIENCE, publish()).await.unwrap().unwrap();
    let stored = emulator.published(TOPIC);
    assert_eq!(stored.len(), 1);
    assert_eq!(ids, [stored[0].id().to_string()]);
    assert_eq!((&stored[0].data()[..], stored[0].key()), (&b"hi"[..], "k"));
}
