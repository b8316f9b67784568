//! Streams from a real server: the rows, the confirmations, and the ways a stream ends.

#![expect(clippy::shadow_unrelated, reason = "each step of a story names what it has in hand")]
#![expect(clippy::wildcard_enum_match_arm, reason = "a test names what it waits for")]

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pgoutput_parser::{Change, Decoder, Frame, Lsn};
use walrelay_core::{ContinuityProof, Tracker, Watermark};
use walrelay_pg_client::{
    ConnectConfig, PgEnv, PgError, ServerError, ServerErrorKind, SqlClient, connect_sql,
};
use walrelay_pg_replication::{
    NetworkFeedback, NetworkFrames, ReplicationConnection, StreamSettings,
};
use walrelay_private_postgres::{PrivatePostgres, installations};

const PATIENCE: Duration = Duration::from_secs(30);

/// One server for all tests of this file that do not stop it. Its supervisor ends it with this
/// process.
static SERVER: LazyLock<Option<PrivatePostgres>> = LazyLock::new(start_server);

fn start_server() -> Option<PrivatePostgres> {
    let installation = installations().into_iter().next()?;
    let settings = [("max_replication_slots", "40"), ("max_wal_senders", "40")];
    Some(PrivatePostgres::start(&installation, &settings).unwrap())
}

/// A table with its publication and slot, all with the same name.
struct Outbox {
    name: String,
    config: ConnectConfig,
    client: SqlClient,
}

impl Outbox {
    async fn on_shared_server() -> Option<Self> {
        let Some(server) = &*SERVER else {
            eprintln!("skipped: no Postgres installation found");
            return None;
        };
        Some(Self::on(server).await)
    }

    async fn on(server: &PrivatePostgres) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("outbox_{}_{number}", std::process::id());
        let config = ConnectConfig::parse(&server.url("postgres"), &PgEnv::default()).unwrap();
        let client = connect_sql(&config).await.unwrap();
        let setup = format!(
            "CREATE TABLE {name} (id int, body text);
             CREATE PUBLICATION {name} FOR TABLE {name} WITH (publish = 'insert');"
        );
        client.batch_execute(&setup).await.unwrap();
        let outbox = Self { name, config, client };
        outbox.create_slot().await;
        outbox
    }

    async fn create_slot(&self) {
        let sql = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
        self.client.query(sql, &[&self.name]).await.unwrap();
    }

    async fn insert(&self, body: &str) {
        let sql = format!("INSERT INTO {} VALUES (1, $1)", self.name);
        self.client.execute(&sql, &[&body]).await.unwrap();
    }

    async fn stream(&self) -> Result<(NetworkFrames, NetworkFeedback), PgError> {
        self.stream_with(&[], std::slice::from_ref(&self.name), &StreamSettings::default()).await
    }

    async fn stream_with(
        &self,
        options: &[(&str, &str)],
        publications: &[String],
        settings: &StreamSettings,
    ) -> Result<(NetworkFrames, NetworkFeedback), PgError> {
        let connection = ReplicationConnection::connect(&self.config, options).await?;
        connection.start(&self.name, publications, Lsn::ZERO, settings).await
    }

    /// Returns `active` and `confirmed_flush` of the slot.
    async fn slot(&self) -> (bool, Lsn) {
        let sql = "SELECT active, confirmed_flush_lsn::text FROM pg_replication_slots \
                   WHERE slot_name = $1";
        let row = self.client.query_one(sql, &[&self.name]).await.unwrap();
        (row.get(0), row.get::<_, String>(1).parse().unwrap())
    }

    async fn wal_position(&self) -> Lsn {
        let sql = "SELECT pg_current_wal_flush_lsn()::text";
        let row = self.client.query_one(sql, &[]).await.unwrap();
        row.get::<_, String>(0).parse().unwrap()
    }

    async fn remove(self) {
        let sql = "SELECT pg_drop_replication_slot($1) FROM pg_replication_slots \
                   WHERE slot_name = $1 AND NOT active";
        let deadline = Instant::now() + PATIENCE;
        while self.slot_exists().await {
            assert!(Instant::now() < deadline, "the slot stays active");
            self.client.query(sql, &[&self.name]).await.ok();
        }
    }

    async fn slot_exists(&self) -> bool {
        let sql = "SELECT 1 FROM pg_replication_slots WHERE slot_name = $1";
        self.client.query_opt(sql, &[&self.name]).await.unwrap().is_some()
    }
}

