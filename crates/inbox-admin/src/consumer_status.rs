//! The status of a consumer, as its database shows it.

use serde::Serialize;
use walrelay_pg_client::{SqlClient, sql};

use walrelay_inbox::InboxError;
use walrelay_inbox::UnfinishedRebuild;
use walrelay_inbox::access::{failed, refuse_hidden, unknown};

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConsumerStatus {
    pub consumer: String,
    /// Full name of its subscription.
    pub subscription: String,
    /// Its generation: 1, and 1 more after each rebuild.
    pub generation: i32,
    pub paused: bool,
    pub events: EventCounts,
    /// Keys whose events wait for an earlier event.
    pub keys_held: u64,
    /// Keys whose events wait for a missing version.
    pub keys_waiting_for_a_version: u64,
    /// Age of the oldest event that is not applied.
    pub oldest_waiting_seconds: Option<f64>,
    /// Events that arrived within the last minute.
    pub received_last_minute: u64,
    /// Number of keys whose position is proved wrong.
    pub implausible_positions: usize,
    /// The unfinished rebuild, with its next step.
    pub rebuild: Option<String>,
    /// At most a hundred of the keys whose position is proved wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub implausible_keys: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct EventCounts {
    pub done: u64,
    /// Events that need an operator.
    pub dead: u64,
    pub discarded: u64,
    /// Events that arrived after a later version.
    pub late: u64,
    /// Events that will be applied again.
    pub retrying: u64,
}

impl EventCounts {
    fn count(&mut self, status: &str, events: u64) {
        match status {
            "done" => self.done = events,
            "dead" => self.dead = events,
            "discarded" => self.discarded = events,
            "late" => self.late = events,
            "retrying" => self.retrying = events,
            _ => {}
        }
    }
}

/// Fails if there is no such consumer.
pub async fn consumer_status(
    client: &SqlClient,
    consumer: &str,
) -> Result<ConsumerStatus, InboxError> {
    refuse_hidden(client).await?;
    let sql = sql!("consumer_status.sql", "status");
    let row = client.query_opt(sql, &[&consumer]).await.map_err(failed("read the consumer"))?;
    let row = row.ok_or_else(|| unknown(consumer))?;
    let generation: i32 = row.get(1);
    let counting = sql!("consumer_status.sql", "count_by_status");
    let counted = client
        .query(counting, &[&consumer, &generation])
        .await
        .map_err(failed("count the inbox"))?;
    let mut events = EventCounts::default();
    for count in counted {
        events.count(count.get(0), count.get::<_, i64>(1).unsigned_abs());
    }
    let implausible_keys = implausible(client, consumer, generation).await?;
    Ok(ConsumerStatus {
        consumer: consumer.to_owned(),
        subscription: row.get(0),
        generation,
        paused: row.get(2),
        events,
        keys_held: row.get::<_, i64>(3).unsigned_abs(),
        keys_waiting_for_a_version: row.get::<_, i64>(6).unsigned_abs(),
        oldest_waiting_seconds: row.get(4),
        received_last_minute: row.get::<_, i64>(5).unsigned_abs(),
        implausible_positions: implausible_keys.len(),
        rebuild: UnfinishedRebuild::of_row(&row, 7).map(|it| it.report()),
        implausible_keys,
    })
}

/// Returns at most a hundred keys whose position is proved wrong.
async fn implausible(
    client: &SqlClient,
    consumer: &str,
    generation: i32,
) -> Result<Vec<String>, InboxError> {
    let sql = sql!("consumer_status.sql", "implausible");
    let rows =
        client.query(sql, &[&consumer, &generation]).await.map_err(failed("read the keys"))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
