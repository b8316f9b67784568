//! The replication connection, from startup to streaming.
//!
//! ```text
//! stream ── handshake ──▶ ReplicationConnection ── start ──▶ (Frames, Feedback)
//!                          identify_system, simple_query
//! ```
//!
//! A walsender session takes walsender commands and the simple query protocol. Once started, it
//! streams both ways at the same time, which is why it is split in two. It runs over any duplex
//! stream, so a simulation can be the server.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "each place expects one or two of some thirty messages; every other one is an error"
)]

use std::time::Duration;

use bytes::BytesMut;
use pgoutput_parser::Lsn;
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::{backend, frontend};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::time::timeout;
use tokio_postgres::fallible_iterator::FallibleIterator as _;

use crate::feedback::Feedback;
use crate::frames::Frames;
use crate::receive_buffer::{LocatedMessage, ReceiveBuffer};
use crate::server_identity::{ServerIdentity, TIMELINE_AND_START};
use crate::stream_settings::StreamSettings;
use walrelay_pg_client::{
    ChannelBinding, ConnectConfig, Endpoint, PgError, SET_SESSION_LIMITS, Secret, ServerError,
    ServerErrorKind, SessionStartup, Stream, UNBOUND, UNSUPPORTED, open_session, startup_limits,
};

/// Maximum bytes of one query's answer on this connection. The queries are catalog lookups.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Maximum time of an answer that needs no waiting in the server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// CopyBothResponse, which the protocol library does not know.
const COPY_BOTH_RESPONSE: u8 = b'W';

/// The reading half over a network.
pub type NetworkFrames = Frames<ReadHalf<Stream>>;

pub type NetworkFeedback = Feedback<WriteHalf<Stream>>;

/// The content of the startup message, and the credentials for the server's authentication request.
#[derive(Debug, Clone, Default)]
pub struct Startup<'a> {
    pub user: &'a str,
    pub database: &'a str,
    pub application_name: &'a str,
    /// Password, for authentication methods that need one.
    pub password: Option<&'a Secret>,
    pub channel_binding: ChannelBinding,
    /// The data that binds an authentication to the TLS connection, if it can be bound.
    pub end_point: Option<Vec<u8>>,
    /// Command-line options for the server process, `-c name=value`.
    pub options: &'a str,
}

/// The answer to `IDENTIFY_SYSTEM`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemIdentity {
    /// System identifier, which the positions belong to. It differs after a restore into a new
    /// cluster.
    pub system_identifier: String,
    /// Timeline, which changes when a standby is promoted or a backup is recovered.
    pub timeline: u32,
    /// End of the WAL that is safely on disk.
    pub xlogpos: Lsn,
    pub database: String,
}

impl SystemIdentity {
    /// The identifier of rows from a table instead of the WAL. Their positions belong to no server.
    pub const NO_LOG: &str = "0";

    /// Returns the identity of the WAL for messages: system identifier and timeline. A promotion or
    /// a restore to a time begins a timeline, on which other rows may get positions that were used
    /// before.
    #[must_use]
    pub fn log(&self) -> Option<String> {
        let is_a_log = self.system_identifier != Self::NO_LOG;
        is_a_log.then(|| format!("{}/{}", self.system_identifier, self.timeline))
    }
}

/// An authenticated walsender session that does not stream yet.
#[derive(Debug)]
pub struct ReplicationConnection<S> {
    stream: S,
    incoming: ReceiveBuffer,
}

impl ReplicationConnection<Stream> {
    /// Connects with server settings for this session only, such as
    /// `("wal_sender_timeout", "15s")`, and without the time limits of the role.
    pub async fn connect(
        config: &ConnectConfig,
        settings: &[(&str, &str)],
    ) -> Result<Self, PgError> {
        let mut limits: Vec<(&str, &str)> = startup_limits().collect();
        limits.extend_from_slice(settings);
        let options = server_options(config.options(), &limits);
        open_session(config, &ReplicationStartup { options }).await
    }
}

struct ReplicationStartup {
    options: String,
}

impl SessionStartup for ReplicationStartup {
    type Session = ReplicationConnection<Stream>;

