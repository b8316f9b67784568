//! Connects to Postgres from a connection string, for SQL and for replication.
//!
//! Owns name lookup, the order of attempts, TLS negotiation and the time budget. Every attempt
//! looks names up again, because a managed database moves. Every address of every host gets an
//! equal share of the remaining `connect_timeout`. An address that drops packets therefore does not
//! use up the time of the next addresses.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, SimpleQueryMessage, tls};

use walrelay_errors::Chain;

use crate::answer_watch::{AnswerWatch, WatchedStream};
use crate::conninfo::{
    ChannelBinding, ConnectConfig, Encryption, Endpoint, Liveness, Negotiation, Security,
    TargetSession,
};
use crate::error::{PgError, TlsError, UNBOUND};
use crate::server_error::{ServerError, ServerErrorKind};
use crate::session_limits::SET_SESSION_LIMITS;
use crate::session_proof::{backend_of, is_announced, refuse_shared};
use crate::stream::Stream;
use crate::tls::{ALPN, client_config, server_name};
use crate::value_formats::value_formats_sql;

/// Longest time that [`SqlClient::close`] waits for the final message to be written.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// `SSLRequest`: length 8, code 1234.5679.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xD2, 0x16, 0x2F];

/// Opens a session for ordinary SQL, with a server process of its own and without the time limits of
/// the role. See [`SESSION_LIMITS`](crate::SESSION_LIMITS).
///
/// # Errors
///
/// No address answers, TLS or authentication fails, or no listed server is of the requested kind. A
/// server's answer is returned in preference to a network error. A pooler shares the session's
/// process between clients. Nothing was set then.
pub async fn connect_sql(config: &ConnectConfig) -> Result<SqlClient, PgError> {
    let mut client = connect_unwatched(config).await?;
    let setting_up = async {
        if !is_announced(&client, client.pid).await {
            refuse_pooler(&client, config).await?;
        }
        client.batch_execute(&SET_SESSION_LIMITS).await.map_err(PgError::from)
    };
    match timeout(config.connect_timeout, setting_up).await {
        Ok(done) => done?,
        Err(_) => {
            let address = "the server, after authentication,".to_owned();
            return Err(PgError::ConnectTimeout { address, limit: config.connect_timeout });
        }
    }
    let pid = client.pid;
    client.watch_answers(config, Some(pid));
    Ok(client)
}

/// Refuses a connection whose server process may serve other clients.
async fn refuse_pooler(client: &SqlClient, config: &ConnectConfig) -> Result<(), PgError> {
    let other = match connect_unwatched(config).await {
        Ok(other) => Some(other),
        // The server may allow no other connection.
        Err(error) if error.server().is_some() => None,
        Err(error) => return Err(error),
    };
    refuse_shared(client, client.pid, other.as_deref()).await?;
    if let Some(other) = other {
        other.close().await;
    }
    Ok(())
}

/// Returns whether the server process works on a statement, or hides its state. Without a process,
/// the server may work as long as it answers.
async fn is_working(config: ConnectConfig, pid: Option<i32>) -> Result<bool, PgError> {
    let client = connect_unwatched(&config).await?;
    let Some(pid) = pid else { return Ok(true) };
    let sql = sql!("blockers.sql", "is_working");
    let row = client.query_typed_opt(sql, &[(&pid, Type::INT4)]).await?;
    client.close().await;
    Ok(row.is_some_and(|row| row.get(0)))
}

/// Connects for single transactions, also through a pooler that shares server processes between
/// clients. Nothing is set, and no statement may rely on one before it.
///
/// # Errors
///
/// As [`connect_sql`], except for poolers.
pub async fn connect_shared(config: &ConnectConfig) -> Result<SqlClient, PgError> {
    let mut client = connect_unwatched(config).await?;
    // Behind a pooler, the next statement may have another process.
    let pid = is_announced(&client, client.pid).await.then_some(client.pid);
    client.watch_answers(config, pid);
    Ok(client)
}

/// Connects, and waits for the first answer to a statement. A proxy may accept a connection, and
/// fall silent afterwards.
pub(crate) async fn connect_unwatched(config: &ConnectConfig) -> Result<SqlClient, PgError> {
    open_session(config, &SqlStartup).await
}

/// Connects for SQL that reads rows of an outbox. Values have the same text as in the replication
/// stream, so that they can be compared with event ids and keys on record.
pub async fn connect_outbox(config: &ConnectConfig) -> Result<SqlClient, PgError> {
    let client = connect_sql(config).await?;
    client.batch_execute(&value_formats_sql()).await?;
    Ok(client)
}

