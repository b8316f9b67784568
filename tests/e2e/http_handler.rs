//! Events are delivered to a service over HTTP: signed, in order per key, once if the service answers, and none is lost
//! if it does not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac;
use walrelay_testkit::metadata::MetadataServer;
use walrelay_testkit::receiver::{Received, Receiver, Reply};
use walrelay_testkit::relay::Relay;
use walrelay_testkit::tls::CERTIFICATE_FILE;
use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase};

const FIRST: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const SECOND: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OK: Reply = Reply::status("200 OK");

async fn world() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world.set_up_consumer().await;
    Some(world)
}

fn url(service: &Receiver) -> String {
    format!("http://{}/hook?token=hunter2", service.address())
}

/// Starts a consumer that delivers to this service.
async fn consume(world: &InboxDatabase, service: &Receiver, options: &[&str]) -> Relay {
    let url = url(service);
    let arguments = ["consumer", "run", CONSUMER, "--handler", &url];
    let consumer = world.command(arguments.into_iter().chain(options.iter().copied())).with_http();
    let consumer = consumer.start();
    consumer.wait_for_http(DEADLINE, "/livez", 200).await;
    consumer
}

/// Waits until the inbox has so many rows of this condition.
async fn wait_rows(world: &InboxDatabase, condition: &str, count: i64) {
    let sql = format!("SELECT count(*) FROM app_inbox WHERE {condition}");
    let met = async || (world.number(&sql).await == count).then_some(());
    wait_until(DEADLINE, &format!("{count} rows with {condition}"), met).await;
}

fn has_signature_of(request: &Received, secret: &str) -> bool {
    let key = STANDARD.decode(&secret["whsec_".len()..]).expect("base64");
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    let (id, timestamp) = (request.header("webhook-id"), request.header("webhook-timestamp"));
    let content = [format!("{id}.{timestamp}.").as_bytes(), &request.body].concat();
    let signatures = request.header("webhook-signature").split(' ');
    let mut tags = signatures.filter_map(|it| STANDARD.decode(it.strip_prefix("v1,")?).ok());
    tags.any(|tag| hmac::verify(&key, &content, &tag).is_ok())
}

/// Removes the requests of events that were there before.
fn only_first(requests: &mut Vec<Received>) {
    let mut seen = BTreeSet::new();
    requests.retain(|request| seen.insert(request.header("webhook-id").to_owned()));
}

/// Checks the requests of all events, each once: their headers, and their order per key.
async fn assert_described(world: &InboxDatabase, requests: &[Received]) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for request in requests {
        assert_eq!(request.line, "POST /hook?token=hunter2");
        let timestamp: u64 = request.header("webhook-timestamp").parse().expect("a number");
        assert!(now.as_secs().abs_diff(timestamp) < 300, "{timestamp}");
        for (name, value) in [
            ("ce-specversion", "1.0"),
            ("ce-type", "made"),
            ("ce-source", "public.app_outbox"),
            ("ce-aggregatetype", "video"),
            ("content-type", "application/json"),
            ("ce-id", request.header("webhook-id")),
            ("ce-partitionkey", request.header("ce-subject")),
        ] {
            assert_eq!(request.header(name), value, "{name}");
        }
        assert!(request.header("ce-time").ends_with('Z'), "{request:?}");
        keys.entry(request.header("ce-subject")).or_default().push(request.header("webhook-id"));
    }
    let mut wanted: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in world.committed().await {
        wanted.entry(row.key).or_default().push(row.event_id);
    }
    let owned = |(key, ids): (&str, Vec<&str>)| {
        (key.to_owned(), ids.into_iter().map(str::to_owned).collect::<Vec<_>>())
    };
    assert_eq!(keys.into_iter().map(owned).collect::<BTreeMap<_, _>>(), wanted);
}

