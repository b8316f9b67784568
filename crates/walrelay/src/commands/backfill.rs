//! `walrelay backfill`: rows of the table to another topic, by version per aggregate, beside the running relay.

use pgoutput_parser::{Lsn, PgTimestamp};
use walrelay_core::Matching;
use walrelay_postgres::{
    Gap, GapTable, ReplayRow, Scope, SettledRows, SqlClient, StoreError, begin_replay, connect_sql,
    read_history, read_replay, take_replay,
};
use walrelay_relay::recovery::{Marks, Serving, table};
use walrelay_relay::replay::{BACKFILL_END, Keeping, Replay, RowsRequest, TableRows, Tally};
use walrelay_relay::seed::random_seed;
use walrelay_relay::settings::Settings;
use walrelay_relay::shutdown::Shutdown;

use super::replay::Run;
use super::topics;
use crate::config::{BackfillAction, BackfillConfig, BackfillOrder};
use crate::error::Error;
use crate::output::print;

/// A backfill that can begin.
struct Prepared {
    id: String,
    request: RowsRequest,
    keeping: Keeping,
    /// Everything before is published, with so many rows.
    settled: (Lsn, u64),
}

/// Backfills to the end, or until it is interrupted.
///
/// # Errors
///
/// There is no such table, column or backfill, a row cannot be published, or it was interrupted; then the
/// error says how to go on.
pub async fn execute(config: BackfillConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let BackfillConfig { mut settings, action } = config;
    let client = connect_sql(&settings.connect).await?;
    let prepared = match action {
        BackfillAction::Begin(order) => begin(&client, &settings, order).await,
        BackfillAction::Resume { id } => resume(&client, &settings, id).await,
    };
    let done = match prepared {
        Ok(prepared) => {
            settings.relay.router.topic = topics::template(&prepared.request.to_topic)?;
            Box::pin(publish(&client, &settings, &prepared, shutdown)).await
        }
        Err(error) => Err(error),
    };
    // Until here, because it is what keeps another process from doing the same backfill.
    client.close().await;
    print(&done?)
}

async fn publish(
    client: &SqlClient,
    settings: &Settings,
    prepared: &Prepared,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let Prepared { id, request, keeping, settled: (start, before) } = prepared;
    let gap = gap(request);
    let tables = tables(client, settings, &request.order_by).await?;
    let mut rows = 0;
    for one in &tables {
        rows += gap.count(client, one).await?;
    }
    tracing::info!(id, rows, "backfill begins");
    let replay = Replay {
        id: id.clone(),
        anchor_slot: String::new(),
        selection: RowsRequest::selection(),
        start: *start,
        goal: BACKFILL_END,
        dead_rows: request.dead_rows,
        keeping: *keeping,
    };
    let tally = Tally::resumed(*before, *start);
    let server = TableRows {
        settings,
        replay: &replay,
        gap,
        tables,
        tally: tally.clone(),
        marks: Marks::from(request.resumption.clone()),
        serving: Serving::default(),
    };
    let run =
        Run { command: "backfill", settings, replay: &replay, rate: request.rate, tally: &tally };
    Box::pin(run.to_the_end(server, shutdown)).await?;
    Ok(summary(prepared, &tally))
}

fn gap(request: &RowsRequest) -> Gap {
    let Matching { aggregate_types, aggregate_ids, .. } = request.matching.clone();
    let settled = request.since.map_or(SettledRows::None, SettledRows::Before);
    let scope = Scope { aggregate_types, aggregate_ids, from: None };
    Gap { snapshot: request.snapshot.clone(), settled, scope }
}

