//! How fast Publish is: a raw tonic client and the emulator on one thread each.
//!
//! `cargo bench -p walrelay-emulator`; without `--bench`, as `cargo test` runs it, with tiny inputs.
#![expect(clippy::print_stdout, reason = "the printed table is the result")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use http::uri::PathAndQuery;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use walrelay_emulator::{Emulator, Options, SubscriptionOptions};

const TOPIC: &str = "projects/bench/topics/orders";
const PUBLISH: &str = "/google.pubsub.v1.Publisher/Publish";

struct Case {
    name: &'static str,
    batch: usize,
    connections: usize,
    outstanding: usize,
    requests: u64,
    subscriptions: usize,
}

const CASES: [Case; 5] = [
    Case::new("1 message, 1 connection", 1, 1, 100, 200_000),
    Case::new("1 message, 4 connections", 1, 4, 400, 200_000),
    Case::new("10 messages, 4 connections", 10, 4, 400, 100_000),
    Case::new("100 messages, 4 connections", 100, 4, 400, 30_000),
    Case { subscriptions: 1, ..Case::new("100 messages, stored", 100, 4, 400, 10_000) },
];

impl Case {
    const fn new(
        name: &'static str,
        batch: usize,
        connections: usize,
        outstanding: usize,
        requests: u64,
    ) -> Self {
        Self { name, batch, connections, outstanding, requests, subscriptions: 0 }
    }
}

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    println!("| Publish | Requests/s | Messages/s | Server CPU, µs/request | Client CPU |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    for case in &CASES {
        let requests = if is_bench { case.requests } else { 50 };
        let Measured { elapsed_micros, server, client } = measure(case, requests);
        let rate = |count: u64| count * 1_000_000 / elapsed_micros.max(1);
        let messages = requests * case.batch as u64;
        let (of_requests, of_messages) = (rate(requests), rate(messages));
        let [of_server, of_client] = [server, client].map(|cpu| cpu_per_request(cpu, requests));
        println!("| {} | {of_requests} | {of_messages} | {of_server} | {of_client} |", case.name);
    }
}

struct Measured {
    elapsed_micros: u64,
    /// CPU time of the two threads: unlike the rates, it means something on a busy machine.
    server: Option<Duration>,
    client: Option<Duration>,
}

/// CPU time of this thread so far, where the kernel tells.
fn thread_cpu() -> Option<Duration> {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds = schedstat.split_whitespace().next()?;
    nanoseconds.parse().ok().map(Duration::from_nanos)
}

fn cpu_per_request(cpu: Option<Duration>, requests: u64) -> String {
    let requests = u32::try_from(requests).unwrap_or(u32::MAX);
    cpu.map_or("–".to_owned(), |all| format!("{:.1}", (all / requests).as_secs_f64() * 1e6))
}

fn measure(case: &Case, requests: u64) -> Measured {
    let emulator = Emulator::new(Options::default());
    emulator.create_topic(TOPIC).expect("a new emulator has no topics");
    for number in 0..case.subscriptions {
        let name = format!("projects/bench/subscriptions/orders-{number}");
        let options = SubscriptionOptions::default();
        emulator.create_subscription(&name, TOPIC, options).expect("the topic exists");
    }
    let (address, listening) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    std::thread::scope(|scope| {
        let server = emulator.clone();
        let serving = scope.spawn(move || {
            runtime().block_on(serve(&server, address, stopped));
            thread_cpu()
        });
        let before = thread_cpu();
        let elapsed_micros = runtime().block_on(async {
            let bound = listening.await.expect("the server starts");
            publish_all(case, requests, &format!("http://{bound}")).await
        });
        drop(stop);
        assert_eq!(emulator.stats().messages_stored, requests * case.batch as u64);
        let client = thread_cpu().zip(before).map(|(after, before)| after - before);
        let of_server = serving.join().expect("the server does not panic");
        Measured { elapsed_micros, server: of_server, client }
    })
}

async fn serve(
    server: &Emulator,
    address: oneshot::Sender<SocketAddr>,
    stopped: oneshot::Receiver<()>,
) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback exists");
    let bound = listener.local_addr().expect("a bound socket has an address");
    address.send(bound).expect("the client waits for the address");
    server.serve(listener, async { drop(stopped.await) }).await;
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime needs nothing special")
}

async fn publish_all(case: &Case, requests: u64, address: &str) -> u64 {
    let request = request(case.batch);
    let mut channels = Vec::new();
    for _ in 0..case.connections {
        let endpoint = Endpoint::from_shared(address.to_owned()).expect("a well-formed address");
        channels.push(endpoint.connect().await.expect("the server listens"));
    }
    let left = Arc::new(AtomicU64::new(requests));
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for channel in channels.iter().cycle().take(case.outstanding) {
        workers.spawn(worker(channel.clone(), request.clone(), Arc::clone(&left)));
    }
    while let Some(worker) = workers.join_next().await {
        worker.expect("no worker panics");
    }
    u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX)
}

async fn worker(channel: Channel, request: Bytes, left: Arc<AtomicU64>) {
    let mut client = tonic::client::Grpc::new(channel);
    let take = |count: u64| count.checked_sub(1);
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
        client.ready().await.expect("the connection lives");
        let path = PathAndQuery::from_static(PUBLISH);
        let reply = client.unary(Request::new(request.clone()), path, Raw).await;
        drop(reply.expect("the emulator takes it"));
    }
}

/// The message of the published measurements: 280 bytes of payload and six attributes.
fn request(batch: usize) -> Bytes {
    let names =
        ["event_id", "event_type", "aggregate_type", "aggregate_id", "version", "commit_lsn"];
    let attributes = names.map(|name| (name.to_owned(), "0123456789abcdef".to_owned()));
    let message = proto::PubsubMessage {
        data: Bytes::from(vec![b'x'; 280]),
        attributes: attributes.into(),
        ..Default::default()
    };
    let messages = vec![message; batch];
    proto::PublishRequest { topic: TOPIC.to_owned(), messages }.encode_to_vec().into()
}

/// Sends and receives encoded messages as they are.
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(length)))
    }
}