    async fn greet(
        &self,
        stream: Stream,
        config: &ConnectConfig,
        endpoint: &Endpoint,
    ) -> Result<Self::Session, PgError> {
        let startup = Startup {
            user: config.user(),
            database: config.database(),
            application_name: config.application_name(),
            password: endpoint.password.as_ref(),
            channel_binding: config.channel_binding(),
            end_point: stream.server_end_point().map(<[u8]>::to_vec),
            options: &self.options,
        };
        let mut connection =
            ReplicationConnection::handshake(stream, &startup).await.map_err(PgError::or_pooler)?;
        // Not in the startup options, because an unknown name there is a fatal error.
        connection.simple_query(&SET_SESSION_LIMITS).await?;
        if let Some(question) = config.target_session().question() {
            let rows = connection.simple_query(question.sql).await?;
            let answer = rows.first().and_then(|row| row.first()?.as_deref());
            if answer != Some(question.answer) {
                return Err(PgError::WrongSession { wanted: question.wanted });
            }
        }
        Ok(connection)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ReplicationConnection<S> {
    /// Performs startup and authentication over a connected stream.
    ///
    /// # Errors
    ///
    /// The server refuses the connection, asks for an unsupported method, or breaks the protocol.
    pub async fn handshake(stream: S, startup: &Startup<'_>) -> Result<Self, PgError> {
        let mut connection = Self { stream, incoming: ReceiveBuffer::new(ANSWER_BYTES_MAX) };
        let parameters = [
            ("user", startup.user),
            ("database", startup.database),
            ("replication", "database"),
            ("client_encoding", "UTF8"),
            ("application_name", startup.application_name),
            ("options", startup.options),
        ];
        let mut message = BytesMut::new();
        frontend::startup_message(parameters, &mut message).map_err(PgError::io("greet"))?;
        connection.send(&message).await?;
        connection.authenticate(startup).await?;
        loop {
            match connection.answer().await? {
                backend::Message::ReadyForQuery(_) => return Ok(connection),
                backend::Message::BackendKeyData(_) => {}
                other => return Err(unexpected("the end of the greeting", &other)),
            }
        }
    }

    /// Reads the cluster's identity, the database, and the end of the WAL.
    ///
    /// # Errors
    ///
    /// [`PgError::Pooler`] if the peer does not replicate. A pooler silently drops
    /// `replication=database`, and the first sign is a syntax error.
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, PgError> {
        let rows = match in_time(self.simple_query("IDENTIFY_SYSTEM")).await {
            Err(PgError::Server(error)) if error.kind() == ServerErrorKind::Syntax => {
                return Err(PgError::Pooler);
            }
            rows => rows?,
        };
        let mut fields = rows.into_iter().next().unwrap_or_default().into_iter();
        let mut field = |name: &str| {
            let missing = || PgError::protocol(format!("IDENTIFY_SYSTEM answers without {name}"));
            fields.next().flatten().ok_or_else(missing)
        };
        let system_identifier = field("systemid")?;
        let timeline = field("timeline")?;
        let xlogpos = field("xlogpos")?;
        let database = field("dbname")?;
        let number = |_| PgError::protocol(format!("{timeline:?} is no timeline"));
        let position = |error: pgoutput_parser::ParseLsnError| PgError::protocol(error.to_string());
        Ok(SystemIdentity {
            system_identifier,
            timeline: timeline.parse().map_err(number)?,
            xlogpos: xlogpos.parse().map_err(position)?,
            database,
        })
    }

    /// Reads the identity of the server, in its current history and start (I11).
    pub async fn server_identity(
        &mut self,
        system: &SystemIdentity,
    ) -> Result<ServerIdentity, PgError> {
        let rows = in_time(self.simple_query(&TIMELINE_AND_START)).await?;
        let mut fields = rows.into_iter().next().unwrap_or_default().into_iter();
        let mut field = || fields.next().flatten().unwrap_or_default();
        let (timeline, started_at) = (field(), field());
        ServerIdentity::new(Some(system.system_identifier.clone()), &timeline, started_at)
            .ok_or_else(|| ServerIdentity::malformed(&timeline))
    }

    /// Reads the session's `wal_sender_timeout`. `None` if it is off.
    pub async fn wal_sender_timeout(&mut self) -> Result<Option<Duration>, PgError> {
        // `pg_settings` returns plain milliseconds, but SHOW returns a number with a unit.
        let sql = "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'";
        let rows = in_time(self.simple_query(sql)).await?;
        let answer = rows.first().and_then(|row| row.first()?.as_deref()).unwrap_or_default();
        let no_number = |_| PgError::protocol(format!("wal_sender_timeout is {answer:?}"));
        let milliseconds: u64 = answer.parse().map_err(no_number)?;
        Ok((milliseconds > 0).then(|| Duration::from_millis(milliseconds)))
    }

    /// Runs a walsender command or SQL. Returns the rows of all results, each column as text.
    ///
    /// # Errors
    ///
    /// Returns the server's error, after which the connection stays usable. Any other error ends
    /// it.
    pub async fn simple_query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, PgError> {
        self.send_query(sql).await?;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let mut failure = None;
        loop {
            match self.answer().await {
                Ok(backend::Message::DataRow(row)) => {
                    bytes = answer_bytes(bytes, &row)?;
                    rows.push(row_of_text(&row)?);
                }
                Ok(backend::Message::ReadyForQuery(_)) => return failure.map_or(Ok(rows), Err),
                Ok(
                    backend::Message::RowDescription(_)
                    | backend::Message::CommandComplete(_)
                    | backend::Message::EmptyQueryResponse,
                ) => {}
                Ok(other) => return Err(unexpected("the answer to a query", &other)),
                // ReadyForQuery follows, unless the server ends the connection.
                Err(PgError::Server(error)) if error.severity == "ERROR" => {
                    failure = Some(PgError::Server(error));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts streaming and splits the connection. A `start` of [`Lsn::ZERO`] means the slot's
    /// position.
    ///
    /// # Errors
    ///
    /// The slot is active ([`ServerErrorKind::SlotActive`]), missing or invalidated. The connection
    /// is then lost.
    pub async fn start(
        mut self,
        slot: &str,
        publications: &[String],
        start: Lsn,
        settings: &StreamSettings,
    ) -> Result<(Frames<ReadHalf<S>>, Feedback<WriteHalf<S>>), PgError> {
        in_time(self.begin_copy(&start_replication(slot, publications, start))).await?;
        let Self { stream, mut incoming } = self;
        incoming.set_message_bytes_max(settings.frame_bytes_max);
        let (reader, writer) = tokio::io::split(stream);
        Ok((Frames::new(reader, incoming, settings), Feedback::new(writer, settings.clone())))
    }

    async fn begin_copy(&mut self, command: &str) -> Result<(), PgError> {
        self.send_query(command).await?;
        loop {
            let located = self.located().await?;
            if located.tag == COPY_BOTH_RESPONSE {
                return Ok(());
            }
            if let Some(other) = self.message(located)? {
                return Err(unexpected("the start of the stream", &other));
            }
        }
    }

    async fn authenticate(&mut self, startup: &Startup<'_>) -> Result<(), PgError> {
        let mut message = BytesMut::new();
        match self.answer().await? {
            backend::Message::AuthenticationSasl(body) => {
                self.authenticate_with_scram(&body, startup).await?;
            }
            other if startup.channel_binding == ChannelBinding::Require => {
                let method = method(&other)?;
                return Err(PgError::AuthenticationMethod { method, why: UNBOUND });
            }
            backend::Message::AuthenticationOk => return Ok(()),
            backend::Message::AuthenticationCleartextPassword => {
                let password = password(startup)?;
                frontend::password_message(password, &mut message).map_err(PgError::io("greet"))?;
            }
            backend::Message::AuthenticationMd5Password(body) => {
                let hash = md5_hash(startup.user.as_bytes(), password(startup)?, body.salt());
                let hash = hash.as_bytes();
                frontend::password_message(hash, &mut message).map_err(PgError::io("greet"))?;
            }
            other => {
                let method = method(&other)?;
                return Err(PgError::AuthenticationMethod { method, why: UNSUPPORTED });
            }
        }
        self.send(&message).await?;
        match self.answer().await? {
            backend::Message::AuthenticationOk => Ok(()),
            other => Err(unexpected("the result of authentication", &other)),
        }
    }

    async fn authenticate_with_scram(
        &mut self,
        offered: &backend::AuthenticationSaslBody,
        startup: &Startup<'_>,
    ) -> Result<(), PgError> {
        let password = password(startup)?;
        let malformed = PgError::io("read the authentication methods of the server");
        let methods: Vec<String> =
            offered.mechanisms().map(|name| Ok(name.to_owned())).collect().map_err(malformed)?;
        let (mechanism, binding) = scram_mechanism(&methods, startup)?;
        let mut scram = sasl::ScramSha256::new(password, binding);
        let mut message = BytesMut::new();
        frontend::sasl_initial_response(mechanism, scram.message(), &mut message)
            .map_err(PgError::io("greet"))?;
        self.send(&message).await?;
        let challenge = match self.answer().await? {
            backend::Message::AuthenticationSaslContinue(body) => body,
            other => return Err(unexpected("a SCRAM challenge", &other)),
        };
        let failed = |source| PgError::Scram { source };
        scram.update(challenge.data()).map_err(failed)?;
        message.clear();
        frontend::sasl_response(scram.message(), &mut message).map_err(PgError::io("greet"))?;
        self.send(&message).await?;
        match self.answer().await? {
            // The server proves here that it also knows the password.
            backend::Message::AuthenticationSaslFinal(body) => {
                scram.finish(body.data()).map_err(failed)
            }
            other => Err(unexpected("the end of SCRAM", &other)),
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), PgError> {
        self.stream.write_all(bytes).await.map_err(PgError::io("write to the server"))?;
        self.stream.flush().await.map_err(PgError::io("write to the server"))
    }

    async fn send_query(&mut self, sql: &str) -> Result<(), PgError> {
        let mut message = BytesMut::new();
        frontend::query(sql, &mut message).map_err(PgError::io("write a query"))?;
        self.send(&message).await
    }

    async fn located(&mut self) -> Result<LocatedMessage, PgError> {
        loop {
            if let Some(located) = self.incoming.take()? {
                return Ok(located);
            }
            let read = self.incoming.read(&mut self.stream).await;
            read.map_err(PgError::io("read from the server"))?;
        }
    }

    /// Reads the next message that is an answer. Notices are logged, and errors are returned.
    async fn answer(&mut self) -> Result<backend::Message, PgError> {
        loop {
            let located = self.located().await?;
            if let Some(message) = self.message(located)? {
                return Ok(message);
            }
        }
    }

    fn message(&self, located: LocatedMessage) -> Result<Option<backend::Message>, PgError> {
        let mut bytes = BytesMut::from(self.incoming.bytes(located.whole));
        let parsed = backend::Message::parse(&mut bytes);
        match parsed.map_err(PgError::io("read a message of the server"))? {
            Some(backend::Message::ErrorResponse(body)) => {
                Err(PgError::Server(Box::new(read_answer(body.fields())?)))
            }
            Some(backend::Message::NoticeResponse(body)) => {
                let notice = read_answer(body.fields())?;
                tracing::debug!(severity = notice.severity, %notice, "notice of the server");
                Ok(None)
            }
            Some(backend::Message::ParameterStatus(_)) => Ok(None),
            Some(message) => Ok(Some(message)),
            None => Err(PgError::protocol("a message ends before its length says")),
        }
    }
}

/// Ends a wait for an answer that a server gives at once. A proxy may fall silent after the startup.
async fn in_time<T>(answer: impl Future<Output = Result<T, PgError>>) -> Result<T, PgError> {
    let limit = ANSWER_TIMEOUT;
    timeout(limit, answer).await.unwrap_or(Err(PgError::Silent { limit }))
}

fn read_answer(fields: backend::ErrorFields<'_>) -> Result<ServerError, PgError> {
    ServerError::from_fields(fields).map_err(PgError::io("read an error of the server"))
}

fn password<'a>(startup: &Startup<'a>) -> Result<&'a [u8], PgError> {
    startup.password.map(|secret| secret.reveal().as_bytes()).ok_or(PgError::PasswordMissing)
}

/// Returns the size of all rows including this one.
fn answer_bytes(before: usize, row: &backend::DataRowBody) -> Result<usize, PgError> {
    let (bytes, limit) = (before + row.buffer().len(), ANSWER_BYTES_MAX);
    (bytes <= limit).then_some(bytes).ok_or(PgError::MessageTooLarge { bytes, limit })
}

fn row_of_text(row: &backend::DataRowBody) -> Result<Vec<Option<String>>, PgError> {
    let text = |range: Option<std::ops::Range<usize>>| {
        let bytes = range.map(|range| row.buffer().get(range).unwrap_or_default());
        Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
    };
    row.ranges().map(text).collect().map_err(PgError::io("read a row"))
}

fn unexpected(expected: &str, found: &backend::Message) -> PgError {
    PgError::protocol(format!("expected {expected}, found {}", name_of(found)))
}

/// Returns the name of the method that the server asks for.
fn method(message: &backend::Message) -> Result<String, PgError> {
    Ok(match message {
        backend::Message::AuthenticationOk => "no",
        backend::Message::AuthenticationCleartextPassword => "password",
        backend::Message::AuthenticationMd5Password(_) => "md5",
        backend::Message::AuthenticationGss
        | backend::Message::AuthenticationKerberosV5
        | backend::Message::AuthenticationScmCredential
        | backend::Message::AuthenticationSspi => name_of(message),
        other => return Err(unexpected("a request for authentication", other)),
    }
    .to_owned())
}

/// Chooses the mechanism of SCRAM, and how it is bound to the TLS connection, as libpq does.
fn scram_mechanism(
    offered: &[String],
    startup: &Startup<'_>,
) -> Result<(&'static str, sasl::ChannelBinding), PgError> {
    let is_offered = |name: &str| offered.iter().any(|offered| offered == name);
    let end_point = match startup.channel_binding {
        ChannelBinding::Disable => None,
        ChannelBinding::Prefer | ChannelBinding::Require => startup.end_point.clone(),
    };
    match end_point {
        Some(end_point) if is_offered(sasl::SCRAM_SHA_256_PLUS) => {
            Ok((sasl::SCRAM_SHA_256_PLUS, sasl::ChannelBinding::tls_server_end_point(end_point)))
        }
        _ if startup.channel_binding == ChannelBinding::Require => {
            let method = "unbound SCRAM".to_owned();
            Err(PgError::AuthenticationMethod { method, why: UNBOUND })
        }
        _ if !is_offered(sasl::SCRAM_SHA_256) => {
            let method = offered.join(", ");
            Err(PgError::AuthenticationMethod { method, why: UNSUPPORTED })
        }
        // A server that offers binding takes this for a downgrade attack, and is right.
        Some(_) => Ok((sasl::SCRAM_SHA_256, sasl::ChannelBinding::unrequested())),
        None => Ok((sasl::SCRAM_SHA_256, sasl::ChannelBinding::unsupported())),
    }
}

/// Names only the messages that can occur here, and omits their bodies.
fn name_of(message: &backend::Message) -> &'static str {
    match message {
        backend::Message::AuthenticationOk => "AuthenticationOk",
        backend::Message::AuthenticationGss => "GSSAPI",
        backend::Message::AuthenticationKerberosV5 => "Kerberos",
        backend::Message::AuthenticationScmCredential => "SCM credential",
        backend::Message::AuthenticationSspi => "SSPI",
        backend::Message::CopyData(_) => "CopyData",
        backend::Message::CopyDone => "CopyDone",
        backend::Message::CopyInResponse(_) => "CopyInResponse",
        backend::Message::CopyOutResponse(_) => "CopyOutResponse",
        backend::Message::CommandComplete(_) => "CommandComplete",
        backend::Message::DataRow(_) => "DataRow",
        backend::Message::ReadyForQuery(_) => "ReadyForQuery",
        backend::Message::RowDescription(_) => "RowDescription",
        _ => "another message",
    }
}

/// Returns `-c` options. Ours follow the user's, because the last one wins.
fn server_options(given: Option<&str>, settings: &[(&str, &str)]) -> String {
    // Only a warning reports a skipped publication (Postgres 18). A role with a higher
    // client_min_messages would lose rows silently.
    let ours = [("client_min_messages", "warning")];
    let mut options = given.unwrap_or_default().to_owned();
    for (name, value) in ours.iter().chain(settings) {
        options.push_str(" -c ");
        for character in name.chars().chain(['=']).chain(value.chars()) {
            if character.is_whitespace() || character == '\\' {
                options.push('\\');
            }
            options.push(character);
        }
    }
    options
}

/// Returns the command, quoted as `repl_scanner.l` reads it: doubled quotes, no other escapes.
fn start_replication(slot: &str, publications: &[String], start: Lsn) -> String {
    let identifier = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let names: Vec<_> = publications.iter().map(|name| identifier(name)).collect();
    format!(
        "START_REPLICATION SLOT {} LOGICAL {start} (proto_version '1', publication_names '{}')",
        identifier(slot),
        names.join(",").replace('\'', "''"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_for_both_parsers_they_pass() {
        let publications = ["plain".to_owned(), "o'clock".to_owned(), "a\"b".to_owned()];
        assert_eq!(
            start_replication("s", &publications, Lsn::ZERO),
            "START_REPLICATION SLOT \"s\" LOGICAL 0/0 (proto_version '1', \
             publication_names '\"plain\",\"o''clock\",\"a\"\"b\"')"
        );
    }

    #[test]
    fn settings_follow_the_users_options_and_are_escaped() {
        assert_eq!(
            server_options(Some("-c geqo=off"), &[("search_path", "a, b\\c")]),
            "-c geqo=off -c client_min_messages=warning -c search_path=a,\\ b\\\\c"
        );
    }
}
