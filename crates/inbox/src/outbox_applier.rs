//! Applies events from the outbox itself, for a rebuild without a subscription.
//!
//! Each event still goes through `app_inbox_apply`, so that it is applied once, in the transaction
//! that records it.

use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{IsolationLevel, Transaction};
use walrelay_core::Message;
use walrelay_inbox_core::Fate;
use walrelay_pg_client::{Parameter, SqlClient, quote_identifier, quote_literal, sql};
use walrelay_pubsub::MessageRef;

use crate::access::failed;
use crate::apply::apply_batch::{APPLY, Applied, REDELIVER, resolve_handler};
use crate::apply::apply_options::Plan;
use crate::apply::handler_kind::Effect;
use crate::columns::{Columns, borrowed};
use crate::error::InboxError;
use crate::event::Event;
use crate::settings::{Dedupe, OnDead, OnGap};

/// The attempts before an event is dead, equal to the default of `walrelay consumer run`.
const ATTEMPTS_MAX: i32 = 10;
/// The maximum number of stored events to retry at once.
const REDELIVERED_MAX: i32 = 200;

/// Applies events to one generation of a consumer.
#[derive(Debug)]
pub struct OutboxApplier {
    plan: Plan,
    handler: String,
    schema: Option<String>,
}

impl OutboxApplier {
    /// Finds the handler. With a schema, the handler finds its tables in that schema first, and may
    /// write no other table.
    ///
    /// # Errors
    ///
    /// Fails if no handler or several handlers match.
    pub async fn new(
        client: &SqlClient,
        consumer: &str,
        generation: i32,
        handler: &str,
        schema: Option<&str>,
    ) -> Result<Self, InboxError> {
        let found = resolve_handler(client, handler).await.map_err(failed("find the handler"))?;
        let problem = match found.as_slice() {
            [name] => {
                let plan = Plan {
                    consumer: consumer.to_owned(),
                    generation,
                    effect: Effect::function(name.clone()),
                    on_dead: OnDead::Hold,
                    max_attempts: ATTEMPTS_MAX,
                    on_gap: OnGap::Accept,
                    dedupe: Dedupe::Event,
                    handler_timeout: Duration::ZERO,
                    lock_timeout: Duration::ZERO,
                };
                let schema = schema.map(str::to_owned);
                return Ok(Self { plan, handler: name.clone(), schema });
            }
            [] => {
                "there is no function f(app_inbox_event[]) or f(app_inbox_event) of this name that returns void"
            }
            [..] => "there are several functions of this name",
        };
        let (handler, problem) = (handler.to_owned(), problem.to_owned());
        Err(InboxError::Handler { handler, problem })
    }