/// The outbox tables, with the order within an aggregate that was asked for.
async fn tables(
    client: &SqlClient,
    settings: &Settings,
    order_by: &[String],
) -> Result<Vec<GapTable>, Error> {
    let mut tables = Vec::new();
    for name in &settings.relay.outbox.tables {
        let mut found = table(client, name, &settings.relay.router.columns).await?;
        if let Some(missing) = order_by.iter().find(|one| found.column(Some(one)).is_none()) {
            return Err(Error::Unfit {
                what: format!("{name} has no column {missing:?} to order by"),
                hint: "name columns of the table with --order-by, or none: then it is version, time and id",
            });
        }
        if !order_by.is_empty() {
            found.order = order_by.to_vec();
        }
        tables.push(found);
    }
    Ok(tables)
}

async fn begin(
    client: &SqlClient,
    settings: &Settings,
    order: BackfillOrder,
) -> Result<Prepared, Error> {
    let slot = settings.relay.outbox.base_slot();
    let snapshot = client
        .query_typed_one("SELECT pg_current_snapshot()::text AS snapshot", &[])
        .await
        .map_err(|source| StoreError::Sql { action: "take a snapshot".to_owned(), source })?;
    let BackfillOrder { since, matching, to_topic, order_by, rate, dead_rows, keeping } = order;
    let request = RowsRequest {
        to_topic,
        snapshot: snapshot.get("snapshot"),
        since: since.map(PgTimestamp::from_system_time),
        matching,
        order_by,
        rate,
        dead_rows,
        resumption: None,
    };
    let id = format!("{:08x}", random_seed() & u64::from(u32::MAX));
    if keeping == Keeping::OnRecord {
        topics::refuse_missing(client, settings, &request.to_topic).await?;
        let row = ReplayRow {
            id: id.clone(),
            slot: slot.to_owned(),
            anchor: String::new(),
            system_identifier: read_history(client, slot).await?,
            request: request.to_json(),
            from: Lsn::ZERO,
            to: BACKFILL_END,
            settled: Lsn::ZERO,
            rows: 0,
            is_finished: false,
        };
        take_replay(client, &id).await?;
        begin_replay(client, &row).await?;
    }
    Ok(Prepared { id, request, keeping, settled: (Lsn::ZERO, 0) })
}

async fn resume(client: &SqlClient, settings: &Settings, id: String) -> Result<Prepared, Error> {
    let slot = settings.relay.outbox.base_slot();
    let unfit = |what, hint| Error::Unfit { what, hint };
    // Before the row is read: whoever had it until now may have come further.
    if !take_replay(client, &id).await? {
        return Err(Error::ReplayTaken { id });
    }
    let Some(row) = read_replay(client, &id).await?.filter(|row| row.slot == slot) else {
        let what = format!("slot {slot:?} has no backfill {id:?}");
        return Err(unfit(what, "the id stands in the line that told how to go on"));
    };
    if row.is_finished {
        let what = format!("backfill {id} is done: {} row(s) were published", row.rows);
        return Err(unfit(what, "begin a new one"));
    }
    if row.system_identifier != read_history(client, slot).await? {
        let what = format!(
            "backfill {id} was begun on another server, whose transaction ids may mean nothing here"
        );
        return Err(unfit(what, "begin a new one"));
    }
    let request = RowsRequest::from_json(&row.request).map_err(|_| {
        unfit(
            format!("{id} is a replay of the log, not a backfill"),
            "take it up with `walrelay replay --resume`",
        )
    })?;
    topics::refuse_missing(client, settings, &request.to_topic).await?;
    Ok(Prepared { id, request, keeping: Keeping::OnRecord, settled: (row.settled, row.rows) })
}

fn summary(prepared: &Prepared, tally: &Tally) -> String {
    let Prepared { id, request, keeping, .. } = prepared;
    let rows = tally.published();
    let left_out = match tally.left_out() {
        0 => String::new(),
        dead => {
            format!("left out: {dead} row(s) that Pub/Sub would never take, named in the log\n")
        }
    };
    match keeping {
        Keeping::Nothing => {
            format!("would publish {rows} row(s); nothing was published\n{left_out}")
        }
        Keeping::OnRecord => {
            format!("backfill {id}: {rows} row(s) are in {}\n{left_out}", request.to_topic)
        }
    }
}
