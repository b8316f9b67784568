//! Applies a batch step by step, as `app_inbox_apply` does inside the server: take, run, settle,
//! commit. Used for handlers in Rust, and for events whose handler times out. A cancelled statement
//! cannot catch its own cancellation.

use std::sync::Arc;

use tokio::time::timeout;
use tokio_postgres::types::Type;
use tokio_postgres::{IsolationLevel, Transaction};
use walrelay_pg_client::{Parameter, SCHEMA, sql};

use crate::apply::apply_batch::{Applied, Connection, exchange_timeout, settings};
use crate::apply::apply_error::ApplyError;
use crate::apply::apply_options::{Plan, VERSION_GAP};
use crate::apply::handler::{AnyHandler, RunError, Verdict};
use crate::columns::{Columns, FIELDS, MESSAGES, borrowed, of_row};
use crate::event::Event;
use crate::settings::OnGap;

/// The source of an event: this batch, or the inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Subscription,
    Inbox,
}

impl Connection {
    /// Applies a batch and commits. Returns a result for each event only if the commit is known
    /// (C2).
    pub(crate) async fn apply_with(
        &mut self,
        handler: &dyn AnyHandler,
        plan: &Plan,
        events: &[Arc<Event>],
    ) -> Result<Vec<Applied>, ApplyError> {
        self.in_transaction(plan, async |transaction| {
            let mut applied = take(transaction, plan, events).await?;
            let chosen: Vec<usize> = (0..events.len()).filter(|i| applied[*i].is_new()).collect();
            let batch: Vec<Event> = chosen.iter().map(|i| Event::clone(&events[*i])).collect();
            let verdicts = judge(handler, transaction, plan, &batch, From::Subscription).await?;
            let settling =
                VerdictWriter { events: &batch, verdicts: &verdicts, from: From::Subscription };
            for (index, settled) in settling.settle(transaction, plan).await? {
                applied[chosen[index]] = settled;
            }
            Ok(applied)
        })
        .await
    }

    pub(crate) async fn redeliver_with(
        &mut self,
        handler: &dyn AnyHandler,
        plan: &Plan,
        limit: i32,
    ) -> Result<Vec<Applied>, ApplyError> {
        self.in_transaction(plan, async |transaction| {
            let events = take_due(transaction, plan, limit).await?;
            let verdicts = judge(handler, transaction, plan, &events, From::Inbox).await?;
            let settling =
                VerdictWriter { events: &events, verdicts: &verdicts, from: From::Inbox };
            let settled = settling.settle(transaction, plan).await?;
            Ok(named(&events, settled))
        })
        .await
    }

    /// Stores an event as failed without running its handler, because the event alone did not end
    /// in time.
    pub(crate) async fn refuse(
        &mut self,
        plan: &Plan,
        event: &Arc<Event>,
        cause: &ApplyError,
    ) -> Result<Vec<Applied>, ApplyError> {
        let verdicts = [cause.verdict()];
        self.in_transaction(plan, async |transaction| {
            let events = [Event::clone(event)];
            let mut applied = take(transaction, plan, &events).await?;
            if applied.iter().all(Applied::is_new) {
                let settling = VerdictWriter {
                    events: &events,
                    verdicts: &verdicts,
                    from: From::Subscription,
                };
                let settled = settling.settle(transaction, plan).await?;
                applied = settled.into_iter().map(|(_, settled)| settled).collect();
            }
            Ok(applied)
        })
        .await
    }

    /// Stores the event that is due first as failed, without running its handler.
    pub(crate) async fn refuse_due(
        &mut self,
        plan: &Plan,
        cause: &ApplyError,
    ) -> Result<Vec<Applied>, ApplyError> {
        self.in_transaction(plan, async |transaction| {
            let events = take_due(transaction, plan, 1).await?;
            let verdicts: Vec<Verdict> = events.iter().map(|_| cause.verdict()).collect();
            let settling =
                VerdictWriter { events: &events, verdicts: &verdicts, from: From::Inbox };
            let settled = settling.settle(transaction, plan).await?;
            Ok(named(&events, settled))
        })
        .await
    }

