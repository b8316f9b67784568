//! Unfinished replays: the keys that they pause, and the rows that they still need.

use pgoutput_parser::Lsn;
use serde::{Deserialize, Serialize};
use tokio_postgres::types::{PgLsn, Type};
use tokio_postgres::{Client, GenericClient, Row};
use walrelay_pg_client::{in_schema, lock_is_taken, sql};

use crate::admin_error::AdminError;

/// A replay that is not finished, pauses keys, or has rows in dispatch state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedReplay {
    pub id: String,
    pub slot: String,
    /// Where it reads its rows. None if its record is gone, and only keys or rows of it are left.
    pub source: Option<ReplayReads>,
    /// Template of the topic that it publishes to. None in place.
    pub topic: Option<String>,
    /// Number of keys that it pauses, or has asked to pause.
    pub keys: u64,
    /// Number of its rows in dispatch state that are still to be published in place.
    pub rows: u64,
    /// Whether a process is running it now.
    pub is_being_done: bool,
}

impl UnfinishedReplay {
    /// Returns where the replay still has rows to read. In place, all of its rows are in dispatch state
    /// once it pauses no key.
    #[must_use]
    pub fn reads(&self) -> Option<&ReplayReads> {
        self.source.as_ref().filter(|_| self.topic.is_some() || self.keys > 0)
    }

    /// Returns whether the replay could not continue without its slot. Rows in dispatch state alone are
    /// published as all others are.
    #[must_use]
    pub fn needs_its_slot(&self) -> bool {
        self.reads().is_some() || self.keys > 0
    }
}

/// Where an unfinished replay reads its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayReads {
    Tables,
    Anchor(AnchorReads),
}

/// The WAL that a replay reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnchorReads {
    /// Name of the anchor.
    pub name: String,
    /// The server that the positions belong to.
    pub system_identifier: String,
    /// The position where the replay continues.
    pub from: Lsn,
}

/// Returns the unfinished replays of these slots, or of all slots: first those that pause the most
/// keys, then the oldest.
pub async fn unfinished_replays<C: GenericClient + Sync>(
    client: &C,
    slots: Option<&[String]>,
) -> Result<Vec<UnfinishedReplay>, AdminError> {
    // not a command: the name of an advisory lock.
    let is_being_done = lock_is_taken("'walrelay replay ' || id");
    // spliced: a test of a lock.
    let sql = format!(
        "SELECT unfinished.*, {is_being_done} AS is_being_done FROM ({}) AS unfinished",
        sql!("unfinished_replay.sql", "unfinished_replays")
    );
    let rows = client.query_typed(&sql, &[(&slots, Type::TEXT_ARRAY)]).await;
    Ok(rows.map_err(AdminError::sql("read unfinished replays"))?.iter().map(unfinished).collect())
}

fn unfinished(row: &Row) -> UnfinishedReplay {
    let (topic, keys) = (row.get("to_topic"), row.get::<_, i64>("keys").unsigned_abs());
    let source = match row.get::<_, Option<&str>>("source") {
        Some("wal") => Some(ReplayReads::Anchor(AnchorReads {
            name: row.get("anchor"),
            system_identifier: row.get("system_identifier"),
            from: Lsn::new(row.get::<_, PgLsn>("settled_lsn").into()),
        })),
        Some(_) => Some(ReplayReads::Tables),
        None => None,
    };
    UnfinishedReplay {
        id: row.get("id"),
        slot: row.get("slot"),
        source,
        topic,
        keys,
        rows: row.get::<_, i64>("rows").unsigned_abs(),
        is_being_done: row.get("is_being_done"),
    }
}

/// Returns the unfinished replays of this slot for a report. Returns none before the tables exist,
/// and for a role without the privilege to read them.
pub async fn visible_replays(
    client: &Client,
    slot: &str,
) -> Result<Vec<UnfinishedReplay>, AdminError> {
    let tables = [
        in_schema!("public.app_outbox_hold"),
        in_schema!("public.app_outbox_replay"),
        in_schema!("public.app_outbox_dispatch"),
    ];
    let sql = sql!("unfinished_replay.sql", "may_read");
    let row = client.query_typed_one(sql, &[(&tables.to_vec(), Type::TEXT_ARRAY)]).await;
    match row.map_err(AdminError::sql("read unfinished replays"))?.get(0) {
        true => unfinished_replays(client, Some(&[slot.to_owned()])).await,
        false => Ok(Vec::new()),
    }
}

/// A replay in place that pauses keys of a slot, as reports show it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PausingReplay {
    /// Name of the replay.
    pub id: String,
    /// Number of paused keys.
    pub keys: u64,
    /// Whether a process is running it now.
    #[serde(rename = "is_running")]
    pub is_being_done: bool,
}

impl PausingReplay {
    /// Returns the replays that pause keys, the one with the most keys first.
    #[must_use]
    pub fn among(unfinished: &[UnfinishedReplay]) -> Vec<Self> {
        let pausing = unfinished.iter().filter(|replay| replay.keys > 0);
        pausing
            .map(|UnfinishedReplay { id, keys, is_being_done, .. }| Self {
                id: id.clone(),
                keys: *keys,
                is_being_done: *is_being_done,
            })
            .collect()
    }
}

/// An unfinished replay to a topic, as reports show it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopicReplay {
    pub id: String,
    #[serde(rename = "to_topic")]
    pub topic: String,
    #[serde(rename = "is_running")]
    pub is_being_done: bool,
}

impl TopicReplay {
    /// Most replays in a report.
    const SHOWN_MAX: usize = 10;

    /// Returns the replays to a topic, the oldest first, at most ten.
    #[must_use]
    pub fn among(unfinished: &[UnfinishedReplay]) -> Vec<Self> {
        let to_topic = unfinished.iter().filter_map(|replay| {
            let UnfinishedReplay { id, topic, is_being_done, .. } = replay;
            let topic = topic.clone()?;
            Some(Self { id: id.clone(), topic, is_being_done: *is_being_done })
        });
        to_topic.take(Self::SHOWN_MAX).collect()
    }
}
