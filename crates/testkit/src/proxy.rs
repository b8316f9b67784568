//! A TCP proxy that injects network faults on request: cuts, black holes, delays and throttling. It
//! also counts connections.
//!
//! ```text
//! client ──▶ 127.0.0.1:port (Proxy) ──▶ upstream
//! ```
//!
//! A fault applies at once, to existing and new connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

const CHUNK_BYTES: usize = 16 * 1024;

/// The state of the network between client and upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Network {
    /// All data passes.
    #[default]
    Fine,
    /// Connections stay open and are accepted, but no data passes, as with a lost route or a frozen
    /// peer. Data sent in this state arrives afterwards.
    BlackHole,
    /// All data passes after this delay, in both directions.
    Delayed(Duration),
    /// At most this many bytes per second pass, per connection and direction.
    Throttled {
        /// The limit, at least 1.
        bytes_per_second: u32,
    },
    /// New connections are closed at once. Existing connections stay.
    Refusing,
    /// A connection to Postgres passes this many answers to statements, the greeting included. It
    /// then stays open, and passes nothing from the server any more.
    SilentAfter { answers: usize },
}

/// A message with which Postgres ends each answer, without its last byte.
const READY_FOR_QUERY: &[u8] = b"Z\0\0\0\x05";

/// Counts the answers of Postgres that a connection has passed.
#[derive(Debug, Default)]
struct Answers(usize);

impl Answers {
    /// Returns the bytes of the chunk that pass until the limit is reached. None if it was reached
    /// before. A message that is split between two chunks is not counted.
    fn passing(&mut self, chunk: &[u8], limit: usize) -> Option<usize> {
        if self.0 >= limit {
            return None;
        }
        let width = READY_FOR_QUERY.len();
        let starts = 0..chunk.len().saturating_sub(width);
        let ends = starts.filter(|start| chunk[*start..].starts_with(READY_FOR_QUERY));
        let ends: Vec<usize> = ends.map(|start| start + width + 1).take(limit - self.0).collect();
        self.0 += ends.len();
        let last = ends.last().filter(|_| self.0 == limit);
        Some(last.copied().unwrap_or(chunk.len()))
    }
}

#[derive(Debug, Clone, Copy)]
struct Condition {
    network: Network,
    /// The number of cuts. A connection ends when the number is higher than at its start.
    cuts_count: u64,
}

#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicUsize,
    open: AtomicUsize,
}

/// A running proxy. Dropping the value ends its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    condition: watch::Sender<Condition>,
    counters: Arc<Counters>,
    _acceptor: JoinSet<()>,
}

impl Proxy {
    /// Starts a proxy on a random port in front of `upstream` (`127.0.0.1:5432`).
    pub async fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port for the proxy");
        let address = listener.local_addr().expect("the proxy's address");
        let (condition, seen) = watch::channel(Condition { network: Network::Fine, cuts_count: 0 });
        let counters = Arc::new(Counters::default());
        let mut acceptor = JoinSet::new();
        acceptor.spawn(accept(listener, upstream.to_owned(), seen, Arc::clone(&counters)));
        Self { address, condition, counters, _acceptor: acceptor }
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Ends every connection. New connections are accepted.
    pub fn cut(&self) {
        self.condition.send_modify(|condition| condition.cuts_count += 1);
    }

    /// Changes the network for all connections.
    pub fn set(&self, network: Network) {
        self.condition.send_modify(|condition| condition.network = network);
    }

    /// Returns the number of connections that clients have opened, those that were closed at once included.
    #[must_use]
    pub fn accepted_count(&self) -> usize {
        self.counters.accepted.load(Ordering::SeqCst)
    }

    #[must_use]
    pub fn open_count(&self) -> usize {
        self.counters.open.load(Ordering::SeqCst)
    }
}

async fn accept(
    listener: TcpListener,
    upstream: String,
    condition: watch::Receiver<Condition>,
    counters: Arc<Counters>,
) {
    // The set is dropped with this task, which ends the connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                counters.accepted.fetch_add(1, Ordering::SeqCst);
                if condition.borrow().network == Network::Refusing {
                    continue;
                }
                let open = Open::count(Arc::clone(&counters));
                connections.spawn(connect(client, upstream.clone(), condition.clone(), open));
            }
        }
    }
}

/// Counts a connection as open while this value lives, however the connection's task ends.
struct Open(Arc<Counters>);

