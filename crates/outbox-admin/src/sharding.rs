//! Reads into how many shards an outbox is divided, from the names of slots and from records.

use std::collections::BTreeMap;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use walrelay_outbox_replay::AdminError;
use walrelay_outbox_store::{Outbox, Shard, ShardKey};
use walrelay_pg_client::{QualifiedName, in_schema, sql};

/// The existing shards: for each number, the shards with a slot and the shards with a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sharding {
    pub of_count: BTreeMap<u32, FoundShards>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundShards {
    /// Shards that have a slot in this database.
    pub with_slot: Vec<Shard>,
    pub on_record: Vec<Shard>,
}

impl Sharding {
    /// Returns the number of shards. None if there are no shards, or shards of several numbers.
    #[must_use]
    pub fn count(&self) -> Option<u32> {
        let mut counts = self.of_count.keys();
        counts.next().copied().filter(|_| counts.next().is_none())
    }

    /// Returns the greatest other number of which shards exist.
    #[must_use]
    pub fn other_than(&self, count: u32) -> Option<u32> {
        self.of_count.keys().copied().rfind(|other| *other != count)
    }

    #[must_use]
    pub fn has(&self, count: u32) -> bool {
        self.of_count.contains_key(&count)
    }
}

pub async fn read_sharding(client: &Client, outbox: &Outbox) -> Result<Sharding, AdminError> {
    let base = outbox.base_slot();
    let failed = || AdminError::sql("look which shards there are");
    let is_there =
        client.query_typed_one(sql!("sharding.sql", "may_read"), &[]).await.map_err(failed())?;
    let on_record = match is_there.get("may_read") {
        true => {
            in_schema!(
                "UNION ALL SELECT slot, true FROM public.app_outbox_relay WHERE starts_with(slot, $1)"
            )
        }
        false => "",
    };
    // spliced: the table of the relay, if the role may read it.
    let sql = format!(
        "SELECT slot_name::text AS name, false AS is_record FROM pg_catalog.pg_replication_slots
          WHERE database = current_database() AND starts_with(slot_name::text, $1) {on_record}
          ORDER BY 1"
    );
    let rows = client.query_typed(&sql, &[(&base, Type::TEXT)]).await.map_err(failed())?;
    let mut sharding = Sharding::default();
    for row in rows {
        let Some(shard) = Shard::of_name(row.get("name"), base) else { continue };
        let found = sharding.of_count.entry(shard.count()).or_default();
        match row.get("is_record") {
            true => found.on_record.push(shard),
            false => found.with_slot.push(shard),
        }
    }
    Ok(sharding)
}

/// Returns the expected row filter of a shard's publication for a table, in the server's form. None
/// if the table lacks a column of the key, or has one that cannot be hashed.
pub async fn expected_filter(
    client: &Client,
    key: &ShardKey,
    table: &QualifiedName,
    shard: Shard,
) -> Result<Option<String>, AdminError> {
    let sql = format!("SELECT {} AS filter", key.filter_sql(table, shard));
    let row = client
        .query_typed_one(&sql, &[])
        .await
        .map_err(AdminError::sql(format!("read the columns of {table}")))?;
    Ok(row.get("filter"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(counts: &[u32]) -> Sharding {
        let of_count = counts.iter().map(|count| (*count, FoundShards::default())).collect();
        Sharding { of_count }
    }

    #[test]
    fn the_number_of_shards_is_known_where_there_is_one_number() {
        assert_eq!(found(&[]).count(), None);
        assert_eq!(found(&[4]).count(), Some(4));
        assert_eq!(found(&[2, 4]).count(), None);
        assert_eq!(found(&[1, 4]).other_than(4), Some(1));
        assert_eq!(found(&[4]).other_than(4), None);
        assert_eq!(found(&[]).other_than(1), None);
    }
}
