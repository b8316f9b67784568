//! The publishers that the relay is compared with, each in its own process.
//!
//! Two of them are the bare Publish RPC, over a tonic channel and over the relay's own client. The
//! third is Google's high-level publisher. No other part of the suite measures Publish alone. The
//! sink's CPU time and memory are measured at the same time.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::{Args, ValueEnum};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::Publisher;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use http::uri::PathAndQuery;
use pgoutput_parser::{Lsn, Position};
use prost::Message as _;
use proto::publisher_client::PublisherClient;
use serde::Serialize;
use tokio::task::JoinSet;
use tonic::Request;
use tonic::transport::Channel;
use walrelay_core::{Message, Topic};
use walrelay_pubsub::{Endpoint, GrpcPublisher, PublisherConfig};
use walrelay_testkit::process::clean_command;

use crate::failure::Failure;
use crate::process::{Measured, Output, Process, Usage};
use crate::raw_codec::RawCodec;
use crate::sink::{Keeping, Sink, SinkOptions, TOPIC};
use crate::terminal;

/// The number of concurrent streams that Google allows on one connection.
const STREAMS_PER_CONNECTION: u32 = 100;

/// Which client publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Client {
    /// A tonic channel and the generated types.
    Tonic,
    /// A tonic channel and requests encoded beforehand: what the transport costs alone.
    Raw,
    /// The relay's own client.
    Own,
    /// `google_cloud_pubsub::client::Publisher`, as it comes.
    Official,
}

/// What is published, and how.
#[derive(Debug, Clone, Copy, Args, Serialize)]
pub struct PublishOptions {
    #[arg(long, value_enum)]
    pub(crate) client: Client,
    /// Messages in all.
    #[arg(long)]
    pub(crate) messages: u32,
    /// Messages of one ordering key that follow each other, and for a bare client go out together.
    #[arg(long)]
    pub(crate) batch: u32,
    /// Requests (for the official publisher: messages) out at once.
    #[arg(long)]
    pub(crate) outstanding: u32,
    /// Over how many keys the messages are spread; 0 means that every batch has its own.
    #[arg(long)]
    pub(crate) keys: u32,
    /// Threads of the client's runtime.
    #[arg(long)]
    pub(crate) threads: u32,
    #[arg(long)]
    pub(crate) payload_bytes: u32,
    /// Where the sink is.
    #[arg(long, value_name = "PORT")]
    #[serde(skip)]
    pub(crate) port: u16,
}

/// A publisher and the kind of sink that it runs against.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Publishing {
    pub(crate) name: &'static str,
    pub(crate) options: PublishOptions,
    pub(crate) keeping: Keeping,
}

/// A publisher's result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Published {
    #[serde(flatten)]
    pub(crate) publishing: Publishing,
    pub(crate) rounds: Vec<PublishRound>,
}

/// One run of the publisher, with the resources that the sink used for that run.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct PublishRound {
    #[serde(flatten)]
    pub(crate) measured: Measured,
    pub(crate) sink: Usage,
}

/// Starts the client in its own process and measures that process from outside.
pub(crate) async fn measure(publishing: Publishing) -> Result<PublishRound, Failure> {
    let Publishing { options, keeping, .. } = publishing;
    let mut sink = Sink::start(SinkOptions { keeping, ..SinkOptions::default() }).await?;
    let port = sink.address().rsplit(':').next().unwrap_or_default().to_owned();
    let client = options.client.to_possible_value().ok_or("every client has a name")?;
    let mut command = clean_command(std::env::current_exe()?);
    command.arg("publish").args(["--client", client.get_name(), "--port", &port]);
    for (name, value) in [
        ("--messages", options.messages),
        ("--batch", options.batch),
        ("--outstanding", options.outstanding),
        ("--keys", options.keys),
        ("--threads", options.threads),
        ("--payload-bytes", options.payload_bytes),
    ] {
        command.arg(name).arg(value.to_string());
    }
    let mut process = Process::start("the publisher", command, Output::Lines)?;
    let seconds: f64 = process.read_line()?.parse()?;
    let elapsed = Duration::from_secs_f64(seconds);
    let measured = Measured::new(options.messages, elapsed, process.usage()?);
    let stored = sink.counts().await?.messages_stored;
    // A bare client's last request is as large as all others, so more than `messages` may be
    // stored.
    if stored < u64::from(options.messages) {
        return Err(format!("{stored} of {} messages were stored", options.messages).into());
    }
    Ok(PublishRound { measured, sink: sink.usage()? })
}

/// Publishes, prints the elapsed seconds, and waits until standard input closes. The parent reads
/// this process's resource usage before it closes standard input.
pub fn execute(options: &PublishOptions) -> Result<(), Failure> {
    let threads = usize::try_from(options.threads)?;
    let runtime = match threads {
        1 => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
        _ => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads).enable_all().build()?
        }
    };
    let elapsed = runtime.block_on(async {
        match options.client {
            Client::Tonic | Client::Raw => over_channels(*options).await,
            Client::Own => own(*options).await,
            Client::Official => official(*options).await,
        }
    })?;
    terminal::say(&elapsed.as_secs_f64().to_string());
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
    Ok(())
}

impl PublishOptions {
    fn requests(&self) -> u32 {
        self.messages.div_ceil(self.batch.max(1))
    }

    /// Returns the ordering key of a request.
    fn key(&self, request: u32) -> String {
        let key = if self.keys == 0 { request } else { request % self.keys };
        format!("order-{key}")
    }