/// A parameter of a statement with its type, so that the statement need not be prepared.
pub type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A client for ordinary SQL, with the task that drives its socket. Dropping the client ends the
/// task.
#[derive(Debug)]
pub struct SqlClient {
    client: Client,
    connection: JoinSet<()>,
    notified: Arc<Notify>,
    watch: AnswerWatch,
    /// Ends the task that drives the socket.
    end: Arc<Notify>,
    /// The server process that gave the first answer.
    pid: i32,
}

impl SqlClient {
    /// Ends the connection once an answer of its server process is lost, or of any process if none is
    /// known.
    fn watch_answers(&mut self, config: &ConnectConfig, pid: Option<i32>) {
        let (watch, config) = (self.watch.clone(), config.clone());
        let end = Arc::clone(&self.end);
        self.connection.spawn(async move {
            watch.lost(|| is_working(config.clone(), pid)).await;
            tracing::warn!(
                pid,
                "the server's answer to a statement is lost; the connection is closed"
            );
            end.notify_one();
        });
    }

    /// Waits for a `NOTIFY` on a channel that this session listens to. A notification that arrived
    /// since the last call ends the wait at once. Several notifications count as one.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn notified(&self) {
        self.notified.notified().await;
    }

    /// Sends Terminate, so that the server does not log a lost connection.
    pub async fn close(self) {
        let Self { client, mut connection, .. } = self;
        drop(client);
        // After the timeout, dropping the task closes the socket.
        timeout(CLOSE_TIMEOUT, connection.join_next()).await.ok();
    }
}

impl Deref for SqlClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for SqlClient {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

/// The startup that turns a new stream into a session.
pub trait SessionStartup: Sync {
    /// The type of the session.
    type Session: Send;

    /// Starts a session and checks that the server is of the requested kind.
    fn greet(
        &self,
        stream: Stream,
        config: &ConnectConfig,
        endpoint: &Endpoint,
    ) -> impl Future<Output = Result<Self::Session, PgError>> + Send;
}

/// Tries every address until one session is established.
pub async fn open_session<G: SessionStartup>(
    config: &ConnectConfig,
    greeting: &G,
) -> Result<G::Session, PgError> {
    let endpoints = config.endpoints_now().await?;
    let deadline = Instant::now() + config.connect_timeout;
    let mut failures = Vec::new();
    let mut targets = Vec::new();
    for endpoint in &endpoints {
        match timeout(deadline - Instant::now(), look_up(endpoint)).await {
            Ok(Ok(addresses)) => {
                targets.extend(addresses.into_iter().map(|address| (endpoint, address)));
            }
            Ok(Err(failure)) => failures.push(failure),
            Err(_) => failures.push(PgError::ConnectTimeout {
                address: format!("the resolver, asked for {}", endpoint.host),
                limit: config.connect_timeout,
            }),
        }
    }
    let count = targets.len();
    for (index, (endpoint, address)) in targets.into_iter().enumerate() {
        let left = u32::try_from(count - index).unwrap_or(u32::MAX);
        let share = deadline.saturating_duration_since(Instant::now()) / left;
        let attempt = Attempt { config, endpoint, address: &address };
        match timeout(share, attempt.establish(greeting)).await {
            Ok(Ok(session)) => return Ok(session),
            Ok(Err(failure)) => failures.push(failure),
            Err(_) => {
                let tried = attempt.to_string();
                failures.push(PgError::ConnectTimeout { address: tried, limit: share });
            }
        }
    }
    Err(summary(failures))
}

/// Returns the most useful failure: a server's answer before a network error.
fn summary(mut failures: Vec<PgError>) -> PgError {
    let answered = |failure: &PgError| {
        !matches!(
            failure,
            PgError::Resolve { .. } | PgError::Connect { .. } | PgError::ConnectTimeout { .. }
        )
    };
    match failures.iter().position(answered) {
        Some(index) => failures.swap_remove(index),
        None if failures.len() == 1 => failures.swap_remove(0),
        None => PgError::Unreachable { failures },
    }
}

enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

async fn look_up(endpoint: &Endpoint) -> Result<Vec<Address>, PgError> {
    if let Some(directory) = endpoint.socket_dir() {
        return Ok(vec![Address::Unix(socket_path(directory, endpoint.port))]);
    }
    if let Some(address) = endpoint.address {
        return Ok(vec![Address::Tcp(SocketAddr::new(address, endpoint.port))]);
    }
    tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port))
        .await
        .map(|addresses| addresses.map(Address::Tcp).collect())
        .map_err(|source| PgError::Resolve { host: endpoint.host.clone(), source })
}

fn socket_path(directory: &Path, port: u16) -> PathBuf {
    directory.join(format!(".s.PGSQL.{port}"))
}

/// Makes the operating system end a connection whose peer has vanished, while we wait or write.
fn detect_dead_peer(stream: &TcpStream, liveness: &Liveness) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    if let Some(keepalive) = &liveness.keepalive {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(liveness.unacknowledged)?;
    Ok(())
}

