//! The HTTP endpoints over a real socket.

#![expect(clippy::shadow_unrelated, reason = "each request reads as if it stood alone")]

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use walrelay::http::{self, Observed};
use walrelay_core::CallCode;
use walrelay_relay::observe::health::{Health, Phase};
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::observe::report::SlotReport;

/// Timeout of a probe. Kubernetes waits one second, but a machine under test is slower.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

struct Served {
    address: SocketAddr,
    health: Health,
    metrics: Metrics,
    _tasks: JoinSet<std::io::Result<()>>,
}

async fn served() -> Served {
    let listener = http::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (health, metrics) = (Health::new(), Metrics::new());
    let observed = Observed::of_relay(health.clone(), metrics.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(http::serve(listener, observed));
    Served { address, health, metrics, _tasks: tasks }
}

impl Served {
    /// Returns status code and body.
    async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, body.to_owned())
    }
}

#[tokio::test]
async fn a_standby_is_live_and_not_ready() {
    let served = served().await;
    served.health.set_phase(Phase::Standby { holder: "process 4711".into() });
    assert_eq!(served.get("/livez").await.0, 200);
    let (code, body) = served.get("/readyz").await;
    assert_eq!(code, 503);
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["phase"], "standby");
    assert_eq!(body["reasons"][0], "standby: the slot is held by process 4711");
}

#[tokio::test]
async fn an_operator_problem_makes_a_streaming_relay_unready_until_it_is_cleared() {
    let served = served().await;
    let topic = "projects/p/topics/t".into();
    served.health.set_phase(Phase::Streaming);
    assert_eq!(served.get("/readyz").await.0, 200);
    served.health.operator_problem(&topic, CallCode::NotFound.into(), "create the topic");
    let (code, body) = served.get("/readyz").await;
    assert_eq!(code, 503);
    assert!(body.contains("projects/p/topics/t: create the topic"), "{body}");
    assert_eq!(served.get("/livez").await.0, 200);
    served.health.operator_cleared(&topic);
    assert_eq!(served.get("/readyz").await.0, 200);
}

#[tokio::test]
async fn metrics_and_status_show_what_the_pipeline_counted() {
    let served = served().await;
    served.metrics.rows_read.inc_by(7);
    let report = SlotReport { lag_bytes: Some(42), ..SlotReport::default() };
    served.health.set_report(report);
    let (code, body) = served.get("/metrics").await;
    assert_eq!(code, 200);
    assert!(body.contains("walrelay_rows_read_total 7"), "{body}");
    let (code, body) = served.get("/status").await;
    assert_eq!(code, 200);
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["lag_bytes"], &body["relay"]["phase"]), (&42.into(), &"starting".into()));
    assert_eq!(served.get("/nowhere").await.0, 404);
}

/// Bytes that idle clients send before they fall silent.
const IDLE: [&str; 3] = ["", "GET /livez HT", "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"];

#[tokio::test]
async fn the_liveness_probe_answers_beside_80_idle_connections() {
    for sent in IDLE {
        let served = served().await;
        let mut idle = Vec::new();
        for _ in 0..80 {
            let mut stream = TcpStream::connect(served.address).await.unwrap();
            // Writing fails if the connection was already closed for a newer one.
            drop(stream.write_all(sent.as_bytes()).await);
            idle.push(stream);
        }
        let answer = tokio::time::timeout(PROBE_TIMEOUT, served.get("/livez")).await;
        let (code, _) = answer.unwrap_or_else(|_| panic!("no answer beside {sent:?}"));
        assert_eq!(code, 200, "beside {sent:?}");
        drop(idle);
    }
}

#[tokio::test]
async fn a_request_that_is_sent_byte_by_byte_is_cut_after_a_few_seconds() {
    let served = served().await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let mut bytes = "GET /livez HTTP/1.1\r\nX-Slow: ".bytes().chain(std::iter::repeat(b'x'));
    let began = tokio::time::Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(200));
    let mut answer = [0; 64];
    loop {
        assert!(began.elapsed() < Duration::from_secs(20), "the request is still open");
        tokio::select! {
            read = stream.read(&mut answer) => match read {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            },
            _ = tick.tick() => {
                let byte = bytes.next().unwrap();
                drop(stream.write_all(&[byte]).await);
            }
        }
    }
    assert!(began.elapsed() > Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(served.get("/livez").await.0, 200);
}
