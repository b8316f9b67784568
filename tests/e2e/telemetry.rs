//! Spans and metrics reach an OpenTelemetry collector. A missing collector does not affect
//! publishing.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use walrelay_testkit::collector::{
    Collector, Kept, KeyValue, Span, SpanKind, Status, StatusCode, metric::Data,
    number_data_point::Value, texts,
};
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::relay::Relay;
use walrelay_testkit::{http_get, wait_until};
use walrelay_tests::{DEADLINE, InboxDatabase, topic};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN_ID: &str = "b7ad6b7169203331";
const NOT_RECORDED: &str = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

const NOT_TAKEN: &str = "the collector does not take telemetry";

async fn start(world: &InboxDatabase, variables: &[(&str, &str)]) -> Relay {
    let command = variables.iter().fold(world.relay([]), |it, (name, value)| it.env(name, value));
    let relay = command.start();
    relay.wait_for_line(DEADLINE, "\"streaming\"").await;
    relay
}

async fn start_consumer(world: &InboxDatabase, variables: &[(&str, &str)]) -> Relay {
    let command = world.consumer([]).with_http();
    let command = variables.iter().fold(command, |it, (name, value)| it.env(name, value));
    let consumer = command.start();
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
    consumer
}

async fn insert(
    world: &InboxDatabase,
    aggregate_type: &str,
    aggregate_id: &str,
    traceparent: &str,
) {
    let sql = format!(
        "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, headers)
         VALUES ('{aggregate_type}', '{aggregate_id}', 'test.inserted', 1, '{{}}', jsonb_build_object('traceparent', '{traceparent}'))"
    );
    world.execute(&sql).await;
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn links(span: &Span) -> Vec<(String, String)> {
    span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect()
}

fn error(message: &str) -> Status {
    Status { message: message.to_owned(), code: StatusCode::Error.into() }
}

/// Returns the sum of a counter's data points.
fn counted(kept: &Kept, name: &str) -> Option<i64> {
    let metric = kept.metrics.iter().find(|metric| metric.name == name)?;
    let Some(Data::Sum(sum)) = &metric.data else { panic!("{metric:?}") };
    let values = sum.data_points.iter().map(|point| match point.value {
        Some(Value::AsInt(number)) => number,
        other => panic!("{other:?}"),
    });
    Some(values.sum())
}

#[tokio::test]
async fn a_publish_span_is_linked_to_the_trace_of_its_row_which_is_carried_on() {
    let Some(world) = InboxDatabase::create().await else { return };
    let collector = Collector::start();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.endpoint()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hunter2"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=unseen"),
        ("OTEL_SERVICE_NAME", "orders-relay"),
        // The log lines include all debug messages of the libraries.
        ("RUST_LOG", "debug"),
    ];
    let mut relay = start(&world, &variables).await;
    insert(&world, "video", "v-1", TRACE).await;
    insert(&world, "video", "v-2", NOT_RECORDED).await;
    insert(&world, "missing", "m-1", TRACE).await;
    world.pubsub.wait_stored(DEADLINE, 2).await;
    let sent = |code: StatusCode| {
        let has = |it: &Status| it.code == i32::from(code);
        collector.kept().spans.into_iter().find(|span| span.status.as_ref().is_some_and(has))
    };
    let stored = wait_until(DEADLINE, "the span of v-1", async || sent(StatusCode::Unset)).await;
    let refused = wait_until(DEADLINE, "the span of m-1", async || sent(StatusCode::Error)).await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));

    let carried = world.pubsub.emulator().published(&topic("video.events"));
    // The order of the two keys is open.
    let carried: BTreeSet<_> = carried.iter().map(|it| it.attribute("traceparent")).collect();
    assert_eq!(carried, BTreeSet::from([Some(TRACE), Some(NOT_RECORDED)]));
    let attributes = texts(&stored.attributes);
    for (name, value) in [
        ("messaging.system", "gcp_pubsub"),
        ("messaging.operation.type", "send"),
        ("messaging.destination.name", "video.events"),
        ("messaging.batch.message_count", "1"),
    ] {
        assert_eq!(attributes.get(name).map(String::as_str), Some(value), "{attributes:?}");
    }
    assert_eq!((stored.name.as_str(), stored.kind()), ("send video.events", SpanKind::Producer));
    assert!(stored.start_time_unix_nano < stored.end_time_unix_nano);
    for span in [&stored, &refused] {
        assert_eq!(links(span), [(TRACE_ID.to_owned(), SPAN_ID.to_owned())]);
    }
    assert_eq!(texts(&refused.attributes).get("error.type").map(String::as_str), Some("NOT_FOUND"));

    let kept = collector.kept();
    let of_v_2 = kept.spans.iter().any(|span| span.links.is_empty());
    assert!(!of_v_2, "a trace that is not recorded has no span: {:?}", kept.spans);
    let service = ["service.name", "deployment.environment.name", "telemetry.sdk.language"];
    let service = service.map(|name| kept.resource.get(name).map(String::as_str));
    assert_eq!(service, [Some("orders-relay"), Some("test"), Some("rust")]);
    let secret = Some("Bearer hunter2".to_owned());
    assert!(kept.authorizations.iter().all(|it| *it == secret), "{:?}", kept.authorizations);
    let lines = relay.lines();
    assert!(!lines.iter().any(|line| line.contains("hunter2")), "{lines:#?}");
}

