//! Requests per second and CPU per request: `GrpcPublisher` against a tonic `Channel`.
//!
//! `cargo run --release -p walrelay-pubsub --example publish_rate [-- SECONDS]`
//!
//! The server answers at once, in a process of its own, so that the CPU time is the client's alone.
#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use http::{HeaderMap, HeaderValue, Response};
use pgoutput_parser::{Lsn, Position};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Request, Status};
use walrelay_core::{Message, Topic};
use walrelay_pubsub::{Endpoint, GrpcPublisher, PublisherConfig};

type Failure = Box<dyn Error + Send + Sync>;

const ROUNDS: usize = 5;
const TOPIC: &str = "projects/bench/topics/orders.events";

fn main() -> Result<(), Failure> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("serve") {
        return runtime.block_on(serve());
    }
    let seconds = argument.map_or(Ok(1.0), |text| text.parse())?;
    let (mut server, address) = start_server()?;
    let result = runtime.block_on(compare(address, Duration::from_secs_f64(seconds)));
    server.kill()?;
    server.wait()?;
    result
}

async fn compare(address: SocketAddr, lasting: Duration) -> Result<(), Failure> {
    println!(
        "{:<14} {:>6} {:>12} {:>11} {:>11}",
        "client", "batch", "outstanding", "requests/s", "CPU µs/req"
    );
    for (batch, outstanding) in [(1, 1), (1, 100), (1, 400), (1, 1600), (10, 400), (100, 100)] {
        let messages: Vec<Message> = (0..batch).map(message).collect();
        let mut best = [Load::NONE; 2];
        // In turn, and the best of each counts: a neighbour's load only ever makes it worse.
        for _ in 0..ROUNDS {
            let over_tonic = tonic_load(address, outstanding, &messages, lasting).await?;
            best[0] = best[0].better(over_tonic);
            let own = own_load(address, outstanding, &messages, lasting).await?;
            best[1] = best[1].better(own);
        }
        for (client, load) in ["tonic Channel", "GrpcPublisher"].iter().zip(best) {
            let Load { rate, cpu } = load;
            println!("{client:<14} {batch:>6} {outstanding:>12} {rate:>11.0} {cpu:>11.2}");
        }
    }
    Ok(())
}

/// As many channels as `GrpcPublisher` opens connections.
async fn tonic_load(
    address: SocketAddr,
    outstanding: usize,
    messages: &[Message],
    lasting: Duration,
) -> Result<Load, Failure> {
    let clients = channels(address, outstanding.div_ceil(100)).await?;
    let body = body(messages);
    let call = |worker: usize| tonic_call(clients[worker % clients.len()].clone(), body.clone());
    measure(outstanding, lasting, call).await
}

async fn own_load(
    address: SocketAddr,
    outstanding: usize,
    messages: &[Message],
    lasting: Duration,
) -> Result<Load, Failure> {
    let config = PublisherConfig::new(Endpoint::emulator(&address.to_string())?);
    let publisher = GrpcPublisher::connect(&config)?;
    let topic: Topic = TOPIC.into();
    let call = |_| {
        let publish = publisher.publish(&topic, messages.iter());
        async move { publish.await.map(drop).map_err(Failure::from) }
    };
    measure(outstanding, lasting, call).await
}

/// Requests a second, and microseconds of CPU a request.
#[derive(Clone, Copy)]
struct Load {
    rate: f64,
    cpu: f64,
}

impl Load {
    const NONE: Self = Self { rate: 0.0, cpu: f64::INFINITY };

    fn better(self, other: Self) -> Self {
        Self { rate: self.rate.max(other.rate), cpu: self.cpu.min(other.cpu) }
    }
}

/// `outstanding` futures in one task, as the relay keeps them, each calling again and again.
async fn measure<C, F>(outstanding: usize, lasting: Duration, call: C) -> Result<Load, Failure>
where
    C: Fn(usize) -> F,
    F: Future<Output = Result<(), Failure>>,
{
    use futures_util::stream::{FuturesUnordered, StreamExt};
    let requests = AtomicU32::new(0);
    let begin = Instant::now();
    let cpu = cpu_time()?;
    let workers: FuturesUnordered<_> = (0..outstanding)
        .map(|worker| {
            let (call, requests) = (&call, &requests);
            async move {
                while begin.elapsed() < lasting {
                    call(worker).await?;
                    requests.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), Failure>(())
            }
        })
        .collect();
    for result in workers.collect::<Vec<_>>().await {
        result?;
    }
    let elapsed = begin.elapsed().as_secs_f64();
    let cpu = (cpu_time()? - cpu).as_secs_f64() * 1e6;
    let requests = f64::from(requests.into_inner());
    Ok(Load { rate: requests / elapsed, cpu: cpu / requests })
}

/// User and system time of this process; the clock of /proc ticks 100 times a second.
fn cpu_time() -> Result<Duration, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let ticks =
        fields.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}

