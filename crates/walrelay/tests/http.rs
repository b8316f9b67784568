//! The HTTP endpoints over a real socket.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![expect(clippy::shadow_unrelated, reason = "each request reads as if it stood alone")]

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use walrelay::http::{self, Observed};
use walrelay_relay::observe::health::{Health, Phase};
use walrelay_relay::observe::metrics::Metrics;

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
    /// Status code and body.
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
    served.health.operator_problem(&topic, "NOT_FOUND", "create the topic");
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
    let mut report = serde_json::Map::new();
    report.insert("lag_bytes".into(), 42.into());
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

#[tokio::test]
async fn a_connection_that_says_nothing_does_not_stop_the_others() {
    let served = served().await;
    let mut silent = Vec::new();
    for _ in 0..16 {
        silent.push(TcpStream::connect(served.address).await.unwrap());
    }
    assert_eq!(served.get("/livez").await.0, 200);
    drop(silent);
}