#[tokio::test]
async fn metrics_have_the_names_and_the_figures_of_the_metrics_endpoint() {
    let Some(world) = InboxDatabase::create().await else { return };
    let collector = Collector::start();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.endpoint()),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
    ];
    let mut relay = start(&world, &variables).await;
    Workload::of_rows(50).insert(world.client()).await.unwrap();
    world.pubsub.wait_stored(DEADLINE, 50).await;
    wait_until(DEADLINE, "the counters", async || {
        let kept = collector.kept();
        (counted(&kept, "walrelay_messages_published_total") == Some(50)).then_some(())
    })
    .await;
    // A row is counted by its type once its outcome is settled.
    let text = wait_until(DEADLINE, "the rows by type", async || {
        let (_, text) = http_get(relay.http_address(), "/metrics").await.unwrap();
        text.contains("walrelay_rows_by_type_total{").then_some(text)
    })
    .await;
    // The last metrics are sent at the end, and contain the final values.
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));

    let kept = collector.kept();
    assert_eq!(counted(&kept, "walrelay_rows_read_total"), Some(50));
    assert!(kept.spans.is_empty(), "{:?}", kept.spans);
    for metric in &kept.metrics {
        assert!(text.contains(&metric.name), "{} is not among\n{text}", metric.name);
    }
    let histogram = kept.metrics.iter().find(|it| it.name == "walrelay_publish_duration_seconds");
    let Some(Data::Histogram(histogram)) = histogram.and_then(|it| it.data.as_ref()) else {
        panic!("{:?}", kept.metrics)
    };
    let requests = counted(&kept, "walrelay_publish_requests_total").unwrap();
    assert_eq!(i64::try_from(histogram.data_points[0].count), Ok(requests));
    let shown = text.lines().filter(|line| line.starts_with("# TYPE"));
    // A metric without a sample is described at `/metrics`, but not sent.
    assert!(kept.metrics.len() * 2 > shown.count(), "{:?}", kept.metrics);
}

#[tokio::test]
async fn levels_are_up_to_date_though_nobody_scrapes() {
    let Some(world) = InboxDatabase::create().await else { return };
    let collector = Collector::start();
    let endpoint = collector.endpoint();
    let variables =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint), ("OTEL_METRIC_EXPORT_INTERVAL", "100")];
    let mut relay = start(&world, &variables).await;
    wait_until(DEADLINE, "the phase", async || {
        let kept = collector.kept();
        let phase = kept.metrics.iter().find(|metric| metric.name == "walrelay_phase")?;
        let Some(Data::Gauge(gauge)) = &phase.data else { panic!("{phase:?}") };
        let is_streaming = |attributes: &[KeyValue]| texts(attributes)["phase"] == "streaming";
        let mut points = gauge.data_points.iter();
        let point = points.find(|point| is_streaming(&point.attributes))?;
        (point.value == Some(Value::AsInt(1))).then_some(())
    })
    .await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
}