#[tokio::test]
async fn a_service_gets_each_event_once_in_order_and_signed_with_rotating_secrets() {
    let Some(world) = world().await else { return };
    let file = std::env::temp_dir().join(format!("secrets-{}", world.name()));
    std::fs::write(&file, format!("{FIRST}\n")).expect("a file");
    let service = Receiver::start(|_| Reply::Slow(Duration::from_millis(2)));
    let path = file.display().to_string();
    let mut consumer = consume(&world, &service, &["--handler-secrets", &path]).await;
    world.insert_events(7, 100).await;
    world.catch_up().await;
    wait_rows(&world, "status = 'done'", 100).await;
    let signed_by = |secret: &str| {
        service.received().iter().filter(|request| has_signature_of(request, secret)).count()
    };
    assert_eq!((signed_by(FIRST), signed_by(SECOND)), (100, 0));

    // Both secrets while the receivers change theirs, then the new one alone.
    for (secrets, count, expected) in
        [(format!("{SECOND} {FIRST}"), 150, (150, 50)), (SECOND.to_owned(), 200, (150, 100))]
    {
        std::fs::write(&file, secrets).expect("a file");
        world.insert_events(7, 50).await;
        world.catch_up().await;
        wait_rows(&world, "status = 'done'", count).await;
        assert_eq!((signed_by(FIRST), signed_by(SECOND)), expected);
    }

    // A broken file is an operator's error, and the old secrets sign nothing more.
    std::fs::write(&file, "whsec_hunter2").expect("a file");
    world.insert_events(1, 1).await;
    world.catch_up().await;
    let reasons = consumer.wait_for_http(DEADLINE, "/readyz", 503).await;
    assert!(reasons.contains("signing secret 1"), "{reasons}");
    std::fs::write(&file, SECOND).expect("a file");
    wait_rows(&world, "status = 'done' AND attempts = 1", 201).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;

    assert_described(&world, &service.received()).await;
    assert!((2..=8 * 5).contains(&service.open_max()), "{}", service.open_max());
    assert_eq!(consumer.terminate(DEADLINE).await, Some(0));
    let log = consumer.lines().join("\n");
    assert!(log.contains("/hook\"") && !log.contains("hunter2"), "{log}");
    assert!(![FIRST, SECOND].iter().any(|it| log.contains(&it["whsec_".len()..])), "{log}");
    std::fs::remove_file(&file).expect("the file is there");
}

#[tokio::test]
async fn a_hostile_service_loses_no_event_and_no_order() {
    let Some(world) = world().await else { return };
    let hostile = |request: &Received| match (request.header("ce-subject"), request.attempt) {
        ("key-0", 1) => Reply::Slow(Duration::from_millis(700)),
        ("key-1", 1) => Reply::Hang,
        ("key-2", 1) => Reply::HalfHead,
        ("key-3", 1) => Reply::HalfBody,
        ("key-4", 1) => Reply::Huge,
        ("key-5", 1) => Reply::Close,
        ("key-6", 1) => Reply::status("500 Internal Server Error"),
        ("key-7", 1..3) => Reply::Status("429 Too Many Requests", "Retry-After: 1\r\n".into(), ""),
        ("key-8", 1) => Reply::Status("500 Oops", String::new(), "a text that goes nowhere"),
        _ => OK,
    };
    let service = Receiver::start(hostile);
    let options = ["--handler-timeout", "1s"];
    let mut consumer = consume(&world, &service, &options).await;
    world.insert_events(10, 40).await;
    world.catch_up().await;
    wait_rows(&world, "status = 'done'", 40).await;
    assert_eq!(world.number("SELECT count(DISTINCT event_id) FROM app_inbox").await, 40);
    assert_eq!(consumer.terminate(DEADLINE).await, Some(0));

    // The huge answer was a 200, and is not read to its end.
    let received = service.received();
    let of_huge = received.iter().filter(|it| it.header("ce-subject") == "key-4").count();
    assert_eq!(of_huge, 4, "its events are delivered at the first attempt");
    assert!(service.huge_bytes() < 4 * (64 << 20), "{}", service.huge_bytes());
    // Without repeated attempts, each key is in order.
    let mut last = received.clone();
    last.reverse();
    only_first(&mut last);
    last.reverse();
    assert_described(&world, &last).await;
    let log = consumer.lines().join("\n");
    assert!(!log.contains("goes nowhere"), "the service's words are not logged: {log}");
}

#[tokio::test]
async fn a_killed_consumer_repeats_requests_with_the_same_ids_and_records_each_event_once() {
    let Some(world) = world().await else { return };
    let service = Receiver::start(|_| Reply::Slow(Duration::from_millis(10)));
    world.insert_events(5, 200).await;
    world.catch_up().await;
    for requests in [20, 60, 110] {
        let mut consumer = consume(&world, &service, &["--batch", "20"]).await;
        let enough = async || (service.received().len() >= requests).then_some(());
        wait_until(DEADLINE, &format!("{requests} requests"), enough).await;
        consumer.kill();
    }
    let consumer = consume(&world, &service, &[]).await;
    wait_rows(&world, "status = 'done' AND attempts = 1", 200).await;
    assert_eq!(world.number("SELECT count(*) FROM app_inbox").await, 200);
    let mut first = service.received();
    assert!(first.len() > 200, "something was repeated");
    only_first(&mut first);
    assert_described(&world, &first).await;
    drop(consumer);
}

