//! A connection pooler in transaction mode that behaves like PgBouncer from 1.23 on.
//!
//! ```text
//! clients ──▶ 127.0.0.1:port (Pooler) ──▶ a few server connections
//!              replication=database  ──▶ a server connection of its own
//! ```
//!
//! Each transaction runs on some server connection, whose settings stay as the transaction left
//! them. Clients get a process id that no server process has. The server must trust its clients.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

const SSL_REQUEST: i32 = 80_877_103;
const GSS_REQUEST: i32 = 80_877_104;
const PROTOCOL_3: i32 = 196_608;

/// The server connection that a transaction gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandOut {
    /// The one that was released last, the default of PgBouncer.
    LastReleased,
    /// The one that has been idle for longest, `server_round_robin`.
    LongestIdle,
}

/// A running pooler. Dropping the value ends its connections.
#[derive(Debug)]
pub struct Pooler {
    address: SocketAddr,
    _acceptor: JoinSet<()>,
}

impl Pooler {
    /// Starts a pooler on a random port in front of `upstream` (`127.0.0.1:5432`), with at most
    /// `size` server connections for each role and database.
    pub async fn start(upstream: &str, size: usize, hand_out: HandOut) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port for the pooler");
        let address = listener.local_addr().expect("the pooler's address");
        let pools = Arc::new(Pools {
            upstream: upstream.to_owned(),
            size,
            hand_out,
            pools: Mutex::default(),
            pids: AtomicI32::new(1_000_000_000),
        });
        let mut acceptor = JoinSet::new();
        acceptor.spawn(accept(listener, pools));
        Self { address, _acceptor: acceptor }
    }

    /// Returns the port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

async fn accept(listener: TcpListener, pools: Arc<Pools>) {
    let mut clients = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let pools = Arc::clone(&pools);
        // A client that ends or breaks the protocol ends only itself.
        clients.spawn(async move { drop(serve(client, pools).await) });
    }
}

/// Role and database.
type PoolName = (String, String);

#[derive(Debug)]
struct Pools {
    upstream: String,
    size: usize,
    hand_out: HandOut,
    pools: Mutex<HashMap<PoolName, Arc<Pool>>>,
    /// The next process id for a client.
    pids: AtomicI32,
}

#[derive(Debug)]
struct Pool {
    idle: Mutex<Vec<Messages>>,
    room: Arc<Semaphore>,
}

/// A server connection that runs a transaction.
#[derive(Debug)]
struct Linked {
    server: Messages,
    /// Queries and synchronisations without an answer.
    unanswered: usize,
    _room: OwnedSemaphorePermit,
}

impl Pools {
    fn pool(&self, name: &PoolName) -> Arc<Pool> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let room = Arc::new(Semaphore::new(self.size));
            Arc::new(Pool { idle: Mutex::default(), room })
        };
        Arc::clone(pools.entry(name.clone()).or_insert_with(new))
    }

    async fn link(&self, pool: &Pool, name: &PoolName) -> io::Result<Linked> {
        let room = Arc::clone(&pool.room).acquire_owned().await.expect("the pool is open");
        let idle = {
            let mut idle = pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
            match (self.hand_out, idle.is_empty()) {
                (_, true) => None,
                (HandOut::LastReleased, false) => idle.pop(),
                // Not before the pool is full, as in PgBouncer.
                (HandOut::LongestIdle, false) => Some(idle.remove(0)),
            }
        };
        let server = match idle {
            Some(server) => server,
            None => self.open(name).await?.0,
        };
        Ok(Linked { server, unanswered: 0, _room: room })
    }

    /// Opens a server connection. Returns the parameters that the server announced also.
    async fn open(&self, (user, database): &PoolName) -> io::Result<(Messages, BytesMut)> {
        let mut body = BytesMut::new();
        body.put_i32(PROTOCOL_3);
        for text in ["user", user, "database", database] {
            body.put_slice(text.as_bytes());
            body.put_u8(0);
        }
        body.put_u8(0);
        let mut server = Messages::new(TcpStream::connect(&self.upstream).await?);
        server.stream.write_i32(i32::try_from(body.len() + 4).expect("a short message")).await?;
        server.stream.write_all(&body).await?;
        let mut parameters = BytesMut::new();
        loop {
            let message = server.next().await?;
            match message[0] {
                b'R' if message[5..9] == [0; 4] => {}
                b'S' => parameters.extend_from_slice(&message),
                b'K' | b'N' => {}
                b'Z' => return Ok((server, parameters)),
                tag => {
                    let text = format!("the server answers with {:?}", char::from(tag));
                    return Err(io::Error::other(text));
                }
            }
        }
    }
}

