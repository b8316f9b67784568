//! `walrelay consumer rebuild --from-outbox`: rebuilds a read model from the rows of the outbox.
//!
//! ```text
//! new subscription, to a topic of its own ──▶ reset, generation and subscription in one transaction
//!   ──▶ the rows to that topic ──▶ all of them in the inbox ──▶ the subscription that was read before
//! ```
//!
//! Running instances do the work. During the refill they read its subscription, and new events
//! queue in the usual subscription. Order holds, because no new event of a key is applied before
//! the key's rows. The inbox skips events that arrive from both subscriptions. If the refill is
//! interrupted, the command starts again from scratch with another generation and another
//! subscription. Otherwise the rest of the first refill would come before the beginning of the
//! second.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use walrelay_core::ColumnFilter;
use walrelay_inbox::operator::admin::{self, Filling, NewGeneration};
use walrelay_inbox::operator::consumer_status::consumer_status;
use walrelay_inbox::operator::event_commands::ConsumerGeneration;
use walrelay_outbox_replay::replay::{
    Destination, OrderedSource, OrderedTable, ReplayJob, ReplayOrder,
};
use walrelay_pg_client::{
    ConnectConfig, QualifiedName, SqlClient, SqlError, TableAccess, backend_pid, connect_sql,
    refuse_hidden_rows,
};
use walrelay_pubsub::Subscriber;
use walrelay_relay::failpoint;
use walrelay_relay::shutdown::Shutdown;

use super::super::replay::{left_out, publish_for_rebuild};
use super::super::shared::cancellable::{run_cancellable_in, run_until_shutdown};
use super::outbox_row_check::{self, RowsToApply, Wanted};
use super::{agree, begin, described, is_moved, reset, successor, usual};
use crate::config::{OutboxRowsConfig, Rebuild};
use crate::error::Error;
use crate::output::print;
use walrelay_outbox_admin::protocols::routes;

/// Interval between progress queries. Such a query counts the rows of the inbox, so the interval is
/// at least ten times the duration of the last query.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// After this time without progress, the command warns that perhaps no consumer is running.
const QUIET: Duration = Duration::from_secs(15);

/// Rebuilds the read model, and prints each step.
pub(in crate::commands) async fn refill(
    (connect, client): (&ConnectConfig, &mut SqlClient),
    (order, outbox): (&Rebuild, &OutboxRowsConfig),
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let reset = reset(order)?;
    check_outbox(outbox).await?;
    let rows =
        Box::pin(run_until_shutdown(outbox_row_check::check(outbox, &Wanted::all()), shutdown))
            .await?;
    if !agree(client, order, at_risk(order, &rows), shutdown).await? {
        let (rows, topic) = (rows.rows, &outbox.topic);
        return print(&format!("would publish {rows} row(s) to {topic} and apply them again\n"));
    }
    let refill = OutboxRebuild { order, reset: &reset, rows: &rows };
    refill.rebuild((connect, client), shutdown).await
}

/// Describes the rows that readers of the tables miss until the rebuild is done.
fn at_risk(order: &Rebuild, rows: &RowsToApply) -> Option<String> {
    let rows = rows.rows;
    order.reset_sql.as_ref().map(|_| {
        format!(
            "--reset-sql empties the tables first: until all {rows} row(s) are applied, who reads them finds a part"
        )
    })
}

/// A rebuild from the outbox.
struct OutboxRebuild<'a> {
    order: &'a Rebuild,
    reset: &'a str,
    rows: &'a RowsToApply,
}

/// The subscription of the refill, and the usual one that is read before and after.
struct Subscriptions {
    usual: String,
    refill: String,
}