    /// Begins a transaction in which events can be applied.
    pub async fn begin<'a>(
        &self,
        client: &'a mut SqlClient,
    ) -> Result<Transaction<'a>, InboxError> {
        let builder = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
        let transaction = builder.start().await.map_err(failed("begin a transaction"))?;
        let mut sql = sql!("outbox_applier.sql", "begin").to_owned();
        if let Some(schema) = &self.schema {
            let first = quote_literal(&format!("{}, ", quote_identifier(schema)));
            sql.push_str(&format!(
                ", set_config('search_path', {first} || current_setting('search_path'), true)"
            ));
        }
        transaction.batch_execute(&sql).await.map_err(failed("set up the transaction"))?;
        Ok(transaction)
    }

    /// Applies these events in a transaction of [`begin`](Self::begin). Events applied before are
    /// skipped, and events that fail are stored.
    ///
    /// # Errors
    ///
    /// Fails if the handler has written a table outside the schema.
    pub async fn apply(
        &self,
        transaction: &Transaction<'_>,
        events: &[Event],
    ) -> Result<(), InboxError> {
        let mut rest: Vec<&Event> = events.iter().collect();
        while !rest.is_empty() {
            let applied = self.apply_once(transaction, &rest).await?;
            let deferred = |(_, it): &(&&Event, &Applied)| it.fate() == Fate::Deferred;
            let left: Vec<&Event> =
                rest.iter().zip(&applied).filter(deferred).map(|(event, _)| *event).collect();
            if left.len() == rest.len() {
                let problem = "another transaction holds the ordering keys of these events";
                return Err(InboxError::Refused { problem: problem.to_owned() });
            }
            rest = left;
        }
        self.refuse_writes_outside_schema(transaction).await
    }

    async fn apply_once(
        &self,
        transaction: &Transaction<'_>,
        events: &[&Event],
    ) -> Result<Vec<Applied>, InboxError> {
        let columns = Columns::of(events);
        let mut parameters = columns.parameters(&self.plan);
        parameters.push((Box::new(&self.handler), Type::TEXT));
        parameters.push((Box::new(self.plan.on_dead.name()), Type::TEXT));
        parameters.push((Box::new(self.plan.max_attempts), Type::INT4));
        parameters.push((Box::new(self.plan.dedupe.name()), Type::TEXT));
        parameters.push((Box::new(self.plan.on_gap.name()), Type::TEXT));
        let rows = transaction.query_typed(&APPLY, &borrowed(&parameters)).await;
        let rows = rows.map_err(failed("apply events"))?;
        Ok(rows.iter().flat_map(Applied::of_row).collect())
    }

    /// Retries failed events that are due. Returns whether any row changed.
    ///
    /// # Errors
    ///
    /// Fails like [`apply`](Self::apply).
    pub async fn redeliver(&self, transaction: &Transaction<'_>) -> Result<bool, InboxError> {
        let plan = &self.plan;
        let (on_dead, on_gap) = (plan.on_dead.name(), plan.on_gap.name());
        let parameters: [Parameter<'_>; 7] = [
            (&plan.consumer, Type::TEXT),
            (&plan.generation, Type::INT4),
            (&self.handler, Type::TEXT),
            (&on_dead, Type::TEXT),
            (&plan.max_attempts, Type::INT4),
            (&REDELIVERED_MAX, Type::INT4),
            (&on_gap, Type::TEXT),
        ];
        let rows = transaction.query_typed(&REDELIVER, &parameters).await;
        let rows = rows.map_err(failed("apply stored events"))?;
        let tried: Vec<Applied> = rows.iter().flat_map(Applied::of_row).collect();
        self.refuse_writes_outside_schema(transaction).await?;
        Ok(Applied::any_row_changed(&tried))
    }

    /// Refuses writes outside the schema. A transaction keeps its lock on every table that it
    /// writes. The check therefore also finds writes through a schema-qualified name or a trigger.
    async fn refuse_writes_outside_schema(
        &self,
        transaction: &Transaction<'_>,
    ) -> Result<(), InboxError> {
        let Some(schema) = &self.schema else { return Ok(()) };
        let sql = sql!("outbox_applier.sql", "refuse_writes_outside_schema");
        let row = transaction.query_typed(sql, &[(schema, Type::TEXT)]).await;
        let row = row.map_err(failed("check which tables were written"))?;
        let abandoned: Option<String> = row.first().and_then(|row| row.get(0));
        match abandoned {
            None => Ok(()),
            Some(tables) => {
                let (handler, schema) = (self.handler.clone(), schema.clone());
                Err(InboxError::WritesElsewhere { handler, tables, schema })
            }
        }
    }
}

impl Event {
    /// Returns the event that a subscriber would receive for this message. The position is that of
    /// the pass of the rebuild, and the row's place in it.
    #[must_use]
    pub fn of_row(message: &Message) -> Self {
        let position = message.position();
        let read = MessageRef {
            data: message.data(),
            attributes: message.attributes().collect(),
            message_id: message.event_id(),
            publish_time: None,
            ordering_key: message.ordering_key(),
        };
        Self {
            commit_lsn: Some(walrelay_envelope::Lsn::new(position.commit_lsn.as_u64())),
            tx_index: i32::try_from(position.tx_index).ok(),
            system_identifier: None,
            ..Self::of_message(read)
        }
    }
}