impl Pool {
    fn release(&self, linked: Linked) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(linked.server);
    }
}

/// A connection that is read message by message.
#[derive(Debug)]
struct Messages {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Messages {
    fn new(stream: TcpStream) -> Self {
        Self { stream, buffer: BytesMut::new() }
    }

    /// Reads the next message with its tag. Dropping the future loses nothing.
    async fn next(&mut self) -> io::Result<Bytes> {
        loop {
            let length = self.buffer.get(1..5).map(|mut length| 1 + length.get_u32() as usize);
            if let Some(whole) = length.filter(|whole| self.buffer.len() >= *whole) {
                return Ok(self.buffer.split_to(whole).freeze());
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

async fn serve(mut client: TcpStream, pools: Arc<Pools>) -> io::Result<()> {
    let startup = loop {
        let length = client.read_i32().await?;
        let rest = usize::try_from(length - 4).map_err(io::Error::other)?;
        let mut body = vec![0; rest];
        client.read_exact(&mut body).await?;
        match body.get(..4).map(|mut code| code.get_i32()) {
            Some(SSL_REQUEST | GSS_REQUEST) => client.write_u8(b'N').await?,
            Some(PROTOCOL_3) => break body,
            Some(_) | None => return Ok(()),
        }
    };
    let parameters = parameters_of(&startup[4..]);
    if parameters.contains_key("replication") {
        let mut server = TcpStream::connect(&pools.upstream).await?;
        server.write_i32(i32::try_from(startup.len() + 4).map_err(io::Error::other)?).await?;
        server.write_all(&startup).await?;
        copy_bidirectional(&mut client, &mut server).await?;
        return Ok(());
    }
    let user = parameters.get("user").cloned().unwrap_or_default();
    let database = parameters.get("database").cloned().unwrap_or_else(|| user.clone());
    transactions(Messages::new(client), &pools, &(user, database)).await
}

fn parameters_of(startup: &[u8]) -> HashMap<String, String> {
    let texts = startup.split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text));
    let texts: Vec<_> = texts.map(std::borrow::Cow::into_owned).collect();
    texts.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

/// Serves one client until it leaves.
async fn transactions(mut client: Messages, pools: &Arc<Pools>, name: &PoolName) -> io::Result<()> {
    // Every client gets the parameters that a new server connection announces.
    let pool = pools.pool(name);
    let (greeter, parameters) = pools.open(name).await?;
    drop(greeter);
    let mut greeting = BytesMut::new();
    greeting.put_slice(b"R\0\0\0\x08\0\0\0\0");
    greeting.extend_from_slice(&parameters);
    greeting.put_slice(b"K\0\0\0\x0C");
    greeting.put_i32(pools.pids.fetch_add(1, Ordering::Relaxed));
    greeting.put_i32(7);
    greeting.put_slice(b"Z\0\0\0\x05I");
    client.stream.write_all(&greeting).await?;
    let mut linked: Option<Linked> = None;
    loop {
        let Some(link) = &mut linked else {
            let message = client.next().await?;
            if message[0] == b'X' {
                return Ok(());
            }
            let mut link = pools.link(&pool, name).await?;
            forward(&message, &mut link).await?;
            linked = Some(link);
            continue;
        };
        tokio::select! {
            message = client.next() => {
                let message = message?;
                if message[0] == b'X' {
                    return Ok(());
                }
                forward(&message, link).await?;
            }
            answer = link.server.next() => {
                let answer = answer?;
                client.stream.write_all(&answer).await?;
                if answer[0] == b'Z' {
                    link.unanswered -= 1;
                    if link.unanswered == 0 && answer[5] == b'I' {
                        linked.take().into_iter().for_each(|idle| pool.release(idle));
                    }
                }
            }
        }
    }
}

async fn forward(message: &[u8], link: &mut Linked) -> io::Result<()> {
    if matches!(message[0], b'Q' | b'S' | b'F') {
        link.unanswered += 1;
    }
    link.server.stream.write_all(message).await
}