    async fn in_transaction<T>(
        &mut self,
        plan: &Plan,
        work: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<T, RunError>,
    ) -> Result<T, ApplyError> {
        let client = self.client().await?;
        let builder = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
        let exchange = async {
            let mut transaction = builder.start().await?;
            transaction.batch_execute(&settings(plan)).await?;
            // On a failure, dropping the transaction rolls it back.
            let done = work(&mut transaction).await?;
            transaction.commit().await?;
            Ok(done)
        };
        let ended = timeout(exchange_timeout(plan), exchange).await;
        let is_closed = client.is_closed();
        let done = match ended {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(RunError::Sql(error))) => Err(ApplyError::Sql(error)),
            Ok(Err(RunError::Handler(error, failure))) => Err(ApplyError::Handler(error, failure)),
            Ok(Err(RunError::Overdue)) => Err(ApplyError::Overdue),
            Err(_) => Err(ApplyError::Silent),
        };
        // A statement of an abandoned handler may still run on this connection.
        if is_closed || matches!(done, Err(ApplyError::Overdue | ApplyError::Silent)) {
            self.forget();
        }
        if done.as_ref().is_err_and(ApplyError::is_read_only) {
            self.leave().await;
        }
        done
    }
}

/// Adds the event's id to each result.
fn named(events: &[Event], settled: Vec<(usize, Applied)>) -> Vec<Applied> {
    let named = settled.into_iter().map(|(i, it)| {
        let Event { event_id, event_type, .. } = &events[i];
        it.stored(event_id.clone(), event_type.clone())
    });
    named.collect()
}

/// Runs the handler over the events whose earlier versions are present.
async fn judge(
    handler: &dyn AnyHandler,
    transaction: &mut Transaction<'_>,
    plan: &Plan,
    events: &[Event],
    from: From,
) -> Result<Vec<Verdict>, RunError> {
    let mut verdicts = match plan.on_gap {
        OnGap::Accept => vec![None; events.len()],
        OnGap::Hold => gaps(transaction, plan, events, from).await?,
    };
    let chosen: Vec<usize> = (0..events.len()).filter(|i| verdicts[*i].is_none()).collect();
    let batch: Vec<Event> = chosen.iter().map(|i| events[*i].clone()).collect();
    let settings = settings(plan);
    let found = handler.run(plan.handler_timeout, &settings, transaction, &batch).await?;
    let found = match from {
        From::Subscription => found.unless_all_fail(),
        // The event failed before while others passed, or it would not be stored.
        From::Inbox => Ok(found.verdicts),
    }?;
    let has_unapplied = found.iter().any(|verdict| *verdict != Verdict::Applied);
    let has_gap = chosen.len() < events.len();
    chosen.into_iter().zip(found).for_each(|(i, verdict)| verdicts[i] = Some(verdict));
    let verdicts = verdicts.into_iter().map(|verdict| verdict.unwrap_or(Verdict::Deferred));
    let verdicts = verdicts.collect();
    if has_gap && has_unapplied {
        return behind(transaction, plan, events, verdicts).await;
    }
    Ok(verdicts)
}