#[tokio::test]
async fn a_consumers_transaction_has_a_span_that_is_linked_to_the_traces_of_its_events() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let collector = Collector::start();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.endpoint()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hunter2"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
        ("RUST_LOG", "debug"),
    ];
    insert(&world, "video", "secret-key", TRACE).await;
    insert(&world, "video", "v-2", NOT_RECORDED).await;
    world.catch_up().await;
    let mut consumer = start_consumer(&world, &variables).await;
    world.wait_applied(2).await;
    wait_until(DEADLINE, "the counters", async || {
        let kept = collector.kept();
        (counted(&kept, "walrelay_inbox_events_total") == Some(2)).then_some(())
    })
    .await;
    assert_eq!(consumer.terminate(DEADLINE).await, Some(0));

    let kept = collector.kept();
    let [span] = &kept.spans[..] else { panic!("one has a recorded trace: {:?}", kept.spans) };
    assert_eq!((span.name.as_str(), span.kind()), ("process ledger", SpanKind::Consumer));
    assert_eq!(links(span), [(TRACE_ID.to_owned(), SPAN_ID.to_owned())]);
    assert!(span.parent_span_id.is_empty(), "{span:?}");
    assert!(span.start_time_unix_nano < span.end_time_unix_nano);
    let attributes = texts(&span.attributes);
    for (name, value) in [
        ("messaging.system", "gcp_pubsub"),
        ("messaging.operation.type", "process"),
        ("messaging.destination.name", "ledger"),
        ("messaging.destination.subscription.name", "ledger"),
    ] {
        assert_eq!(attributes.get(name).map(String::as_str), Some(value), "{attributes:?}");
    }
    assert!(attributes.contains_key("messaging.batch.message_count"), "{attributes:?}");
    assert!(!format!("{:?}", kept.spans).contains("secret-key"), "{:?}", kept.spans);
    let (authorization, lines) = (Some("Bearer hunter2".to_owned()), consumer.lines());
    assert!(kept.authorizations.iter().all(|it| *it == authorization));
    assert!(!lines.iter().any(|line| line.contains("hunter2")), "{lines:#?}");
}

#[tokio::test]
async fn a_transaction_that_fails_has_the_servers_code_and_nothing_of_its_text() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let collector = Collector::start();
    let endpoint = collector.endpoint();
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint)];
    let mut consumer = start_consumer(&world, &variables).await;
    let failed = async |code: &str| {
        wait_until(DEADLINE, &format!("a span with {code}"), async || {
            let spans = collector.kept().spans;
            let has =
                |it: &Span| texts(&it.attributes).get("error.type").is_some_and(|it| it == code);
            spans.into_iter().find(|span| has(span)).and_then(|span| span.status)
        })
        .await
    };
    // The handler fails on an event, and the event is stored.
    let poison = "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
                  VALUES ('video', 'v-1', 'made', 1, '{\"fails\": \"hunter2\"}')";
    world.execute(poison).await;
    world.catch_up().await;
    assert_eq!(failed("22000").await, error("1 of 1 events failed"));
    // The transaction itself cannot commit.
    world.execute("ALTER TABLE app_inbox RENAME TO hunter2").await;
    insert(&world, "video", "v-2", TRACE).await;
    world.catch_up().await;
    assert_eq!(failed("42P01").await, error("not committed: operator (SQLSTATE 42P01)"));
    world.execute("ALTER TABLE hunter2 RENAME TO app_inbox").await;
    world.wait_applied(1).await;
    assert_eq!(consumer.terminate(DEADLINE).await, Some(0));
    let spans = collector.kept().spans;
    assert!(!format!("{spans:?}").contains("hunter2"), "{spans:?}");
    let done = spans.iter().any(|span| span.status.as_ref().is_none_or(|it| it.code == 0));
    assert!(done, "{spans:?}");
}