fn message(index: usize) -> Message {
    let mut body = vec![0x0A, 0x98, 0x02];
    body.extend_from_slice(&[b'x'; 280]);
    for (key, value) in [
        ("event_id", "3f0c7a52-9f0e-4a53-8f8b-5d3c1a2b4c5d"),
        ("event_type", "OrderPlaced"),
        ("aggregate_type", "orders"),
        ("aggregate_id", "7d1f6a90"),
        ("version", "42"),
        ("commit_lsn", "16/B374D848"),
    ] {
        let length = |text: &str| u8::try_from(text.len()).unwrap_or(u8::MAX);
        body.extend_from_slice(&[0x12, length(key) + length(value) + 4, 0x0A, length(key)]);
        body.extend_from_slice(key.as_bytes());
        body.extend_from_slice(&[0x12, length(value)]);
        body.extend_from_slice(value.as_bytes());
    }
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    let position = Position { commit_lsn: Lsn::new(1), tx_index: index };
    Message::from_encoded(TOPIC.into(), position, "e", &body).expect("a PubsubMessage")
}

fn body(messages: &[Message]) -> Bytes {
    let mut body = vec![0x0A, u8::try_from(TOPIC.len()).unwrap_or(u8::MAX)];
    body.extend_from_slice(TOPIC.as_bytes());
    for message in messages {
        body.extend_from_slice(message.request_field());
    }
    body.into()
}

// The tonic side: the same bytes through a codec that copies them.

async fn channels(address: SocketAddr, count: usize) -> Result<Vec<Channel>, Failure> {
    let mut channels = Vec::new();
    for _ in 0..count {
        let endpoint = Channel::from_shared(format!("http://{address}"))?;
        channels.push(endpoint.tcp_nodelay(true).timeout(Duration::from_secs(60)).connect().await?);
    }
    Ok(channels)
}

async fn tonic_call(channel: Channel, body: Bytes) -> Result<(), Failure> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await?;
    let mut request = Request::new(body);
    let routing = "topic=projects%2Fbench%2Ftopics%2Forders.events".parse()?;
    request.metadata_mut().insert("x-goog-request-params", routing);
    let path = http::uri::PathAndQuery::from_static("/google.pubsub.v1.Publisher/Publish");
    let response = grpc.unary(request, path, RawCodec).await?;
    assert!(response.into_inner().has_remaining());
    Ok(())
}

#[derive(Default)]
struct RawCodec;

impl Codec for RawCodec {
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

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

// The server.

fn start_server() -> Result<(Child, SocketAddr), Failure> {
    let mut server = Command::new(std::env::current_exe()?)
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let stdout = server.stdout.take().ok_or("the server has no standard output")?;
    BufReader::new(stdout).read_line(&mut line)?;
    Ok((server, line.trim().parse()?))
}

async fn serve() -> Result<(), Failure> {
    // Nobody holds our standard input any more: the client is gone.
    std::thread::spawn(|| {
        let mut nothing = Vec::new();
        drop(std::io::stdin().read_to_end(&mut nothing));
        std::process::abort();
    });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let mut connections = JoinSet::new();
    loop {
        let (tcp, _) = listener.accept().await?;
        tcp.set_nodelay(true)?;
        connections.spawn(serve_connection(tcp));
    }
}

async fn serve_connection(tcp: TcpStream) -> Result<(), h2::Error> {
    let mut connection = h2::server::Builder::new()
        .initial_window_size(16 * 1024 * 1024)
        .initial_connection_window_size(64 * 1024 * 1024)
        .max_concurrent_streams(1000)
        .handshake::<_, Bytes>(tcp)
        .await?;
    let mut requests = JoinSet::new();
    while let Some(request) = connection.accept().await {
        let (request, respond) = request?;
        requests.spawn(serve_request(request.into_body(), respond));
        while requests.try_join_next().is_some() {}
    }
    Ok(())
}

async fn serve_request(
    mut body: h2::RecvStream,
    mut respond: h2::server::SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let mut request = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        request.extend_from_slice(&chunk);
    }
    // The prefix, then fields whose lengths take one or two bytes: count those with tag 2.
    let mut count = 0;
    let mut rest = &request[5..];
    while let [tag, low, tail @ ..] = rest {
        let (length, tail) = match tail {
            [high, tail @ ..] if *low >= 0x80 => {
                (usize::from(*low & 0x7F) | usize::from(*high) << 7, tail)
            }
            tail => (usize::from(*low), tail),
        };
        count += usize::from(*tag == 0x12);
        rest = &tail[length..];
    }
    let ids = [0x0A, 8, b'1', b'2', b'3', b'4', b'5', b'6', b'7', b'8'].repeat(count);
    let mut frame = vec![0];
    frame.put_u32(u32::try_from(ids.len()).unwrap_or(u32::MAX));
    frame.extend_from_slice(&ids);
    let mut response = Response::new(());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(frame.into(), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}