/// Corrects the verdicts of events with a missing version that are queued behind an unapplied event
/// of their key.
async fn behind(
    transaction: &Transaction<'_>,
    plan: &Plan,
    events: &[Event],
    verdicts: Vec<Verdict>,
) -> Result<Vec<Verdict>, RunError> {
    let gap = |verdict: &Verdict| matches!(verdict, Verdict::TooSoon { .. }).then_some("gap");
    let gaps: Vec<Option<&str>> = verdicts.iter().map(gap).collect();
    let outcomes: Vec<&str> = verdicts.iter().map(Verdict::name).collect();
    let columns = Columns::of(events);
    let mut parameters = columns.parameters(plan);
    parameters.push((Box::new(gaps), Type::TEXT_ARRAY));
    parameters.push((Box::new(outcomes), Type::TEXT_ARRAY));
    let sql = format!("SELECT {SCHEMA}.app_inbox_gaps_behind({MESSAGES}, $18, $19)");
    let row = transaction.query_typed(&sql, &borrowed(&parameters)).await?;
    let judged: Vec<String> = row.first().map(|row| row.get(0)).unwrap_or_default();
    let verdict = |(verdict, outcome): (Verdict, String)| match (verdict, &*outcome) {
        (Verdict::TooSoon { .. }, "deferred") => Verdict::Deferred,
        (Verdict::TooSoon { text, .. }, "held") => Verdict::TooSoon { name: "held", text },
        (other, _) => other,
    };
    Ok(verdicts.into_iter().zip(judged).map(verdict).collect())
}

/// Returns a verdict for each event whose key lacks an earlier version.
async fn gaps(
    transaction: &Transaction<'_>,
    plan: &Plan,
    events: &[Event],
    from: From,
) -> Result<Vec<Option<Verdict>>, RunError> {
    let columns = Columns::of(events);
    let mut parameters = columns.parameters(plan);
    parameters.push((Box::new(from == From::Inbox), Type::BOOL));
    parameters.push((Box::new(plan.on_dead.name()), Type::TEXT));
    parameters.push((Box::new(plan.max_attempts), Type::INT4));
    // spliced: MESSAGES.
    let sql = format!(
        "SELECT outcomes, reasons FROM {SCHEMA}.app_inbox_gaps( \
           $1, $2, {MESSAGES}, $18, on_dead => $19, max_attempts => $20)"
    );
    let row = transaction.query_typed(&sql, &borrowed(&parameters)).await?;
    let (outcomes, reasons): (Vec<Option<&str>>, Vec<Option<String>>) =
        row.first().map(|row| (row.get(0), row.get(1))).unwrap_or_default();
    let verdict = |(outcome, reason): (Option<&str>, Option<String>)| {
        let name = if outcome? == "failed" { "failed" } else { "held" };
        Some(Verdict::TooSoon { name, text: reason? })
    };
    Ok(outcomes.into_iter().zip(reasons).map(verdict).collect())
}

async fn take<E: std::borrow::Borrow<Event>>(
    transaction: &Transaction<'_>,
    plan: &Plan,
    events: &[E],
) -> Result<Vec<Applied>, RunError> {
    let columns = Columns::of(events);
    let mut parameters = columns.parameters(plan);
    parameters.push((Box::new(plan.dedupe.name()), Type::TEXT));
    let sql = format!("SELECT {SCHEMA}.app_inbox_take($1, $2, {MESSAGES}, dedupe => $18)");
    let rows = transaction.query_typed(&sql, &borrowed(&parameters)).await?;
    let results: Vec<String> = rows.first().map(|row| row.get(0)).unwrap_or_default();
    Ok(results.iter().map(|result| Applied::of(result, None)).collect())
}

async fn take_due(
    transaction: &Transaction<'_>,
    plan: &Plan,
    limit: i32,
) -> Result<Vec<Event>, RunError> {
    let sql = format!(
        "SELECT {FIELDS} FROM unnest({SCHEMA}.app_inbox_take_due($1, $2, $3, on_gap => $4)) AS m"
    );
    let on_gap = plan.on_gap.name();
    let parameters: [Parameter<'_>; 4] = [
        (&plan.consumer, Type::TEXT),
        (&plan.generation, Type::INT4),
        (&limit, Type::INT4),
        (&on_gap, Type::TEXT),
    ];
    let rows = transaction.query_typed(&sql, &parameters).await?;
    Ok(rows.iter().map(of_row).collect())
}

/// The verdicts on events, before they are written.
struct VerdictWriter<'a> {
    events: &'a [Event],
    verdicts: &'a [Verdict],
    from: From,
}