impl Open {
    fn count(counters: Arc<Counters>) -> Self {
        counters.open.fetch_add(1, Ordering::SeqCst);
        Self(counters)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn connect(
    client: TcpStream,
    upstream: String,
    mut condition: watch::Receiver<Condition>,
    _open: Open,
) {
    let cuts_count = condition.borrow_and_update().cuts_count;
    let (forward_condition, backward_condition) = (condition.clone(), condition.clone());
    let both_ways = async {
        let server = TcpStream::connect(&upstream).await?;
        // Without `nodelay`, Nagle's algorithm would delay small packets.
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (client_read, client_write) = client.into_split();
        let (server_read, server_write) = server.into_split();
        let forward = pump(client_read, server_write, forward_condition, None);
        let answers = Some(Answers::default());
        let backward = pump(server_read, client_write, backward_condition, answers);
        tokio::try_join!(forward, backward).map(drop)
    };
    let cut = condition.wait_for(|now| now.cuts_count != cuts_count);
    tokio::select! {
        // An error is ignored: both sockets close here, and the peers notice.
        ended = both_ways => drop(ended),
        seen = cut => drop(seen),
    }
}

/// Copies one direction until its end, and passes the end on as a half-close.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut condition: watch::Receiver<Condition>,
    mut answers: Option<Answers>,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let limit = match condition.borrow().network {
            // One tenth of a second's data at a time.
            Network::Throttled { bytes_per_second } => {
                usize::try_from(bytes_per_second / 10).unwrap_or(CHUNK_BYTES).clamp(1, CHUNK_BYTES)
            }
            Network::Fine
            | Network::BlackHole
            | Network::Delayed(_)
            | Network::Refusing
            | Network::SilentAfter { .. } => CHUNK_BYTES,
        };
        let read = from.read(&mut chunk[..limit]).await?;
        let read_at = Instant::now();
        if read == 0 {
            return to.shutdown().await;
        }
        pass(read, read_at, &mut condition).await;
        let network = condition.borrow().network;
        let passing = match (&mut answers, network) {
            (Some(passed), Network::SilentAfter { answers }) => {
                passed.passing(&chunk[..read], answers).unwrap_or(0)
            }
            (Some(_) | None, _) => read,
        };
        to.write_all(&chunk[..passing]).await?;
    }
}

/// Waits until `bytes` read at `read_at` may pass under the current network.
async fn pass(bytes: usize, read_at: Instant, condition: &mut watch::Receiver<Condition>) {
    loop {
        let network = condition.borrow_and_update().network;
        let wait = async {
            match network {
                Network::Fine | Network::Refusing | Network::SilentAfter { .. } => {}
                Network::Delayed(delay) => sleep_until(read_at + delay).await,
                Network::BlackHole => std::future::pending().await,
                Network::Throttled { bytes_per_second } => {
                    let share = u32::try_from(bytes).unwrap_or(u32::MAX);
                    let second = Duration::from_secs(1);
                    sleep(second * share / bytes_per_second.max(1)).await;
                }
            }
        };
        tokio::select! {
            () = wait => return,
            // The proxy was dropped, so this task ends.
            changed = condition.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait_until;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Starts a server that echoes all data.
    async fn echo() -> (String, JoinSet<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(send_back(socket));
            }
        });
        (address, tasks)
    }

    async fn send_back(mut socket: TcpStream) {
        let (mut read, mut write) = socket.split();
        drop(tokio::io::copy(&mut read, &mut write).await);
    }

    async fn round_trip(socket: &mut TcpStream) -> io::Result<()> {
        socket.write_all(b"ping").await?;
        let mut reply = [0; 4];
        socket.read_exact(&mut reply).await?;
        assert_eq!(&reply, b"ping");
        Ok(())
    }

    #[tokio::test]
    async fn a_cut_ends_every_connection_and_lets_new_ones_in() {
        let (upstream, _server) = echo().await;
        let proxy = Proxy::start(&upstream).await;
        let mut socket = TcpStream::connect(proxy.address()).await.unwrap();
        round_trip(&mut socket).await.unwrap();
        assert_eq!((proxy.accepted_count(), proxy.open_count()), (1, 1));

        proxy.cut();

        round_trip(&mut socket).await.unwrap_err();
        wait_until(LIMIT, "the connection to end", async || {
            (proxy.open_count() == 0).then_some(())
        })
        .await;
        let mut again = TcpStream::connect(proxy.address()).await.unwrap();
        round_trip(&mut again).await.unwrap();
        assert_eq!(proxy.accepted_count(), 2);
    }

    #[tokio::test]
    async fn a_black_hole_delays_all_data_and_loses_none() {
        let (upstream, _server) = echo().await;
        let proxy = Proxy::start(&upstream).await;
        let mut socket = TcpStream::connect(proxy.address()).await.unwrap();
        round_trip(&mut socket).await.unwrap();

        proxy.set(Network::BlackHole);
        let held = tokio::time::timeout(Duration::from_millis(200), round_trip(&mut socket)).await;
        assert!(held.is_err(), "something came through the black hole");

        proxy.set(Network::Fine);
        let mut late = [0; 4];
        socket.read_exact(&mut late).await.unwrap();
        assert_eq!(&late, b"ping");
    }

    #[tokio::test]
    async fn a_delay_and_a_throttle_make_a_round_trip_slower() {
        let (upstream, _server) = echo().await;
        let proxy = Proxy::start(&upstream).await;
        let mut socket = TcpStream::connect(proxy.address()).await.unwrap();

        proxy.set(Network::Delayed(Duration::from_millis(50)));
        let started = Instant::now();
        round_trip(&mut socket).await.unwrap();
        assert!(started.elapsed() >= Duration::from_millis(100), "{:?}", started.elapsed());

        // Four bytes in each direction at 40 bytes per second.
        proxy.set(Network::Throttled { bytes_per_second: 40 });
        let throttled = Instant::now();
        round_trip(&mut socket).await.unwrap();
        assert!(throttled.elapsed() >= Duration::from_millis(100), "{:?}", throttled.elapsed());
    }

    #[tokio::test]
    async fn a_refusing_network_closes_new_connections_and_keeps_old_ones() {
        let (upstream, _server) = echo().await;
        let proxy = Proxy::start(&upstream).await;
        let mut old = TcpStream::connect(proxy.address()).await.unwrap();
        round_trip(&mut old).await.unwrap();

        proxy.set(Network::Refusing);

        let mut new = TcpStream::connect(proxy.address()).await.unwrap();
        round_trip(&mut new).await.unwrap_err();
        round_trip(&mut old).await.unwrap();
    }
}