/// Reads a stream like a relay, but publishes nothing. Every row counts as settled.
struct Reader {
    frames: NetworkFrames,
    feedback: NetworkFeedback,
    decoder: Decoder,
    tracker: Tracker,
    bodies: Vec<usize>,
    failure: Option<PgError>,
}

impl Reader {
    fn new((frames, feedback): (NetworkFrames, NetworkFeedback)) -> Self {
        let (decoder, tracker) = (Decoder::new(), Tracker::new());
        Self { frames, feedback, decoder, tracker, bodies: Vec::new(), failure: None }
    }

    /// Reads one frame, or confirms if a confirmation is due.
    async fn step(&mut self) -> Result<(), PgError> {
        tokio::select! {
            () = self.feedback.due(self.tracker.watermark()) => {
                self.feedback.confirm(self.tracker.watermark()).await
            }
            frame = self.frames.next() => {
                match frame? {
                    Frame::Keepalive(keepalive) => {
                        self.feedback.note_keepalive(&keepalive);
                        if let Some(boundary) = self.decoder.boundary(&keepalive) {
                            self.tracker.observe(boundary);
                            self.tracker.intact(keepalive.wal_end);
                        }
                    }
                    Frame::XLogData(data) => match self.decoder.decode(data.data).unwrap() {
                        Change::Begin(begin) => self.tracker.begin(begin.commit_timestamp),
                        Change::Insert(_) => self.bodies.push(data.data.len()),
                        Change::Commit(commit) => {
                            self.feedback.received(commit.boundary().lsn());
                            self.tracker.seal(commit.boundary(), ContinuityProof::Unbroken);
                        }
                        _ => {}
                    },
                }
                Ok(())
            }
        }
    }

