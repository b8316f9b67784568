//! The tables in Postgres. Time passes by moving the times of every row back.

use std::collections::BTreeMap;
use std::time::Duration;

use pgoutput_parser::{Lsn, Position};

use walrelay_core::OnDead;
use walrelay_outbox_store::{
    DispatchStatus, DispatchStore, History, HistoryRow, HistorySource, Key, RetrySelection,
    SessionStore, Store as _, StoreError, migrate,
};
use walrelay_pg_client::{ConnectConfig, PgEnv, QualifiedName, connect_sql};
use walrelay_pg_replication::read_server_identity;
use walrelay_testkit::postgres::TestDatabase;

use super::script;
use super::store_under_test::{LEASE, StoreUnderTest};

pub(crate) struct InPostgres {
    database: TestDatabase,
    config: ConnectConfig,
    slot: String,
    scripts: u32,
    session: Option<SessionStore>,
    /// The last replay of each key.
    replays: BTreeMap<usize, String>,
    replay_count: u32,
}

impl InPostgres {
    pub(crate) async fn create() -> Option<Self> {
        let database = TestDatabase::create_or_skip().await?;
        let config = ConnectConfig::parse(database.url(), &PgEnv::default()).expect("a url");
        let client = connect_sql(&config).await.expect("a connection");
        let outbox = QualifiedName::new("public", "app_outbox");
        migrate(&client, &[outbox]).await.expect("the migrations run");
        Some(Self {
            database,
            config,
            slot: String::new(),
            scripts: 0,
            session: None,
            replays: BTreeMap::new(),
            replay_count: 0,
        })
    }

    /// Begins another script with another slot, so that the tables have no rows of it.
    pub(crate) async fn begin(&mut self, on_dead: OnDead, before: u64) {
        self.scripts += 1;
        self.slot = format!("script_{}", self.scripts);
        let client = connect_sql(&self.config).await.expect("a connection");
        let store = DispatchStore::new(self.slot.clone()).with_on_dead(on_dead);
        let store = store.before(Lsn::new(before));
        let server = read_server_identity(&client).await.expect("a server");
        let session = SessionStore::begin(self.config.clone(), client, store, server, LEASE).await;
        let mut session = session.expect("the same server");
        // Without a slot, no code creates the row with the settled position.
        let sql = "INSERT INTO app_outbox_relay
                     (slot, system_identifier, timeline, generation, settled_lsn, settled_xid)
                   VALUES ($1, 'made up', 1, 1, '0/0', '0')";
        self.database.client().execute(sql, &[&self.slot]).await.expect("a row of the relay");
        session.parked_keys(&mut |_| {}).await.expect("nothing is held");
        self.session = Some(session);
        self.replays.clear();
        self.replay_count = 0;
    }

    fn operated(&self) -> DispatchStore {
        DispatchStore::new(self.slot.clone())
    }
}

impl StoreUnderTest for InPostgres {
    type Store = SessionStore;

    fn store(&mut self) -> &mut SessionStore {
        self.session.as_mut().expect("a script has begun")
    }

    async fn elapse(&mut self, time: Duration) {
        let sql = "UPDATE app_outbox_dispatch
                      SET next_attempt_at = next_attempt_at - make_interval(secs => $2)
                    WHERE slot = $1";
        let elapsed = self.database.client().execute(sql, &[&self.slot, &time.as_secs_f64()]).await;
        elapsed.expect("time passes");
    }

    async fn retry_dead(&mut self) {
        let mut client = connect_sql(&self.config).await.expect("a connection");
        let retried = self.operated().retry(&mut client, &RetrySelection::AllDead).await;
        retried.expect("they are retried");
    }

    async fn retry_topic(&mut self, topic: &str) {
        let mut client = connect_sql(&self.config).await.expect("a connection");
        let selection = RetrySelection::Topic(topic.to_owned());
        self.operated().retry(&mut client, &selection).await.expect("they are retried");
    }

    async fn discard(&mut self, row: u64) {
        let mut client = connect_sql(&self.config).await.expect("a connection");
        match self.operated().discard(&mut client, &format!("e{row}"), "made up").await {
            Ok(()) | Err(StoreError::UnknownEvent { .. } | StoreError::AlreadyFinished { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    async fn hold(&mut self, key: usize) {
        let mut client = connect_sql(&self.config).await.expect("a connection");
        let transaction = client.transaction().await.expect("a transaction");
        let id = format!("{:03}", self.replay_count + 1);
        let (topic, ordering_key) = script::key(key);
        let keys = [Key { topic, ordering_key }];
        let placed = self.operated().request_pauses(&transaction, &id, &keys).await;
        if placed.expect("an answer").is_none() {
            transaction.commit().await.expect("a hold");
            self.replays.insert(key, id);
            self.replay_count += 1;
        }
    }

    async fn add_history(&mut self, key: usize, row: u64) {
        let Some(id) = self.replays.get(&key) else { return };
        let (topic, ordering_key) = script::key(key);
        let (event_id, body) = (format!("e{row}"), script::body(ordering_key));
        let position = Position { commit_lsn: Lsn::new(row), tx_index: 0 };
        let rows = [HistoryRow { position, event_id: &event_id, event_type: None, message: &body }];
        let history =
            History { key: Key { topic, ordering_key }, rows: &rows, source: HistorySource::Log };
        let client = connect_sql(&self.config).await.expect("a connection");
        self.operated().add_history(&client, id, history).await.expect("it is added");
    }

    async fn lift(&mut self, key: usize) {
        let Some(id) = self.replays.get(&key) else { return };
        let mut client = connect_sql(&self.config).await.expect("a connection");
        let transaction = client.transaction().await.expect("a transaction");
        self.operated().lift_pauses(&transaction, id).await.expect("it goes on");
        transaction.commit().await.expect("it goes on");
    }

    async fn contents(&mut self) -> Vec<String> {
        let sql = "SELECT (commit_lsn - '0/0')::int8 AS number, status, attempts,
                          CASE WHEN next_attempt_at < now() THEN 0
                               ELSE extract(epoch FROM next_attempt_at - now()) END::float8 AS due_in
                     FROM app_outbox_dispatch WHERE slot = $1
                    ORDER BY commit_lsn, replay_id";
        let rows = self.database.client().query(sql, &[&self.slot]).await.expect("the rows");
        let line = |row: &tokio_postgres::Row| {
            let status: DispatchStatus = row.get::<_, &str>("status").parse().expect("a status");
            let due_in: Option<f64> = row.get("due_in");
            let due = script::rounded_minutes(due_in.map(Duration::from_secs_f64));
            let (number, attempts): (i64, i32) = (row.get("number"), row.get("attempts"));
            format!("  {number} {status} {attempts} {due}")
        };
        let mut lines: Vec<_> = rows.iter().map(line).collect();
        let held = "SELECT topic, ordering_key, (commit_lsn - '0/0')::int8 AS number, tx_index
                     FROM app_outbox_hold WHERE slot = $1
                    ORDER BY topic COLLATE \"C\", ordering_key COLLATE \"C\"";
        let holds = self.database.client().query(held, &[&self.slot]).await.expect("the holds");
        lines.extend(holds.iter().map(|row| {
            let (topic, key): (&str, &str) = (row.get("topic"), row.get("ordering_key"));
            let (number, index): (Option<i64>, Option<i32>) =
                (row.get("number"), row.get("tx_index"));
            format!("  {topic} {key} held {number:?} {index:?}")
        }));
        lines
    }
}