    /// Returns attributes with the same names and lengths as those in the relay's messages.
    fn attributes(&self, request: u32) -> [(String, String); 9] {
        let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        [
            own("aggregate_id", &self.key(request)),
            own("aggregate_type", "bench"),
            own("commit_lsn", "16/B374D848"),
            own("event_id", &format!("3f0c7a52-9f0e-4a53-8f8b-{request:012x}")),
            own("event_type", "OrderPlaced"),
            own("occurred_at", "2026-11-21T02:43:58.123456Z"),
            own("schema_version", "1"),
            own("tx_index", "0"),
            own("version", &request.to_string()),
        ]
    }

    fn payload(&self) -> Bytes {
        vec![b'x'; usize::try_from(self.payload_bytes).unwrap_or_default()].into()
    }

    fn message(&self, request: u32, payload: &Bytes) -> proto::PubsubMessage {
        proto::PubsubMessage {
            data: payload.clone(),
            attributes: BTreeMap::from(self.attributes(request)),
            ordering_key: self.key(request),
            ..Default::default()
        }
    }

    fn request(&self, number: u32, payload: &Bytes) -> proto::PublishRequest {
        let messages = (0..self.batch).map(|_| self.message(number, payload)).collect();
        proto::PublishRequest { topic: TOPIC.to_owned(), messages }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// Publishes with workers that each send one request after the other.
async fn over_channels(options: PublishOptions) -> Result<Duration, Failure> {
    let mut channels = Vec::new();
    for _ in 0..options.outstanding.div_ceil(STREAMS_PER_CONNECTION) {
        let endpoint = Channel::from_shared(format!("http://{}", options.address()))?;
        channels.push(endpoint.tcp_nodelay(true).connect().await?);
    }
    let next = Arc::new(AtomicU32::new(0));
    let begin = Instant::now();
    let mut workers = JoinSet::new();
    for channel in channels.iter().cycle().take(usize::try_from(options.outstanding)?) {
        let requests = Requests { options, next: Arc::clone(&next) };
        match options.client {
            Client::Raw => workers.spawn(raw(requests, channel.clone())),
            Client::Tonic | Client::Own | Client::Official => {
                workers.spawn(tonic(requests, channel.clone()))
            }
        };
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(begin.elapsed())
}

/// An iterator over the request numbers that no worker has taken yet.
struct Requests {
    options: PublishOptions,
    next: Arc<AtomicU32>,
}

impl Iterator for Requests {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let request = self.next.fetch_add(1, Ordering::Relaxed);
        (request < self.options.requests()).then_some(request)
    }
}

/// Builds each request when it is sent.
async fn tonic(requests: Requests, channel: Channel) -> Result<(), Failure> {
    let mut client = PublisherClient::new(channel);
    let options = requests.options;
    let payload = options.payload();
    for number in requests {
        client.publish(options.request(number, &payload)).await?;
    }
    Ok(())
}

/// Encodes one request and sends the same bytes every time.
async fn raw(requests: Requests, channel: Channel) -> Result<(), Failure> {
    let mut client = tonic::client::Grpc::new(channel);
    let options = requests.options;
    let body: Bytes = options.request(0, &options.payload()).encode_to_vec().into();
    for _ in requests {
        client.ready().await?;
        let path = PathAndQuery::from_static("/google.pubsub.v1.Publisher/Publish");
        drop(client.unary(Request::new(body.clone()), path, RawCodec).await?);
    }
    Ok(())
}

/// Makes all calls in one task, as the relay does.
async fn own(options: PublishOptions) -> Result<Duration, Failure> {
    let config = PublisherConfig::new(Endpoint::emulator(&options.address())?);
    let publisher = GrpcPublisher::connect(&config)?;
    let topic: Topic = TOPIC.into();
    let payload = options.payload();
    let begin = Instant::now();
    let mut out = FuturesUnordered::new();
    for request in 0..options.requests() {
        let message = options.message(request, &payload).encode_to_vec();
        let position = Position { commit_lsn: Lsn::new(1), tx_index: request };
        let encoded = |_| Message::from_encoded(Arc::clone(&topic), position, "", &message);
        let messages = (0..options.batch).map(encoded).collect::<Result<Vec<_>, _>>()?;
        out.push(publisher.publish(&topic, messages.iter()));
        if out.len() >= usize::try_from(options.outstanding)?
            && let Some(stored) = out.next().await
        {
            stored?;
        }
    }
    while let Some(stored) = out.next().await {
        stored?;
    }
    Ok(begin.elapsed())
}

/// Passes every message to the publisher as Google's documentation shows. The publisher forms its
/// own batches.
async fn official(options: PublishOptions) -> Result<Duration, Failure> {
    walrelay_pubsub::install_crypto_provider();
    let publisher = Publisher::builder(TOPIC)
        .with_endpoint(format!("http://{}", options.address()))
        .with_credentials(anonymous::Builder::new().build())
        .build()
        .await?;
    let payload = options.payload();
    let begin = Instant::now();
    let mut out = FuturesUnordered::new();
    for number in 0..options.messages {
        let message = google_cloud_pubsub::model::Message::new()
            .set_data(payload.clone())
            .set_ordering_key(options.key(number))
            .set_attributes(options.attributes(number));
        out.push(publisher.publish(message));
        if out.len() >= usize::try_from(options.outstanding)?
            && let Some(stored) = out.next().await
        {
            stored?;
        }
    }
    while let Some(stored) = out.next().await {
        stored?;
    }
    Ok(begin.elapsed())
}
