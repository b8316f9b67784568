//! A rebuild of single ordering keys, in one transaction. The inbox rows of the keys are set aside,
//! the read model's rows are reset, and the keys' events are applied again.

use std::collections::HashSet;

use tokio_postgres::{GenericClient, Transaction};
use walrelay_pg_client::{
    QualifiedName, SqlClient, TableAccess, in_schema, refuse_hidden_rows, sql,
};

use crate::event_commands::OperatorDecisions;
use walrelay_inbox::InboxError;
use walrelay_inbox::access::failed;
use walrelay_inbox::inbox_tables;

/// Some keys of a consumer, in one generation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(crate) consumer: &'a str,
    pub(crate) generation: i32,
    pub(crate) keys: &'a [String],
}

/// Applied events of keys that a rebuild does not apply again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LostEvents {
    pub(crate) events: i64,
    /// The id and the error of one of them whose handler failed.
    pub(crate) failure: Option<String>,
}

impl Keys<'_> {
    /// Refuses a role that does not see all rows.
    pub(crate) async fn refuse_hidden(client: &SqlClient) -> Result<(), InboxError> {
        Ok(refuse_hidden_rows(client, &inbox_tables()[1..], TableAccess::Write).await?)
    }

    /// Waits for every transaction that applies an event of these keys, then sets the keys' inbox
    /// rows aside. All events of the keys count as unseen from then on. Returns the counts of
    /// edited, discarded and unfinished events.
    pub(crate) async fn set_aside(
        &self,
        transaction: &Transaction<'_>,
    ) -> Result<OperatorDecisions, InboxError> {
        let Self { consumer, generation, keys } = self;
        let check = in_schema!("SELECT public.app_inbox_check($1, $2)");
        transaction
            .execute(check, &[consumer, generation])
            .await
            .map_err(failed("lock the consumer"))?;
        let lock = in_schema!("SELECT cardinality(public.app_inbox_lock($1, $2, $3, true))");
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        let locked = transaction.execute(lock, &[consumer, generation, &sorted]).await;
        locked.map_err(failed("lock the keys"))?;
        let decided = self.decided(transaction).await?;
        let aside = sql!("key_rebuild.sql", "set_aside");
        let set_aside = transaction.execute(aside, &[consumer, generation, keys]).await;
        set_aside.map_err(failed("set the inbox's rows aside"))?;
        let unplace = sql!("key_rebuild.sql", "forget_positions");
        let unplaced = transaction.execute(unplace, &[consumer, generation, keys]).await;
        unplaced.map_err(failed("forget the keys' positions"))?;
        Ok(decided)
    }

    /// Returns the counts of edited, discarded and unfinished events of the keys.
    pub(crate) async fn decided(
        &self,
        client: &impl GenericClient,
    ) -> Result<OperatorDecisions, InboxError> {
        let Self { consumer, generation, keys } = self;
        let sql = sql!("key_rebuild.sql", "decided");
        let row = client.query_one(sql, &[consumer, generation, keys]).await;
        let row = row.map_err(failed("count what was decided"))?;
        Ok(OperatorDecisions { edited: row.get(0), discarded: row.get(1), unfinished: row.get(2) })
    }

    /// Returns the ids of the applied events of the keys.
    pub(crate) async fn applied(&self, client: &SqlClient) -> Result<HashSet<String>, InboxError> {
        let Self { consumer, generation, keys } = self;
        let sql = sql!("key_rebuild.sql", "applied");
        let rows = client.query(sql, &[consumer, generation, keys]).await;
        let rows = rows.map_err(failed("read the applied events of the keys"))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Calls the function that resets these keys in the read model: `f(text[])`, or `f(text)` for
    /// each.
    pub(crate) async fn reset(
        &self,
        transaction: &Transaction<'_>,
        function: &QualifiedName,
    ) -> Result<(), InboxError> {
        let call = Self::reset_call(transaction, function).await?;
        let done = transaction.execute(&call, &[&self.keys]).await;
        done.map(drop).map_err(failed("reset the keys"))
    }

    /// Returns the statement that calls the function that resets keys.
    pub(crate) async fn reset_call(
        client: &impl GenericClient,
        function: &QualifiedName,
    ) -> Result<String, InboxError> {
        let name = function.to_string();
        let sql = "SELECT to_regprocedure($1 || '(text[])') IS NOT NULL, to_regprocedure($1 || '(text)') IS NOT NULL";
        let row = client.query_one(sql, &[&name]).await.map_err(failed("find the function"))?;
        match (row.get(0), row.get(1)) {
            (true, _) => Ok(format!("SELECT {name}($1::text[])")),
            (false, true) => Ok(format!("SELECT {name}(k) FROM unnest($1::text[]) AS k")),
            (false, false) => Err(InboxError::ResetFunctionMissing { function: name }),
        }
    }

    /// Deletes the rows that were set aside. Returns the applied events among them that were not
    /// applied again.
    pub(crate) async fn forget(
        &self,
        transaction: &Transaction<'_>,
    ) -> Result<LostEvents, InboxError> {
        let Self { consumer, generation, keys } = self;
        let sql = sql!("key_rebuild.sql", "forget");
        let row = transaction.query_one(sql, &[consumer, generation, keys]).await;
        let row = row.map_err(failed("delete the inbox's old rows"))?;
        Ok(LostEvents { events: row.get(0), failure: row.get(1) })
    }
}