impl OutboxRebuild<'_> {
    async fn rebuild(
        &self,
        (connect, client): (&ConnectConfig, &mut SqlClient),
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let names = Box::pin(run_until_shutdown(self.prepare(client), shutdown)).await?;
        let generation = self.begin((connect, client), &names, shutdown).await?;
        print(&format!("begun: generation {generation}, which reads {}\n", names.refill))?;
        failpoint::hit("refill-begun");
        let filled = async {
            let rows = Box::pin(publish(self.rows, shutdown)).await?;
            failpoint::hit("refill-published");
            run_until_shutdown(self.applied(client, generation, rows), shutdown).await
        };
        if let Err(error) = filled.await {
            tracing::warn!(
                "consumer {:?} reads {} until the same command has done all of it once more",
                self.order.name,
                names.refill
            );
            return Err(error);
        }
        let Subscriptions { usual, refill } = &names;
        let name = &self.order.name;
        if !admin::read_from(client, name, refill, usual).await.map_err(Error::Inbox)? {
            return Err(Error::Unfit {
                what: format!("consumer {name:?} does not read {refill} any more"),
                hint: "somebody else has moved it: look with `walrelay consumer status`",
            });
        }
        let place = ConsumerGeneration::find(client, Some(name)).await?;
        let unfinished = match place.decided(client).await?.unfinished {
            0 => String::new(),
            count => format!(
                "; {count} of them wait or are dead: `walrelay inbox list --consumer {name}`"
            ),
        };
        print(&format!(
            "every row is in the inbox{unfinished}\n\
             running instances read {usual} again within seconds. Then nobody reads {refill} any more: delete it and \
             its topic\n"
        ))
    }

    /// Refuses a refill that would be incomplete, and creates the subscription.
    async fn prepare(&self, client: &SqlClient) -> Result<Subscriptions, Error> {
        let Rebuild { name, endpoint, .. } = self.order;
        let status = consumer_status(client, name).await.map_err(Error::Inbox)?;
        if status.paused {
            return Err(Error::Unfit {
                what: format!("consumer {name:?} is paused"),
                hint: "resume it before: its instances apply the rows",
            });
        }
        let generation = i64::from(status.generation);
        let reads = admin::subscription(client, name).await.map_err(Error::Inbox)?;
        let names = Subscriptions::of(&reads, generation);
        let subscriber = Subscriber::connect(endpoint)?;
        let found = described(&subscriber, &names.usual).await?;
        if !found.filter.is_empty() {
            return Err(Error::Unfit {
                what: format!(
                    "{} has a filter, which rows of the outbox do not pass through",
                    names.usual
                ),
                hint: "rebuild with --into SCHEMA, which reads the outbox without a subscription",
            });
        }
        let mut wanted = successor(&found, &names.refill);
        wanted.topic.clone_from(&self.rows.refill.topic);
        wanted.dead_letter_policy = None;
        let is_new = subscriber.create_subscription(wanted).await?;
        let verb = if is_new { "created" } else { "already there" };
        print(&format!("{verb}: subscription {}\n", names.refill))?;
        Ok(names)
    }

    async fn begin(
        &self,
        (connect, client): (&ConnectConfig, &mut SqlClient),
        names: &Subscriptions,
        shutdown: &Shutdown,
    ) -> Result<i32, Error> {
        let pid = backend_pid(client).await?;
        let filling = Filling::Unfinished;
        let new = NewGeneration { subscription: &names.refill, reset: self.reset, filling };
        let beginning = begin(client, self.order, new);
        let error = match run_cancellable_in((connect, pid), beginning, shutdown).await {
            Ok(generation) => return Ok(generation),
            Err(error) => error,
        };
        match is_moved(connect, &self.order.name, &names.refill).await {
            // The transaction has committed, and its reply was lost.
            Ok(true) => self.generation(connect).await,
            Ok(false) | Err(_) => Err(error),
        }
    }

    async fn generation(&self, connect: &ConnectConfig) -> Result<i32, Error> {
        let now = connect_sql(connect).await?;
        let status = consumer_status(&now, &self.order.name).await;
        now.close().await;
        Ok(status.map_err(Error::Inbox)?.generation)
    }

    /// Waits until the inbox has this number of events.
    async fn applied(&self, client: &SqlClient, generation: i32, rows: u64) -> Result<(), Error> {
        let name = &self.order.name;
        let (mut seen, mut seen_at) = (0, Instant::now());
        loop {
            let began = Instant::now();
            let found = admin::received(client, name, generation).await.map_err(Error::Inbox)?;
            let Some(count) = found else {
                return Err(Error::Unfit {
                    what: format!("another generation of consumer {name:?} has begun meanwhile"),
                    hint: "one rebuild at a time: wait for the other one, or begin anew",
                });
            };
            if count >= rows {
                return Ok(());
            }
            if count > seen {
                (seen, seen_at) = (count, Instant::now());
            } else if seen_at.elapsed() >= QUIET {
                tracing::warn!(
                    count,
                    rows,
                    "nothing is applied: is `walrelay consumer run` running?"
                );
                seen_at = Instant::now();
            }
            sleep(LOOK_EVERY.max(began.elapsed() * 10)).await;
        }
    }
}