struct Attempt<'a> {
    config: &'a ConnectConfig,
    endpoint: &'a Endpoint,
    address: &'a Address,
}

impl std::fmt::Display for Attempt<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.address {
            Address::Tcp(address) => write!(f, "{} ({address})", self.endpoint),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Attempt<'_> {
    async fn establish<G: SessionStartup>(&self, greeting: &G) -> Result<G::Session, PgError> {
        let security = &self.config.security;
        let stream = self.open(security).await?;
        let is_encrypted = stream.is_encrypted();
        let failure = match greeting.greet(stream, self.config, self.endpoint).await {
            Ok(session) => return Ok(session),
            Err(failure) => failure,
        };
        // Like libpq, "prefer" tries plain text when `pg_hba.conf` refuses the encrypted
        // connection.
        let refused =
            failure.server().is_some_and(|answer| answer.kind() == ServerErrorKind::Authentication);
        if !(is_encrypted && refused && security.encryption == Encryption::Prefer) {
            return Err(failure);
        }
        let plain = Security { encryption: Encryption::Disable, ..security.clone() };
        let plain = self.open(&plain).await?;
        // If both fail, return the answer about the encrypted connection, which the user asked for.
        greeting.greet(plain, self.config, self.endpoint).await.map_err(|_| failure)
    }

    /// Opens a stream, encrypted as `security` says.
    async fn open(&self, security: &Security) -> Result<Stream, PgError> {
        let failed = |source| PgError::Connect { address: self.to_string(), source };
        let gated = |stream: Stream| stream.with_methods(security.methods.as_ref());
        let address = match self.address {
            Address::Unix(path) => {
                let unix = UnixStream::connect(path).await.map_err(failed)?;
                return Ok(gated(Stream::plain(unix)));
            }
            Address::Tcp(address) => address,
        };
        let connect = async || {
            let tcp = TcpStream::connect(address).await.map_err(failed)?;
            detect_dead_peer(&tcp, &self.config.liveness).map_err(failed)?;
            Ok::<_, PgError>(tcp)
        };
        match (self.encrypt(connect().await?, security).await, &security.encryption) {
            (Ok(stream), _) => Ok(gated(stream)),
            (Err(source), Encryption::Prefer) => {
                if !matches!(source, TlsError::NotOffered) {
                    let error = Chain(&source);
                    tracing::warn!(%error, "sslmode=prefer continues in plain text, because TLS failed");
                }
                Ok(gated(Stream::plain(connect().await?)))
            }
            (Err(source), _) => Err(PgError::Tls { host: self.endpoint.host.clone(), source }),
        }
    }

    async fn encrypt(
        &self,
        mut stream: TcpStream,
        security: &Security,
    ) -> Result<Stream, TlsError> {
        let Some(config) = client_config(security)? else { return Ok(Stream::plain(stream)) };
        let is_direct = security.negotiation == Negotiation::Direct;
        if !is_direct {
            stream.write_all(&SSL_REQUEST).await.map_err(TlsError::Handshake)?;
            match stream.read_u8().await.map_err(TlsError::Handshake)? {
                b'S' => {}
                b'N' if security.encryption == Encryption::Prefer => {
                    return Ok(Stream::plain(stream));
                }
                b'N' => return Err(TlsError::NotOffered),
                other => return Err(TlsError::Unexpected(other)),
            }
        }
        let name = server_name(&security.encryption, &self.endpoint.host)?;
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&config));
        let stream = connector.connect(name, stream).await.map_err(TlsError::Handshake)?;
        match is_direct && stream.get_ref().1.alpn_protocol() != Some(ALPN) {
            true => Err(TlsError::NotPostgres),
            false => Ok(Stream::encrypted(stream)),
        }
    }
}

/// What [`TargetSession`] asks of a server, as a query and its answer. `None`: anything will do.
#[derive(Debug, Clone, Copy)]
pub struct SessionCheck {
    /// The query.
    pub sql: &'static str,
    /// The answer of a server that will do.
    pub answer: &'static str,
    /// The kind of server that was asked for.
    pub wanted: &'static str,
}

impl TargetSession {
    /// The query that checks the server. None if any server will do.
    #[must_use]
    pub fn question(self) -> Option<SessionCheck> {
        let (sql, answer, wanted) = match self {
            Self::Any => return None,
            Self::ReadWrite => ("SHOW transaction_read_only", "off", "read-write"),
            Self::ReadOnly => ("SHOW transaction_read_only", "on", "read-only"),
            Self::Primary => ("SELECT pg_catalog.pg_is_in_recovery()", "f", "a primary"),
            Self::Standby => ("SELECT pg_catalog.pg_is_in_recovery()", "t", "a standby"),
        };
        Some(SessionCheck { sql, answer, wanted })
    }
}

