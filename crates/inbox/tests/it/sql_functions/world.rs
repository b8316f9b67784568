//! A consumer's database: the inbox, handlers that add amounts, and helpers that check the results.

use std::ops::Deref;
use std::time::Duration;

use tokio_postgres::error::SqlState;
use walrelay_inbox::migrate_inbox;
use walrelay_testkit::postgres::{TestClient, TestDatabase};
use walrelay_testkit::wait_until;

use super::messages::{Message, array};

/// Handler that receives one event at a time.
pub(crate) const EACH: &str = "add(app_inbox_event)";
/// Handler that receives a whole batch.
pub(crate) const SET: &str = "add_all(app_inbox_event[])";
pub(crate) const BOTH: [&str; 2] = [EACH, SET];

/// Handlers that *add*, because an UPSERT would hide a second application. `applied` stores the
/// order. Both fail with the SQLSTATE that the data name in `fails`.
const HANDLERS: &str = "
CREATE TABLE balance (key text PRIMARY KEY, events int NOT NULL, amount bigint NOT NULL);
CREATE TABLE applied (n bigint GENERATED ALWAYS AS IDENTITY, key text, event_id text, version bigint);

CREATE FUNCTION add_all(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  event app_inbox_event;
BEGIN
  FOREACH event IN ARRAY events LOOP
    IF event.payload ->> 'fails' = 'assert' THEN
      ASSERT false, 'it does not hold';
    ELSIF event.payload ->> 'fails' IS NOT NULL THEN
      RAISE EXCEPTION 'cannot apply %', event.event_id
        USING ERRCODE = event.payload ->> 'fails', DETAIL = 'It says so.';
    END IF;
    INSERT INTO applied (key, event_id, version) VALUES (event.ordering_key, event.event_id, event.version);
  END LOOP;
  INSERT INTO balance AS b
    SELECT e.ordering_key, count(*), coalesce(sum((e.payload ->> 'amount')::bigint), 0)
      FROM unnest(events) AS e GROUP BY 1 ORDER BY 1
    ON CONFLICT (key) DO UPDATE SET events = b.events + excluded.events, amount = b.amount + excluded.amount;
END $$;

CREATE FUNCTION add(event app_inbox_event) RETURNS void LANGUAGE sql AS 'SELECT add_all(ARRAY[event])';
";

pub(crate) struct InboxDatabase {
    pub(crate) database: TestDatabase,
    session: TestClient,
}

impl Deref for InboxDatabase {
    type Target = TestClient;

    fn deref(&self) -> &TestClient {
        &self.session
    }
}

/// Returns a world of its own for each test, with consumer `c` in generation 1.
pub(crate) async fn world() -> Option<InboxDatabase> {
    let database = TestDatabase::create_or_skip().await?;
    let session = database.connect().await;
    migrate_inbox(&session).await.expect("the migrations run");
    session.run(HANDLERS).await;
    session.run("INSERT INTO app_inbox_consumer (consumer, subscription) VALUES ('c', 's')").await;
    Some(InboxDatabase { database, session })
}

impl InboxDatabase {
    pub(crate) async fn session(&self) -> TestClient {
        self.database.connect().await
    }

    /// Applies a batch in a transaction of its own. Returns the result of each message, followed by
    /// the error code if it failed.
    pub(crate) async fn apply(&self, handler: &str, messages: &[Message]) -> Vec<String> {
        self.apply_with(handler, messages, "").await
    }

    /// Like [`apply`](Self::apply), with options such as `, park => false`.
    pub(crate) async fn apply_with(
        &self,
        handler: &str,
        messages: &[Message],
        options: &str,
    ) -> Vec<String> {
        self.lines(&apply_sql(handler, messages, options)).await
    }

    /// Returns the error that refuses a batch as a whole, and checks that nothing remains of it.
    pub(crate) async fn refused(&self, handler: &str, messages: &[Message]) -> SqlState {
        let before = self.everything().await;
        let error = self.query(&apply_sql(handler, messages, ""), &[]).await;
        let error = error.expect_err("the batch was accepted");
        assert_eq!(self.everything().await, before, "a refused batch has left something");
        error.code().expect("an error of the server").clone()
    }

    /// Makes every waiting event due, and applies these events.
    pub(crate) async fn redeliver(&self, handler: &str) -> Vec<String> {
        self.redeliver_with(handler, "").await
    }

    pub(crate) async fn redeliver_with(&self, handler: &str, options: &str) -> Vec<String> {
        self.run(
            "UPDATE app_inbox SET next_attempt_at = now()
              WHERE status = 'retrying' AND next_attempt_at IS NOT NULL",
        )
        .await;
        let sql = format!(
            "SELECT concat_ws(' ', event_id, result, error_code)
               FROM app_inbox_redeliver('c', 1, '{handler}'{options})"
        );
        self.lines(&sql).await
    }

    /// Returns the single column of these rows.
    pub(crate) async fn lines(&self, sql: &str) -> Vec<String> {
        let rows = self.query(sql, &[]).await;
        let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Returns `event status` of each row of the inbox, in the order in which keys drain.
    pub(crate) async fn inbox(&self) -> Vec<String> {
        self.lines(
            "SELECT concat_ws(' ', event_id, status, error_code) FROM app_inbox
              ORDER BY commit_lsn, tx_index, arrival",
        )
        .await
    }

    /// Returns the events of this key in the order in which they took effect.
    pub(crate) async fn applied(&self, key: &str) -> Vec<String> {
        self.lines(&format!("SELECT event_id FROM applied WHERE key = '{key}' ORDER BY n")).await
    }

    /// Returns `events amount` of this key.
    pub(crate) async fn balance(&self, key: &str) -> String {
        let sql = format!(
            "SELECT coalesce((SELECT concat_ws(' ', events, amount) FROM balance WHERE key = '{key}'), '-')"
        );
        self.text(&sql).await
    }

    /// Returns the key's row: position, version, and the event that holds the key.
    pub(crate) async fn key(&self, key: &str) -> String {
        self.text(&format!(
            "SELECT concat_ws(' ', coalesce(commit_lsn::text || '/' || tx_index, '-'), coalesce(version::text, '-'),
                              'held by ' || held_by)
               FROM app_inbox_key WHERE ordering_key = '{key}'"
        ))
        .await
    }

    /// Waits until the session with this process id waits for another session's lock.
    pub(crate) async fn wait_until_blocked(&self, pid: &str) {
        let sql = format!("SELECT cardinality(pg_blocking_pids({pid}))::text");
        wait_until(Duration::from_secs(10), "a session to wait for another", async || {
            (self.text(&sql).await != "0").then_some(())
        })
        .await;
    }

    async fn everything(&self) -> String {
        self.text(
            "SELECT concat((SELECT json_agg(i ORDER BY i.event_id) FROM app_inbox i),
                           (SELECT json_agg(k ORDER BY k.ordering_key) FROM app_inbox_key k),
                           (SELECT json_agg(b ORDER BY b.key) FROM balance b))",
        )
        .await
    }
}

pub(crate) fn apply_sql(handler: &str, messages: &[Message], options: &str) -> String {
    format!(
        "SELECT concat_ws(' ', result, error_code)
           FROM app_inbox_apply('c', 1, '{handler}', {}{options}) ORDER BY index",
        array(messages)
    )
}
