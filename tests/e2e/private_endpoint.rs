//! Pub/Sub behind a certificate of a private authority, with TLS and credentials as in production.

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use walrelay_emulator::{Emulator, Log, Options, Tls};
use walrelay_testkit::metadata::MetadataServer;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::relay::RelayCommand;
use walrelay_testkit::tls::{CERTIFICATE, CERTIFICATE_FILE, KEY};
use walrelay_tests::{DEADLINE, InboxDatabase, topic};

/// A Pub/Sub that accepts only TLS, and a metadata server that issues its tokens.
struct Private {
    emulator: Emulator,
    endpoint: String,
    metadata: MetadataServer,
    _serving: JoinSet<()>,
}

impl Private {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let emulator = Emulator::new(Options { log: Log::Keep, ..Options::default() });
        let (served, tls) = (emulator.clone(), Tls::from_pem(CERTIFICATE, KEY).expect("a pair"));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            served.serve_tls(listener, &tls, std::future::pending()).await;
        });
        let metadata = MetadataServer::start().await.expect("a free port");
        let endpoint = format!("https://localhost:{port}");
        Self { emulator, endpoint, metadata, _serving: serving }
    }

    fn command<'a>(
        &self,
        world: &InboxDatabase,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> RelayCommand {
        world
            .command(arguments)
            .env("PUBSUB_EMULATOR_HOST", "")
            .env("WALRELAY_ENDPOINT", &self.endpoint)
            .env("WALRELAY_PUBSUB_CA", CERTIFICATE_FILE)
            .env("GCE_METADATA_HOST", &self.metadata.address())
    }
}

/// Creates a consumer with its subscription.
const CREATE_CONSUMER: [&str; 8] =
    ["consumer", "init", "view", "--subscription", "view", "--create", "--topic", "video.events"];

#[tokio::test]
async fn a_private_authority_is_trusted_for_topics_rows_and_subscriptions() {
    let Some(world) = InboxDatabase::create().await else { return };
    let private = Private::start().await;
    Workload::of_rows(100).insert(world.client()).await.unwrap();

    for arguments in [
        &["init", "--create-topics=video.events"][..],
        &["check"],
        &["run", "--until-caught-up"],
        &CREATE_CONSUMER,
    ] {
        let done = private.command(&world, arguments.iter().copied()).finish(DEADLINE).await;
        assert_eq!(done.code, Some(0), "{arguments:?}: {}", done.text);
    }
    assert_eq!(private.emulator.published(&topic("video.events")).len(), 100);
}

#[tokio::test]
async fn a_metadata_server_that_is_not_there_at_first_is_asked_again() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut private = Private::start().await;
    private.emulator.create_topic(&topic("video.events")).unwrap();
    Workload::of_rows(10).insert(world.client()).await.unwrap();
    for arguments in [
        &["run", "--until-caught-up"][..],
        &CREATE_CONSUMER,
        &["consumer", "run", "view", "--handler", "apply", "--until-caught-up"],
    ] {
        if arguments.contains(&"init") {
            world.execute("CREATE TABLE applied (id text)").await;
        } else if arguments.contains(&"--handler") {
            world
                .execute(
                    "CREATE FUNCTION apply(events app_inbox_event[]) RETURNS void LANGUAGE sql AS
                     'INSERT INTO applied SELECT e.event_id FROM unnest(events) AS e'",
                )
                .await;
            private.metadata = MetadataServer::start_after(2).await.unwrap();
        } else {
            private.metadata = MetadataServer::start_after(2).await.unwrap();
        }
        let done = private.command(&world, arguments.iter().copied()).finish(DEADLINE).await;
        assert_eq!(done.code, Some(0), "{arguments:?}: {}", done.text);
    }
    assert_eq!(private.emulator.published(&topic("video.events")).len(), 10);
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_named_and_nothing_is_lost() {
    let Some(world) = InboxDatabase::create().await else { return };
    let private = Private::start().await;
    private.emulator.create_topic(&topic("video.events")).unwrap();
    Workload::of_rows(5).insert(world.client()).await.unwrap();

    let unknown = private.command(&world, ["check"]).env("WALRELAY_PUBSUB_CA", "");
    let done = unknown.finish(DEADLINE).await;
    assert_ne!(done.code, Some(0), "{}", done.text);
    assert!(done.text.contains("certificate"), "{}", done.text);
    assert!(done.text.contains("--pubsub-ca"), "{}", done.text);

    let missing = private.command(&world, ["run"]).env("WALRELAY_PUBSUB_CA", "/no/such/file.pem");
    let refused = missing.finish(DEADLINE).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("/no/such/file.pem"), "{}", refused.text);

    let ran = private.command(&world, ["run", "--until-caught-up"]).finish(DEADLINE).await;
    assert_eq!(ran.code, Some(0), "{}", ran.text);
    assert_eq!(private.emulator.published(&topic("video.events")).len(), 5);
}
