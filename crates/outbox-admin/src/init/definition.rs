//! The definition of an outbox that is set up again, or beside others.

use tokio_postgres::Client;
use tokio_postgres::types::Type;
use walrelay_core::ColumnNames;
use walrelay_outbox_replay::{AdminError, read_loss, refuse_other_slot};
use walrelay_outbox_store::{Definition, Outbox, read_definitions};
use walrelay_pg_client::QualifiedName;
use walrelay_pg_replication::{read_publication, read_slot};

/// Records the outbox again if it is on record. Refuses to take over the slot or the publication of
/// another outbox, and to take a table off record whose rows may not be published.
pub(crate) async fn define(
    client: &Client,
    shards: &[Outbox],
    columns: &ColumnNames,
) -> Result<(), AdminError> {
    let Some(first) = shards.first() else { return Ok(()) };
    let wanted = Definition::of(first, columns);
    let mut found = read_definitions(client).await?;
    let differs = |what| Err(AdminError::OutboxDiffers { slot: wanted.slot.clone(), what });
    let index = found.iter().position(|it| it.slot == wanted.slot);
    if let Some(index) = index {
        let recorded = Definition { taken_names: Vec::new(), ..found.swap_remove(index) };
        let named = Definition { columns: recorded.columns.clone(), ..wanted.clone() };
        let is_left_out = |table: &&QualifiedName| !named.tables.contains(table);
        for table in recorded.tables.iter().filter(is_left_out) {
            if table_exists(client, table).await? {
                return differs(named.difference_from(&recorded).unwrap_or_default());
            }
        }
        if named.publication != recorded.publication {
            return differs(named.difference_from(&recorded).unwrap_or_default());
        }
    } else {
        for Outbox { slot, .. } in shards {
            refuse_other_slot(client, slot).await?;
            if read_slot(client, slot).await?.is_some() {
                let others = found.into_iter().map(|it| it.slot).collect();
                return Err(AdminError::OutboxUndefined { slot: slot.clone(), others });
            }
        }
    }
    for Outbox { publication, .. } in shards {
        let tables = read_publication(client, publication).await?.map(|it| it.tables);
        let other = tables.iter().flatten().find(|it| !wanted.tables.contains(&it.name));
        if let Some(other) = other {
            let (publication, table) = (publication.clone(), other.name.to_string());
            return Err(AdminError::PublicationTaken { publication, table });
        }
    }
    if index.is_none() {
        return Ok(());
    }
    // The set-up refuses a lost slot. The recovery then reads every table on record.
    for Outbox { slot, .. } in shards {
        if read_loss(client, slot).await?.is_some() {
            let recorded = client.batch_execute(&wanted.record_sql()).await;
            return recorded.map_err(AdminError::sql("record the definition of the outbox"));
        }
    }
    Ok(())
}

pub(super) async fn table_exists(
    client: &Client,
    table: &QualifiedName,
) -> Result<bool, AdminError> {
    let sql = "SELECT to_regclass($1) IS NOT NULL AS is_present";
    let row = client.query_typed_one(sql, &[(&table.to_string(), Type::TEXT)]).await;
    Ok(row.map_err(AdminError::sql(format!("look for table {table}")))?.get("is_present"))
}