struct SqlStartup;

impl SessionStartup for SqlStartup {
    type Session = SqlClient;

    async fn greet(
        &self,
        stream: Stream,
        config: &ConnectConfig,
        endpoint: &Endpoint,
    ) -> Result<SqlClient, PgError> {
        let mut client_config = tokio_postgres::Config::new();
        client_config
            .user(&config.user)
            .dbname(&config.database)
            .application_name(&config.application_name)
            .channel_binding(match config.security.channel_binding {
                ChannelBinding::Disable => tokio_postgres::config::ChannelBinding::Disable,
                ChannelBinding::Prefer => tokio_postgres::config::ChannelBinding::Prefer,
                ChannelBinding::Require => tokio_postgres::config::ChannelBinding::Require,
            })
            // The stream is already encrypted if TLS is wanted, so there is nothing to ask for.
            .ssl_negotiation(tokio_postgres::config::SslNegotiation::Direct)
            .ssl_mode(match stream.is_encrypted() {
                true => tokio_postgres::config::SslMode::Require,
                false => tokio_postgres::config::SslMode::Disable,
            });
        if let Some(password) = &endpoint.password {
            client_config.password(password.reveal());
        }
        if let Some(options) = &config.options {
            client_config.options(options);
        }
        let (stream, watch) = AnswerWatch::over(stream);
        let (client, connection) = client_config
            .connect_raw(stream, AlreadyEncrypted)
            .await
            .map_err(|error| failed_startup(error, endpoint))?;
        let mut tasks = JoinSet::new();
        let (notified, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        tasks.spawn(drive(connection, Arc::clone(&notified), Arc::clone(&end)));
        let pid = backend_of(&client).await?;
        let client = SqlClient { client, connection: tasks, notified, watch, end, pid };
        if let Some(question) = config.session.question() {
            let rows = client.simple_query(question.sql).await?;
            let is_wanted = rows.iter().any(|message| {
                matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some(question.answer))
            });
            if !is_wanted {
                return Err(PgError::WrongSession { wanted: question.wanted });
            }
        }
        Ok(client)
    }
}

/// Converts a failed startup. The SQL client reports a missing password and a missing channel binding
/// as errors that only their texts identify.
fn failed_startup(error: tokio_postgres::Error, endpoint: &Endpoint) -> PgError {
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    if endpoint.password.is_none() && cause.contains("password missing") {
        return PgError::PasswordMissing;
    }
    if cause.contains("did not use channel binding") {
        let method = "unbound".to_owned();
        return PgError::AuthenticationMethod { method, why: UNBOUND };
    }
    PgError::from(error).or_pooler()
}

/// Passes on a stream over TLS as it is.
struct AlreadyEncrypted;

impl tls::TlsConnect<WatchedStream> for AlreadyEncrypted {
    type Stream = WatchedStream;
    type Error = Infallible;
    type Future = Ready<Result<WatchedStream, Infallible>>;

    fn connect(self, stream: WatchedStream) -> Self::Future {
        ready(Ok(stream))
    }
}

impl tls::TlsStream for WatchedStream {
    fn channel_binding(&self) -> tls::ChannelBinding {
        let end_point = self.stream().server_end_point();
        end_point.map_or_else(tls::ChannelBinding::none, |data| {
            tls::ChannelBinding::tls_server_end_point(data.to_vec())
        })
    }
}

/// Drives the socket of a client until the client is dropped, the connection ends, or `end` is
/// notified.
async fn drive(
    mut connection: Connection<WatchedStream, WatchedStream>,
    notified: Arc<Notify>,
    end: Arc<Notify>,
) {
    loop {
        let message = tokio::select! {
            biased;
            () = end.notified() => return,
            message = std::future::poll_fn(|cx| connection.poll_message(cx)) => message,
        };
        match message {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                tracing::debug!(
                    severity = notice.severity(),
                    code = notice.code().code(),
                    text = notice.message(),
                    "notice of the server"
                );
            }
            Some(Ok(AsyncMessage::Notification(_))) => notified.notify_one(),
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                // Between two statements nobody else sees the reason. The next call of the client
                // only reports a closed connection.
                if let Some(reason) = error.as_db_error() {
                    let reason = ServerError::from(reason);
                    tracing::warn!(error = %reason, "the server ended a connection");
                }
                return;
            }
            None => return,
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_statement_to_a_server_that_has_vanished_fails_within_half_a_minute() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        detect_dead_peer(&stream, &Liveness::default()).unwrap();
        let socket = SockRef::from(&stream);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(30)));
        assert!(socket.keepalive().unwrap());
        let probed = socket.tcp_keepalive_time().unwrap()
            + socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        assert_eq!(probed, Duration::from_secs(30));
    }
}