#[tokio::test]
async fn a_service_that_asks_for_time_gets_it_and_no_attempt_counts() {
    let Some(world) = world().await else { return };
    let asks = "Retry-After: 3\r\n".to_owned();
    let service = Receiver::start(move |request| match request.attempt {
        1 => Reply::Status("503 Service Unavailable", asks.clone(), ""),
        _ => OK,
    });
    let consumer = consume(&world, &service, &["--max-attempts", "1"]).await;
    world.insert_events(1, 1).await;
    world.catch_up().await;
    wait_rows(&world, "status = 'done'", 1).await;
    let received = service.received();
    let [first, second] = &received[..] else { panic!("{received:?}") };
    let waited = second.at - first.at;
    assert!(waited >= Duration::from_secs(3), "{waited:?}");
    assert_eq!(first.header("webhook-id"), second.header("webhook-id"));
    drop(consumer);
}

#[tokio::test]
async fn a_wrong_url_makes_no_event_dead_and_events_go_on_once_it_is_right() {
    let Some(world) = world().await else { return };
    let elsewhere = Receiver::start(|_| OK);
    let moved = format!("Location: http://{}/\r\n", elsewhere.address());
    let mut replies = [
        Reply::status("404 Not Found"),
        Reply::Status("307 Temporary Redirect", moved, ""),
        Reply::status("401 Unauthorized"),
        Reply::status("410 Gone"),
    ]
    .into_iter()
    .cycle();
    let service = Receiver::start(move |_| replies.next().unwrap_or(OK));
    let mut consumer = consume(&world, &service, &["--max-attempts", "1"]).await;
    world.insert_events(20, 200).await;
    world.catch_up().await;
    let reasons = consumer.wait_for_http(DEADLINE, "/readyz", 503).await;
    assert!(
        reasons.contains("/hook: ") && reasons.contains("no attempts are counted"),
        "{reasons}"
    );
    assert!(!reasons.contains("hunter2"), "{reasons}");
    assert_eq!(world.number("SELECT count(*) FROM app_inbox WHERE attempts > 0").await, 0);
    service.answer(|_| OK);
    wait_rows(&world, "status = 'done'", 200).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
    assert!(elsewhere.received().is_empty(), "a redirect is not followed");
    assert_eq!(consumer.terminate(DEADLINE).await, Some(0));
}

#[tokio::test]
async fn a_refused_event_is_dead_at_once_and_a_failing_one_after_its_attempts() {
    let Some(world) = world().await else { return };
    let service = Receiver::start(|request| match request.header("ce-subject") {
        "key-0" => Reply::Status("422 Unprocessable Content", String::new(), "no such video"),
        "key-1" => Reply::status("500 Internal Server Error"),
        _ => OK,
    });
    let consumer = consume(&world, &service, &["--max-attempts", "2"]).await;
    world.insert_events(4, 40).await;
    world.catch_up().await;
    wait_rows(&world, "status = 'done'", 20).await;
    wait_rows(&world, "status = 'dead'", 2).await;
    wait_rows(&world, "status = 'retrying' AND error_code IS NULL", 18).await;
    for (key, attempts, code, error) in
        [("key-0", 1, "HTTP_422", "/hook: 422 "), ("key-1", 2, "HTTP_500", "/hook: 500 ")]
    {
        let sql = "SELECT attempts, error_code, last_error FROM app_inbox WHERE status = 'dead' AND ordering_key = $1";
        let row = world.client().query_one(sql, &[&key]).await.expect("a dead row");
        assert_eq!((row.get::<_, i32>(0), row.get::<_, &str>(1)), (attempts, code), "{key}");
        let text: &str = row.get(2);
        assert!(text.contains(error) && !text.contains("hunter2"), "{text}");
        assert_eq!(text.contains("no such video"), key == "key-0", "{text}");
    }
    service.answer(|_| OK);
    world.succeed(["inbox", "retry", "--all-dead", "--yes"]).await;
    wait_rows(&world, "status = 'done'", 40).await;
    drop(consumer);
}

#[tokio::test]
async fn an_outage_of_the_service_counts_no_attempt() {
    let Some(world) = world().await else { return };
    let service = Receiver::start(|_| Reply::Close);
    let consumer = consume(&world, &service, &["--max-attempts", "3"]).await;
    world.insert_events(30, 300).await;
    world.catch_up().await;
    let reasons = consumer.wait_for_http(DEADLINE, "/readyz", 503).await;
    assert!(reasons.contains("/hook: "), "{reasons}");
    // The first round, and then one probe every few seconds.
    let enough = async || (service.received().len() > 14).then_some(());
    wait_until(DEADLINE, "fourteen requests", enough).await;
    // A key that failed while nothing else was there may be stored. The others wait, and take no rows.
    assert!(world.number("SELECT count(DISTINCT ordering_key) FROM app_inbox").await <= 2);
    assert_eq!(world.number("SELECT count(*) FROM app_inbox WHERE status = 'dead'").await, 0);
    service.answer(|_| OK);
    wait_rows(&world, "status = 'done'", 300).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
}