#[tokio::test]
async fn a_collector_that_is_gone_costs_a_consumer_a_line_and_no_event() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let endpoint = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let variables =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint), ("OTEL_METRIC_EXPORT_INTERVAL", "100")];
    let mut consumer = start_consumer(&world, &variables).await;
    world.insert_events(20, 500).await;
    world.catch_up().await;
    world.wait_applied(500).await;
    wait_until(DEADLINE, "dropped spans to be counted", async || {
        let (_, text) = http_get(consumer.http_address(), "/metrics").await.ok()?;
        let name = "walrelay_inbox_spans_dropped_total{consumer=\"ledger\"} ";
        let line = text.lines().find_map(|it| it.strip_prefix(name))?;
        (line != "0").then_some(())
    })
    .await;
    assert_eq!(consumer.terminate(DEADLINE).await, Some(0));
    world.assert_applied_exactly_once().await;
    let lines = consumer.lines();
    let told: Vec<_> = lines.iter().filter(|line| line.contains(NOT_TAKEN)).collect();
    assert_eq!(told.len(), 1, "{lines:#?}");
}

#[tokio::test]
async fn a_consumer_without_a_collector_opens_no_connection() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint),
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "50"),
    ];
    let mut consumer = start_consumer(&world, &variables).await;
    insert(&world, "video", "v-1", TRACE).await;
    world.catch_up().await;
    world.wait_applied(1).await;
    assert_eq!(consumer.terminate(DEADLINE).await, Some(0));
    listener.set_nonblocking(true).unwrap();
    let nobody = listener.accept().map(|(_, address)| address).unwrap_err();
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_collector_that_is_gone_costs_a_line_and_no_row() {
    let Some(world) = InboxDatabase::create().await else { return };
    let endpoint = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let variables =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint), ("OTEL_METRIC_EXPORT_INTERVAL", "100")];
    let mut relay = start(&world, &variables).await;
    let workload = Workload { aggregates_count: 200, ..Workload::of_rows(2_000) };
    let committed = workload.insert(world.client()).await.unwrap();
    world.pubsub.wait_stored(DEADLINE, 2_000).await;
    world.wait_confirmed(DEADLINE).await;
    wait_until(DEADLINE, "dropped spans to be counted", async || {
        let (_, text) = http_get(relay.http_address(), "/metrics").await.ok()?;
        let line = text.lines().find_map(|it| it.strip_prefix("walrelay_spans_dropped_total "))?;
        (line != "0").then_some(())
    })
    .await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    world.check(&committed).assert_exactly_once();
    let lines = relay.lines();
    let told = lines.iter().filter(|line| line.contains("\"WARNING\"") || line.contains("ERROR"));
    let told: Vec<_> = told.collect();
    assert!(told.len() == 1 && told[0].contains(NOT_TAKEN), "{told:#?}");
}

#[tokio::test]
async fn a_collector_that_never_answers_holds_the_end_up_for_two_seconds_at_most() {
    let Some(world) = InboxDatabase::create().await else { return };
    // The kernel accepts connections, and no process reads from them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let mut relay = start(&world, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint)]).await;
    insert(&world, "video", "v-1", TRACE).await;
    world.pubsub.wait_stored(DEADLINE, 1).await;
    let asked = Instant::now();
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    // The exporter's own timeouts are longer.
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    assert!(relay.lines().iter().any(|line| line.contains("took too long at the end")));
}

#[tokio::test]
async fn switched_off_nobody_is_connected_to() {
    let Some(world) = InboxDatabase::create().await else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    for (name, value) in [
        ("OTEL_SDK_DISABLED", "true"),
        // Without an endpoint, no other variable enables telemetry.
        ("OTEL_TRACES_SAMPLER", "always_on"),
    ] {
        let mut variables = vec![(name, value), ("OTEL_METRIC_EXPORT_INTERVAL", "50")];
        if name == "OTEL_SDK_DISABLED" {
            variables.push(("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint));
        }
        let before = world.pubsub.stored_count();
        let mut relay = start(&world, &variables).await;
        insert(&world, "video", name, TRACE).await;
        world.pubsub.wait_stored(DEADLINE, before + 1).await;
        assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    }
    listener.set_nonblocking(true).unwrap();
    let nobody = listener.accept().map(|(_, address)| address).unwrap_err();
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn an_invalid_collector_is_refused_at_start() {
    let Some(world) = InboxDatabase::create().await else { return };
    let done = world
        .command(["run"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:hunter2@localhost:4317")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        .finish(DEADLINE)
        .await;
    assert_eq!(done.code, Some(2), "{}", done.text);
    for text in ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"] {
        assert!(done.text.contains(text), "{}", done.text);
    }
    assert!(!done.text.contains("hunter2"), "{}", done.text);
}