/// Publishes the rows of the outbox to the topic of the refill. Returns the number of rows that the
/// topic received.
async fn publish(to_apply: &RowsToApply, shutdown: &Shutdown) -> Result<u64, Error> {
    let RowsToApply { refill, left_out: rows_left_out, .. } = to_apply;
    let OutboxRowsConfig { settings, topic, aggregate_types, dead_rows } = refill;
    let matching = ColumnFilter { aggregate_types: aggregate_types.clone(), ..Default::default() };
    let order = ReplayOrder {
        source: OrderedSource::Table(OrderedTable::default()),
        destination: Destination::Topic { template: topic.clone(), rate: None },
        matching,
        dead_rows: *dead_rows,
    };
    let mut client = connect_sql(&settings.connect).await?;
    let published = async {
        let mut job = ReplayJob::plan(&client, settings, order).await?;
        job.left_out = Some(rows_left_out.clone());
        routes::refuse_missing(&client, settings, topic).await?;
        publish_for_rebuild(&mut client, settings, &mut job, shutdown).await
    };
    let published = Box::pin(published).await;
    client.close().await;
    let (rows, done) = published?;
    let left_out = left_out(done.refused);
    print(&format!("published: {} row(s) to {topic}\n{left_out}", done.published))?;
    Ok(rows)
}

/// Checks that the outbox has rows and that the topic exists, before anything is emptied.
async fn check_outbox(config: &OutboxRowsConfig) -> Result<(), Error> {
    let OutboxRowsConfig { settings, topic, .. } = config;
    let client = connect_sql(&settings.connect).await?;
    let checked = async {
        refuse_without_rows(&client, &settings.relay.outbox.tables).await?;
        Ok(routes::refuse_missing(&client, settings, topic).await?)
    };
    let checked = checked.await;
    client.close().await;
    checked
}

/// Refuses a database without outbox rows: it may be the consumer's database, whose outbox is
/// missing or unused.
async fn refuse_without_rows(client: &SqlClient, tables: &[QualifiedName]) -> Result<(), Error> {
    let failed = |source| SqlError::Sql { action: "look for rows".to_owned(), source };
    let replays = "SELECT to_regclass('public.app_outbox_replay') IS NOT NULL";
    let mut has_rows = false;
    refuse_hidden_rows(client, tables, TableAccess::Read).await?;
    if client.query_one(replays, &[]).await.map_err(failed)?.get(0) {
        for name in tables {
            let sql = format!("SELECT EXISTS (SELECT FROM {name})");
            has_rows |= client.query_one(&sql, &[]).await.map_err(failed)?.get::<_, bool>(0);
        }
    }
    match has_rows {
        true => Ok(()),
        false => Err(Error::Unfit {
            what: "the database has no outbox with rows to apply again".to_owned(),
            hint: "name the database that the outbox is in with --outbox-url; --database-url is the consumer's",
        }),
    }
}

impl Subscriptions {
    /// Returns the names: `billing` is refilled from `billing-refill-g2`. The suffix of an earlier
    /// attempt is replaced.
    fn of(reads: &str, generation: i64) -> Self {
        let usual = usual(reads, generation);
        let refill = format!("{usual}-refill-g{}", generation + 1);
        Self { usual: usual.to_owned(), refill }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_that_was_ended_does_not_change_what_is_read_afterwards() {
        for (reads, generation, refill) in
            [("billing", 1, "billing-refill-g2"), ("billing-refill-g2", 2, "billing-refill-g3")]
        {
            let names = Subscriptions::of(reads, generation);
            assert_eq!((names.usual.as_str(), names.refill.as_str()), ("billing", refill));
        }
    }
}