impl VerdictWriter<'_> {
    /// Writes the verdicts. Returns the changed rows by the event's index, without rows that stay
    /// as they were taken.
    async fn settle(
        &self,
        transaction: &Transaction<'_>,
        plan: &Plan,
    ) -> Result<Vec<(usize, Applied)>, RunError> {
        let is_final =
            |index: &usize| matches!(self.verdicts[*index], Verdict::Failed { is_final: true, .. });
        let (last, rest): (Vec<usize>, Vec<usize>) = (0..self.events.len()).partition(is_final);
        let mut settled = Vec::new();
        // An event that can never succeed is dead at its first attempt. It is written before the
        // events queued behind it.
        for (chosen, max_attempts) in [(last, 1), (rest, plan.max_attempts)] {
            if !chosen.is_empty() {
                let results = self.write(transaction, plan, &chosen, max_attempts).await?;
                settled
                    .extend(chosen.into_iter().zip(results).filter_map(|(i, it)| Some((i, it?))));
            }
        }
        self.put_off(transaction, plan).await?;
        Ok(settled)
    }

    /// Moves the next attempt of events whose receiver asked for time.
    async fn put_off(&self, transaction: &Transaction<'_>, plan: &Plan) -> Result<(), RunError> {
        for (event, verdict) in self.events.iter().zip(self.verdicts) {
            let Verdict::Failed { retry_after: Some(wait), .. } = verdict else { continue };
            let seconds = wait.as_secs_f64();
            let parameters: [Parameter<'_>; 4] = [
                (&plan.consumer, Type::TEXT),
                (&plan.generation, Type::INT4),
                (&event.event_id, Type::TEXT),
                (&seconds, Type::FLOAT8),
            ];
            transaction.query_typed(sql!("apply_batch.sql", "put_off"), &parameters).await?;
        }
        Ok(())
    }

    async fn write(
        &self,
        transaction: &Transaction<'_>,
        plan: &Plan,
        chosen: &[usize],
        max_attempts: i32,
    ) -> Result<Vec<Option<Applied>>, RunError> {
        let events: Vec<&Event> = chosen.iter().map(|index| &self.events[*index]).collect();
        let columns = Columns::of(&events);
        let mut parameters = columns.parameters(plan);
        let outcomes: Vec<&str> = chosen.iter().map(|index| self.verdicts[*index].name()).collect();
        let failure = |index: &usize| match &self.verdicts[*index] {
            Verdict::Failed { code, text, .. } => (Some(code.clone()), Some(text.as_str())),
            Verdict::TooSoon { text, .. } => (Some(VERSION_GAP.to_owned()), Some(text.as_str())),
            Verdict::Applied | Verdict::Held | Verdict::Deferred => (None, None),
        };
        let (codes, texts): (Vec<Option<String>>, Vec<Option<&str>>) =
            chosen.iter().map(failure).unzip();
        parameters.push((Box::new(outcomes), Type::TEXT_ARRAY));
        parameters.push((Box::new(codes.clone()), Type::TEXT_ARRAY));
        parameters.push((Box::new(texts), Type::TEXT_ARRAY));
        parameters.push((Box::new(self.from == From::Inbox), Type::BOOL));
        parameters.push((Box::new(plan.on_dead.name()), Type::TEXT));
        parameters.push((Box::new(max_attempts), Type::INT4));
        // spliced: MESSAGES.
        let sql = format!(
            "SELECT {SCHEMA}.app_inbox_settle( \
               $1, $2, {MESSAGES}, $18, $19, $20, $21, on_dead => $22, max_attempts => $23)"
        );
        let rows = transaction.query_typed(&sql, &borrowed(&parameters)).await?;
        let results: Vec<Option<String>> = rows.first().map(|row| row.get(0)).unwrap_or_default();
        let settled = results.into_iter().zip(codes);
        let settled = settled.map(|(result, error_code)| Some(Applied::of(&result?, error_code)));
        Ok(settled.collect())
    }
}
