//! The embedded Pub/Sub in its own process, as the sink of every workload.

use std::io::Read as _;
use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use walrelay_emulator::{Effect, Emulator, Fault, Log, Options, SubscriptionOptions, Tls};
use walrelay_testkit::metadata::MetadataServer;
use walrelay_testkit::process::clean_command;
use walrelay_testkit::tls::{CERTIFICATE, CERTIFICATE_FILE, KEY};

use crate::failure::Failure;
use crate::process::{Output, Process, Usage};
use crate::terminal;

/// The topic that the rows of every workload are routed to.
pub const TOPIC: &str = "projects/bench/topics/bench.events";

/// The topic for rows that are published again.
pub const AGAIN: &str = "projects/bench/topics/bench.again";

pub const SUBSCRIPTION: &str = "projects/bench/subscriptions/bench";

/// How the sink behaves.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct SinkOptions {
    /// Every reply comes this much later.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    pub delay_millis: u64,
    #[arg(long, value_enum, default_value_t)]
    pub keeping: Keeping,
    /// Over TLS, as production is.
    #[arg(long)]
    pub tls: bool,
}

/// What becomes of a message beside being counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keeping {
    #[default]
    Nothing,
    /// Kept, to be read afterwards.
    Log,
    /// Stored for a subscriber.
    Subscription,
}

/// Serves until standard input closes. Standard input also closes when the suite is killed.
pub fn execute(options: SinkOptions) -> Result<(), Failure> {
    std::thread::spawn(|| {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::abort();
    });
    let log = if options.keeping == Keeping::Log { Log::Keep } else { Log::Off };
    let emulator = Emulator::new(Options { log, ..Options::default() });
    emulator.create_topic(TOPIC)?;
    emulator.create_topic(AGAIN)?;
    if options.keeping == Keeping::Subscription {
        emulator.create_subscription(SUBSCRIPTION, TOPIC, SubscriptionOptions::default())?;
    }
    if options.delay_millis > 0 {
        let delay = Duration::from_millis(options.delay_millis);
        emulator.set_fault(Fault::all(Effect::Delay(delay)));
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let grpc = TcpListener::bind("127.0.0.1:0").await?;
        let control = TcpListener::bind("127.0.0.1:0").await?;
        terminal::say(&format!("{} {}", grpc.local_addr()?, control.local_addr()?));
        let controlled = emulator.serve_control(control, std::future::pending());
        let serving = async {
            match options.tls {
                true => {
                    let tls = Tls::from_pem(CERTIFICATE, KEY)?;
                    emulator.serve_tls(grpc, &tls, std::future::pending()).await;
                }
                false => emulator.serve(grpc, std::future::pending()).await,
            }
            Ok(())
        };
        tokio::try_join!(serving, controlled)?;
        Ok(())
    })
}

/// The sink's counters.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Counts {
    pub publish_requests: u64,
    pub messages_stored: u64,
    pub in_flight_per_key_max: u64,
    pub messages_delivered: u64,
    /// The memory of all messages. 0 once every message is acknowledged.
    pub stored_bytes: u64,
}

/// One kept message.
#[derive(Debug, Deserialize)]
pub struct Stored {
    pub id: String,
    pub attributes: std::collections::BTreeMap<String, String>,
    #[serde(rename = "publish_time_unix_seconds")]
    pub published_at: f64,
    /// The payload, when it is text.
    pub data: Option<String>,
}

/// A running sink.
#[derive(Debug)]
pub struct Sink {
    process: Process,
    address: SocketAddr,
    /// The metadata server that issues the relay's token, when TLS is on.
    metadata: Option<MetadataServer>,
    /// A persistent connection, because the counts are requested every few milliseconds.
    control: BufReader<TcpStream>,
}

impl Sink {
    pub async fn start(options: SinkOptions) -> Result<Self, Failure> {
        let mut command = clean_command(std::env::current_exe()?);
        command.arg("sink").arg(format!("--delay-millis={}", options.delay_millis));
        let keeping =
            options.keeping.to_possible_value().ok_or("every way of keeping has a name")?;
        command.args(["--keeping", keeping.get_name()]);
        let mut metadata = None;
        if options.tls {
            command.arg("--tls");
            metadata = Some(MetadataServer::start().await?);
        }
        let mut process = Process::start("the sink", command, Output::Lines)?;
        let line = process.read_line()?;
        let (grpc, control) = line.split_once(' ').ok_or("the sink printed no addresses")?;
        let control = BufReader::new(TcpStream::connect(control).await?);
        Ok(Self { process, address: grpc.parse()?, metadata, control })
    }

    /// Returns the environment variables that point the relay to this sink.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let Some(metadata) = &self.metadata else {
            return vec![("PUBSUB_EMULATOR_HOST", self.address())];
        };
        let endpoint = format!("https://localhost:{}", self.address.port());
        vec![
            ("WALRELAY_ENDPOINT", endpoint),
            ("WALRELAY_PUBSUB_CA", CERTIFICATE_FILE.to_owned()),
            ("GCE_METADATA_HOST", metadata.address()),
        ]
    }

    /// Returns the address in the format of `PUBSUB_EMULATOR_HOST`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    pub fn usage(&mut self) -> Result<Usage, Failure> {
        self.process.usage()
    }

    pub async fn counts(&mut self) -> Result<Counts, Failure> {
        Ok(serde_json::from_slice(&self.get("/stats").await?)?)
    }

    /// Makes the sink refuse every message.
    pub async fn refuse_all(&mut self) -> Result<(), Failure> {
        self.set_fault("reject=UNAVAILABLE").await
    }

    /// Sets a fault in the emulator's notation.
    pub async fn set_fault(&mut self, fault: &str) -> Result<(), Failure> {
        self.request("POST", "/faults", fault).await.map(drop)
    }

    /// Makes the sink accept messages again.
    pub async fn heal(&mut self) -> Result<(), Failure> {
        self.request("DELETE", "/faults", "").await.map(drop)
    }

    /// Returns all kept messages in the order in which they were stored.
    pub async fn published(&mut self) -> Result<Vec<Stored>, Failure> {
        let mut all: Vec<Stored> = Vec::new();
        loop {
            let after = all.last().map_or("0", |last| &last.id);
            let path = format!("/published?topic={TOPIC}&after={after}");
            let page: Vec<Stored> = serde_json::from_slice(&self.get(&path).await?)?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    async fn get(&mut self, path: &str) -> Result<Vec<u8>, Failure> {
        self.request("GET", path, "").await
    }

    /// Sends a request in the subset of HTTP/1.1 that the emulator's control port speaks.
    async fn request(&mut self, method: &str, path: &str, sent: &str) -> Result<Vec<u8>, Failure> {
        let sent_bytes = sent.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: sink\r\nContent-Length: {sent_bytes}\r\n\r\n{sent}"
        );
        self.control.write_all(request.as_bytes()).await?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.control.read_line(&mut line).await?;
            if line.trim().is_empty() {
                break;
            }
            if let Some((_, value)) = line.to_ascii_lowercase().split_once("content-length:") {
                length = value.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        self.control.read_exact(&mut body).await?;
        Ok(body)
    }
}