    async fn read_rows(&mut self, count: usize) -> Watermark {
        let read = async {
            while self.bodies.len() < count || !self.tracker.is_settled() {
                self.step().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("rows are missing");
        self.tracker.watermark()
    }

    /// Returns whether the stream continues, and stores the error if it does not.
    async fn read_or_keep(&mut self) -> bool {
        self.failure = self.step().await.err();
        self.failure.is_none()
    }

    async fn read_until_error(&mut self) -> PgError {
        let read = async { while self.read_or_keep().await {} };
        tokio::time::timeout(PATIENCE, read).await.expect("the stream goes on");
        self.failure.take().unwrap()
    }
}

fn kind(error: &PgError) -> Option<ServerErrorKind> {
    error.server().map(ServerError::kind)
}

#[tokio::test]
async fn a_clean_finish_leaves_the_slot_free_and_confirmed_at_the_watermark() {
    let Some(outbox) = Outbox::on_shared_server().await else { return };
    let mut reader = Reader::new(outbox.stream().await.unwrap());
    outbox.insert("one").await;
    outbox.insert("two").await;
    let watermark = reader.read_rows(2).await;
    assert!(outbox.slot().await.0);
    reader.feedback.finish(reader.frames, watermark).await.unwrap();
    assert_eq!(outbox.slot().await, (false, watermark.lsn()));

    // The next session receives the later row, and no row twice.
    outbox.insert("a longer three").await;
    let mut reader = Reader::new(outbox.stream().await.unwrap());
    reader.read_rows(1).await;
    assert_eq!(reader.bodies.len(), 1);
    drop(reader);
    outbox.remove().await;
}

#[tokio::test]
async fn a_finish_in_the_middle_of_a_large_transaction_confirms_what_came_before() {
    let Some(outbox) = Outbox::on_shared_server().await else { return };
    let mut reader = Reader::new(outbox.stream().await.unwrap());
    outbox.insert("before").await;
    reader.read_rows(1).await;
    let rows = format!(
        "INSERT INTO {} SELECT n, repeat('x', 1000) FROM generate_series(1, 50000) n",
        outbox.name
    );
    outbox.client.batch_execute(&rows).await.unwrap();
    let some_rows = async {
        while reader.bodies.len() < 100 {
            reader.step().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, some_rows).await.expect("rows are missing");
    assert!(!reader.tracker.is_settled());
    let watermark = reader.tracker.watermark();
    reader.feedback.finish(reader.frames, watermark).await.unwrap();
    assert_eq!(outbox.slot().await, (false, watermark.lsn()));

    // The whole transaction is redelivered.
    let mut reader = Reader::new(outbox.stream().await.unwrap());
    reader.read_rows(50_000).await;
    assert_eq!(reader.bodies.len(), 50_000);
    drop(reader);
    outbox.remove().await;
}

#[tokio::test]
async fn the_system_and_the_sessions_settings_are_known() {
    let Some(outbox) = Outbox::on_shared_server().await else { return };
    let settings = [("wal_sender_timeout", "17s")];
    let mut connection = ReplicationConnection::connect(&outbox.config, &settings).await.unwrap();
    let identity = connection.identify_system().await.unwrap();
    assert_eq!(identity.database, "postgres");
    assert!(identity.system_identifier.parse::<u64>().is_ok());
    assert!(identity.timeline >= 1 && identity.xlogpos > Lsn::ZERO);
    assert_eq!(connection.wal_sender_timeout().await.unwrap(), Some(Duration::from_secs(17)));
    // An error leaves the session usable.
    let error = connection.simple_query("SELECT 1/0").await.unwrap_err();
    assert_eq!(error.server().unwrap().code, "22012");
    let rows = connection.simple_query("SELECT 'a', NULL UNION ALL SELECT 'b', ''").await.unwrap();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(rows, [[text("a"), None], [text("b"), text("")]]);
    outbox.remove().await;
}

#[tokio::test]
async fn an_occupied_slot_names_its_holder_and_a_missing_one_is_missing() {
    let Some(outbox) = Outbox::on_shared_server().await else { return };
    let mut reader = Reader::new(outbox.stream().await.unwrap());
    outbox.insert("x").await;
    reader.read_rows(1).await;
    let sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1";
    let pid: i32 = outbox.client.query_one(sql, &[&outbox.name]).await.unwrap().get(0);
    let error = outbox.stream().await.unwrap_err();
    assert_eq!(kind(&error), Some(ServerErrorKind::SlotActive { pid: Some(pid) }), "{error}");

    outbox.client.query("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
    let error = reader.read_until_error().await;
    assert_eq!(kind(&error), Some(ServerErrorKind::AdminShutdown), "{error}");

    let connection = ReplicationConnection::connect(&outbox.config, &[]).await.unwrap();
    let settings = StreamSettings::default();
    let started = connection.start("absent", &[], Lsn::ZERO, &settings).await;
    assert_eq!(kind(&started.unwrap_err()), Some(ServerErrorKind::Missing));
    outbox.remove().await;
}

#[tokio::test]
async fn a_missing_publication_ends_the_stream_on_every_version() {
    for installation in installations() {
        let server = PrivatePostgres::start(&installation, &[]).unwrap();
        let outbox = Outbox::on(&server).await;
        // A role may silence warnings, but our warning must still arrive.
        let silence = "ALTER ROLE postgres SET client_min_messages = 'error'";
        outbox.client.batch_execute(silence).await.unwrap();
        outbox.insert("lost?").await;
        let absent = ["absent".to_owned()];
        let stream = outbox.stream_with(&[], &absent, &StreamSettings::default()).await;
        let error = Reader::new(stream.unwrap()).read_until_error().await;
        match &error {
            PgError::Server(answer) => assert_eq!(answer.kind(), ServerErrorKind::Missing),
            PgError::PublicationSkipped(_) => {}
            other => panic!("{installation:?}: {other}"),
        }
    }
}

#[tokio::test]
async fn names_with_quotes_and_commas_reach_the_output_plugin() {
    let Some(outbox) = Outbox::on_shared_server().await else { return };
    let odd = format!("{}, o'clock \"sharp\"", outbox.name);
    let sql = format!(
        "CREATE PUBLICATION \"{}\" FOR TABLE {}; SELECT pg_drop_replication_slot('{}')",
        odd.replace('"', "\"\""),
        outbox.name,
        outbox.name
    );
    outbox.client.batch_execute(&sql).await.unwrap();
    outbox.create_slot().await;
    outbox.insert("x").await;
    let stream = outbox.stream_with(&[], &[odd], &StreamSettings::default()).await.unwrap();
    Reader::new(stream).read_rows(1).await;
    outbox.remove().await;
}

#[tokio::test]
async fn a_row_of_twenty_megabytes_arrives_whole_and_its_memory_is_given_back() {
    let Some(outbox) = Outbox::on_shared_server().await else { return };
    let mut reader = Reader::new(outbox.stream().await.unwrap());
    let memory = reader.frames.buffered_bytes();
    outbox.insert(&"y".repeat(20_000_000)).await;
    reader.read_rows(1).await;
    assert!(reader.bodies[0] > 20_000_000);
    assert!(reader.frames.buffered_bytes() > 20_000_000);
    // One row at a time, so that each needs a separate read.
    for count in 2..20 {
        outbox.insert("small").await;
        reader.read_rows(count).await;
    }
    assert_eq!(reader.frames.buffered_bytes(), memory);
    drop(reader);
    outbox.remove().await;
}

#[tokio::test]
async fn an_idle_stream_outlives_the_servers_timeout() {
    let Some(outbox) = Outbox::on_shared_server().await else { return };
    let timeout = Duration::from_secs(1);
    let settings = StreamSettings::for_sender_timeout(Some(timeout));
    let names = [outbox.name.clone()];
    let stream = outbox.stream_with(&[("wal_sender_timeout", "1s")], &names, &settings).await;
    let mut reader = Reader::new(stream.unwrap());
    let since = Instant::now();
    while since.elapsed() < timeout * 3 {
        reader.step().await.unwrap();
    }
    outbox.insert("still here").await;
    reader.read_rows(1).await;
    drop(reader);
    outbox.remove().await;
}

#[tokio::test]
async fn keepalives_move_the_slot_past_wal_that_is_not_ours() {
    let Some(outbox) = Outbox::on_shared_server().await else { return };
    let mut reader = Reader::new(outbox.stream().await.unwrap());
    outbox.client.batch_execute("CREATE TABLE IF NOT EXISTS unrelated (n int)").await.unwrap();
    let target = outbox.wal_position().await;
    let catch_up = async {
        while outbox.slot().await.1 < target {
            reader.step().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, catch_up).await.expect("the slot stays behind");
    drop(reader);
    outbox.remove().await;
}

#[tokio::test]
async fn a_server_that_shuts_down_is_let_go_when_nothing_can_be_confirmed() {
    let Some(mut server) = start_server() else { return };
    let outbox = Outbox::on(&server).await;
    let mut reader = Reader::new(outbox.stream().await.unwrap());
    outbox.insert("never settled").await;
    let stuck = reader.tracker.watermark();
    server.begin_stop_fast().unwrap();
    let notice = async {
        while !reader.feedback.server_wants_to_stop() {
            tokio::select! {
                () = reader.feedback.due(stuck) => reader.feedback.confirm(stuck).await.unwrap(),
                frame = reader.frames.next() => {
                    if let Frame::Keepalive(keepalive) = frame.unwrap() {
                        reader.feedback.note_keepalive(&keepalive);
                    }
                }
            }
        }
    };
    tokio::time::timeout(PATIENCE, notice).await.expect("the shutdown goes unnoticed");
    assert!(server.is_running());
    drop(reader);
    server.stop_fast().unwrap();
}

#[tokio::test]
async fn a_server_that_shuts_down_is_confirmed_and_ends_the_stream() {
    let Some(mut server) = start_server() else { return };
    let outbox = Outbox::on(&server).await;
    let mut reader = Reader::new(outbox.stream().await.unwrap());
    outbox.insert("settled").await;
    reader.read_rows(1).await;
    server.begin_stop_fast().unwrap();
    let error = reader.read_until_error().await;
    assert!(matches!(error, PgError::EndedByServer | PgError::Disconnected), "{error}");
    server.stop_fast().unwrap();
}
