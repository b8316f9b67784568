//! A test consumer whose handler adds numbers. The checker verifies its effects.

use serde_json::Value;
use tokio_postgres::Row;
use walrelay_testkit::checker::{self, Stored};
use walrelay_testkit::relay::{Relay, RelayCommand};
use walrelay_testkit::wait_until;

use crate::world::{DEADLINE, InboxDatabase};

/// The name of the consumer and of its subscription.
pub const CONSUMER: &str = "ledger";

/// The arguments that start the consumer.
const CONSUME: [&str; 5] = ["consumer", "run", CONSUMER, "--handler", "effect.add"];

/// Adds, because an UPSERT would hide an event that is applied twice. The table `applied` keeps the
/// order.
const HANDLER: &str = "
CREATE SCHEMA effect;
CREATE TABLE effect.balance (key text PRIMARY KEY, events bigint NOT NULL);
CREATE TABLE effect.applied (
  n bigint GENERATED ALWAYS AS IDENTITY, event_id text, key text, lsn text, tx_index text, data bytea);
CREATE FUNCTION effect.add(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  e app_inbox_event;
BEGIN
  FOREACH e IN ARRAY events LOOP
    IF e.payload ->> 'fails' IS NOT NULL AND e.event_type <> 'mended' THEN
      RAISE EXCEPTION 'poison' USING ERRCODE = '22000';
    END IF;
    INSERT INTO effect.applied (event_id, key, lsn, tx_index, data)
      VALUES (e.event_id, e.ordering_key, e.commit_lsn::text, e.tx_index::text, e.data);
  END LOOP;
  INSERT INTO effect.balance AS b SELECT x.ordering_key, count(*) FROM unnest(events) AS x GROUP BY 1 ORDER BY 1
    ON CONFLICT (key) DO UPDATE SET events = b.events + excluded.events;
END $$;
";

/// Reads an applied event: its id, key, position and data.
#[must_use]
pub fn applied_event(row: &Row) -> Stored {
    Stored {
        event_id: row.get(0),
        key: row.get(1),
        commit_lsn: row.get(2),
        tx_index: row.get(3),
        data: row.get(4),
    }
}

impl InboxDatabase {
    /// Creates a subscription to `video.events`, a consumer in this database, and its handler.
    pub async fn set_up_consumer(&self) {
        self.set_up_consumer_with([]).await;
    }

    /// As [`set_up_consumer`](Self::set_up_consumer), with these options of `consumer init`.
    pub async fn set_up_consumer_with<'a>(&self, options: impl IntoIterator<Item = &'a str>) {
        let create = ["--create", "--topic", "video.events"];
        let init = ["consumer", "init", CONSUMER, "--subscription", CONSUMER];
        self.succeed(init.into_iter().chain(create).chain(options)).await;
        self.set_up_handler().await;
    }

    /// Creates the handler of the consumer, once the inbox is there.
    pub async fn set_up_handler(&self) {
        self.execute(&self.with_event_type(HANDLER)).await;
    }

    /// Returns the command `walrelay consumer run` with these options.
    #[must_use]
    pub fn consumer<'a>(&self, options: impl IntoIterator<Item = &'a str>) -> RelayCommand {
        self.command(CONSUME.into_iter().chain(options))
    }

    /// Starts a consumer and waits until it is ready.
    pub async fn start_consumer<'a>(&self, options: impl IntoIterator<Item = &'a str>) -> Relay {
        let consumer = self.consumer(options).with_http().start();
        consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
        consumer
    }

    /// Consumes until all events are applied.
    pub async fn consume_all(&self) {
        let done = self.consumer(["--until-caught-up"]).finish(DEADLINE).await;
        assert_eq!(done.code, Some(0), "{}", done.text);
    }

    /// Inserts rows of `keys` keys. The versions give the publish order.
    pub async fn insert_events(&self, keys: u32, rows: u32) {
        self.insert_events_of(("video", "made"), keys, rows).await;
    }

    /// As [`insert_events`](Self::insert_events), with an aggregate type and an event type.
    pub async fn insert_events_of(&self, types: (&str, &str), keys: u32, rows: u32) {
        let (aggregate_type, event_type) = types;
        self.execute(&format!(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT '{aggregate_type}', 'key-' || n % {keys}, '{event_type}', n + (SELECT count(*) FROM app_outbox),
                    jsonb_build_object('n', n)
               FROM generate_series(1, {rows}) AS n"
        ))
        .await;
    }

    /// Returns the events that the handler applied, in order.
    pub async fn applied(&self) -> Vec<Stored> {
        let sql = "SELECT event_id, key, lsn, tx_index, data FROM effect.applied ORDER BY n";
        let rows = self.client().query(sql, &[]).await.expect("the effects can be read");
        rows.iter().map(applied_event).collect()
    }

    /// Waits until an audit finds this many published events and each of them in the inbox.
    pub async fn wait_audited(&self, events: u64) {
        wait_until(DEADLINE, "an audit of the published events", async || {
            let done = self.run(["audit", "--grace", "0s", "--output", "json"]).await;
            let report: Value = serde_json::from_str(&done.text).unwrap_or_default();
            let consumer = &report["consumers"][0];
            assert_eq!(consumer["missing"].as_u64().unwrap_or_default(), 0, "{}", done.text);
            (consumer["rows"] == events && done.code == Some(0)).then_some(())
        })
        .await;
    }

    /// Returns the number of applied events.
    pub async fn applied_count(&self) -> i64 {
        self.number("SELECT count(*) FROM effect.applied").await
    }

    /// Waits until at least `count` events are applied.
    pub async fn wait_applied(&self, count: i64) {
        wait_until(DEADLINE, &format!("{count} events to be applied"), async || {
            (self.applied_count().await >= count).then_some(())
        })
        .await;
    }

    /// Checks that every committed event was applied once and in order per key, and that the sums
    /// agree.
    pub async fn assert_applied_exactly_once(&self) {
        let committed = self.committed().await;
        checker::check(&committed, &self.applied().await).assert_exactly_once();
        let sum = "SELECT coalesce(sum(events), 0)::bigint FROM effect.balance";
        let committed = i64::try_from(committed.len()).expect("a small number");
        assert_eq!(self.number(sum).await, committed, "the sums differ from what was committed");
    }
}