#[tokio::test]
async fn a_certificate_is_checked_and_a_token_names_the_service() {
    let Some(world) = world().await else { return };
    let service = Receiver::start_tls(|_| OK);
    let metadata = MetadataServer::start().await.expect("a free port");
    let port = service.address().rsplit(':').next().unwrap_or_default();
    let url = format!("https://localhost:{port}/hook");
    let command = |words: &[&str]| {
        let command = world.command(words.iter().copied()).env("WALRELAY_HANDLER", &url);
        command.env("GCE_METADATA_HOST", &metadata.address()).env("HOME", "/nowhere")
    };
    world.insert_events(2, 10).await;
    world.catch_up().await;
    // Nothing is delivered to a service whose certificate nobody has signed.
    let run = ["consumer", "run", CONSUMER];
    let consumer = command(&run).with_http().start();
    let reasons = consumer.wait_for_http(DEADLINE, "/readyz", 503).await;
    drop(consumer);
    assert_eq!(world.number("SELECT count(*) FROM app_inbox").await, 0, "{reasons}");
    let untrusted = command(&["check"]).finish(DEADLINE).await.text;
    assert!(untrusted.contains("UnknownIssuer"), "{untrusted}");

    let auth = ["--handler-auth", "google-id-token", "--handler-ca", CERTIFICATE_FILE];
    let checked = command(&["check", "-v"].into_iter().chain(auth).collect::<Vec<_>>());
    let checked = checked.finish(DEADLINE).await.text;
    assert!(checked.contains("answers HEAD with 200"), "{checked}");
    let delivering = command(&run.into_iter().chain(auth).collect::<Vec<_>>()).start();
    wait_rows(&world, "status = 'done'", 10).await;
    let posts: Vec<_> =
        service.received().into_iter().filter(|it| it.line == "POST /hook").collect();
    assert_eq!(posts.len(), 10);
    for request in posts {
        let token = request.header("authorization").strip_prefix("Bearer ").unwrap_or_default();
        let claims = token.split('.').nth(1).unwrap_or_default();
        let claims = String::from_utf8(URL_SAFE_NO_PAD.decode(claims).expect("base64"));
        let audience = format!("\"aud\":\"https://localhost:{port}\"");
        assert!(claims.expect("text").contains(&audience), "{token}");
        assert_eq!(request.header("webhook-signature"), "");
    }
    drop(delivering);
}

#[tokio::test]
async fn options_that_would_show_events_or_do_nothing_are_refused() {
    let Some(world) = world().await else { return };
    let missing = "/no/such/file";
    for (options, says) in [
        (&["--handler", "http://example.com/"][..], "it has no TLS"),
        (&["--handler", "ftp://example.com/"], "no URL of HTTP"),
        (&["--handler", "https://a/", "--handler-secrets", missing], "nor a file of them"),
        (&["--handler", "https://a/", "--handler-secrets", "whsec_hunter2"], "is not whsec_"),
        (&["--handler", "https://a/", "--handler-ca", missing], "No such file"),
        (
            &["--handler", "https://u:hunter2@a/", "--handler-auth", "google-id-token"],
            "one authorization",
        ),
        (&["--handler", "effect.add", "--handler-secrets", FIRST], "only if --handler is the URL"),
    ] {
        let run = ["consumer", "run", CONSUMER].into_iter().chain(options.iter().copied());
        let refused = world.run(run).await;
        assert_eq!(refused.code, Some(2), "{}", refused.text);
        assert!(refused.text.contains(says), "{}", refused.text);
        assert!(!refused.text.contains("hunter2"), "{}", refused.text);
    }
    let rebuild = ["consumer", "rebuild", CONSUMER, "--into", "x", "--handler", "https://a/"];
    let refused = world.run(rebuild).await;
    assert!(refused.text.contains("are not taken back"), "{}", refused.text);
    let shown = ["config", "show", "--", "consumer", "run", CONSUMER, "--handler"];
    let secret = ["https://u:hunter2@a/b?code=hunter2", "--handler-secrets", "whsec_hunter2"];
    let shown = world.succeed(shown.into_iter().chain(secret)).await;
    assert!(shown.contains("https://u:***@a/b?***") && !shown.contains("hunter2"), "{shown}");
}
