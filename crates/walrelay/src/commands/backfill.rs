//! `walrelay replay start --source table`: publishes rows of the outbox table by version per aggregate, beside the
//! running relay. The rows go to another topic, or through dispatch state to their own topics.

use pgoutput_parser::{Lsn, PgTimestamp};
use walrelay_core::ColumnFilter;
use walrelay_errors::Chain;
use walrelay_outbox_admin::recovery::{ResumePoints, TableStreamServer, published_table, table};
use walrelay_outbox_admin::replay::{
    BACKFILL_END, BackfillRequest, BackfillServer, Beginning, Destination, Keeping, KeysSeen,
    Replay, Tally,
};
use walrelay_outbox_admin::{
    ReplayRow, Scope, SettledRows, SourceTable, UnsettledRows, begin_replay, give_up_replay,
    read_replay, take_replay,
};
use walrelay_outbox_store::{HistorySource, read_recorded_system_identifier};
use walrelay_pg_client::SqlError;
use walrelay_pg_client::{QualifiedName, SqlClient, TableAccess, connect_sql, refuse_hidden_rows};
use walrelay_relay::settings::Settings;
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::publisher::Publisher;

use super::rebuild::outbox_row_check::{LeftOut, RowsToApply};
use super::replay::in_place::InPlace;
use super::replay::{ReplayCaller, Run, record};
use super::shared::preconditions::refuse_other_shards;
use super::shared::topics;
use crate::config::{BackfillAction, BackfillConfig, BackfillOrder, OutboxRowsConfig};
use crate::error::Error;
use crate::output::print;

/// A backfill that is ready to start.
struct Prepared {
    id: String,
    request: BackfillRequest,
    keeping: Keeping,
    /// The position up to which every row is published, and the number of those rows.
    settled: (Lsn, u64),
    /// The row to write to `app_outbox_replay`, unless another process wrote it.
    row: Option<ReplayRow>,
    /// Rows that the backfill does not publish. Only a rebuild sets them.
    left_out: Option<LeftOut>,
}

impl Prepared {
    /// Returns whether another process started this backfill.
    fn is_resumed(&self) -> bool {
        self.keeping == Keeping::OnRecord && self.row.is_none()
    }
}

/// Runs the backfill to its end, or until it is interrupted.
///
/// # Errors
///
/// The table, column or backfill does not exist, a row cannot be published, or the backfill was
/// interrupted. After an interruption the error names the command that resumes the backfill.
pub async fn execute(config: BackfillConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let BackfillConfig { settings, action } = config;
    let mut client = connect_sql(&settings.connect).await?;
    let done = Box::pin(act(&mut client, settings, action, shutdown)).await;
    // The session must stay open until here: its lock keeps other processes from running the same
    // backfill.
    client.close().await;
    print(&done?)
}

async fn act(
    client: &mut SqlClient,
    settings: Settings,
    action: BackfillAction,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let prepared = match action {
        BackfillAction::Begin(order) => begin(client, &settings, order).await?,
        BackfillAction::Resume { id, dead_rows } => {
            let mut prepared = resume(client, &settings, id.clone()).await?;
            let now = &mut prepared.request.dead_rows;
            record::record_skip_dead(client, (&id, dead_rows), now).await?;
            prepared
        }
    };
    match prepared.request.destination.clone() {
        Destination::Topic(topic) => {
            let published = (prepared, topic.as_str(), ReplayCaller::Command("backfill"));
            to_topic(client, settings, published, shutdown).await.map(|(_, told)| told)
        }
        Destination::InPlace => in_place(client, &settings, &prepared, shutdown).await,
    }
}

fn in_place_of<'a>(settings: &'a Settings, id: &'a str) -> InPlace<'a> {
    InPlace { command: "backfill", settings, id }
}

/// Reads the table twice. The first pass collects the keys. The second pass reads the rows, once
/// the relay has paused those keys.
async fn in_place(
    client: &mut SqlClient,
    settings: &Settings,
    prepared: &Prepared,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let Prepared { id, request, keeping, row, .. } = prepared;
    let in_place = in_place_of(settings, id);
    if !prepared.is_resumed() {
        let (seen, tally) = (KeysSeen::default(), Tally::resumed(0, Lsn::ZERO));
        let beginning = Beginning::Marked(ResumePoints::default());
        let reading = Reading { request, keeping: Keeping::Nothing, beginning, tally: &tally };
        reading.read(client, (settings, id), seen.clone(), shutdown).await?;
        let (rows, keys) = (tally.published(), seen.keys());
        let Some(row) = row.as_ref().filter(|_| *keeping == Keeping::OnRecord && !keys.is_empty())
        else {
            return Ok(format!(
                "would publish {rows} row(s) of {} key(s) again; nothing was published\n",
                keys.len()
            ));
        };
        in_place.place(client, row, &keys).await?;
    }
    let holds = in_place.held(client, shutdown).await?;
    if holds.held > 0 {
        let snapshot = in_place.snapshot(client, shutdown).await?;
        let request = BackfillRequest { snapshot, ..request.clone() };
        let writer = in_place.writer(client, HistorySource::Table).await?;
        let tally = Tally::resumed(0, Lsn::ZERO);
        let beginning = Beginning::Anew(in_place.store());
        let reading =
            Reading { request: &request, keeping: Keeping::OnRecord, beginning, tally: &tally };
        reading.read(client, (settings, id), writer, shutdown).await?;
        in_place.lift(client).await?;
    }
    in_place.published(client, shutdown).await
}

/// One pass over the rows of the tables.
struct Reading<'a> {
    request: &'a BackfillRequest,
    keeping: Keeping,
    beginning: Beginning,
    tally: &'a Tally,
}

impl Reading<'_> {
    async fn read<P: Publisher + Sync>(
        self,
        client: &SqlClient,
        (settings, id): (&Settings, &str),
        publisher: P,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let Self { request, keeping, beginning, tally } = self;
        let replay = replay_of((id, Lsn::ZERO), request, keeping);
        let server = BackfillServer {
            settings,
            replay: &replay,
            gap: gap(request),
            tables: tables(client, settings, request).await?,
            tally: tally.clone(),
            beginning,
            serving: TableStreamServer::default(),
        };
        let by = ReplayCaller::Command("backfill");
        let run = Run { by, settings, replay: &replay, rate: None, tally };
        let read = Box::pin(run.sessions(server, Some(publisher), shutdown)).await;
        run.ended(read)
    }
}

fn replay_of((id, start): (&str, Lsn), request: &BackfillRequest, keeping: Keeping) -> Replay {
    Replay {
        id: id.to_owned(),
        anchor_slot: String::new(),
        selection: BackfillRequest::selection(),
        start,
        goal: BACKFILL_END,
        dead_rows: request.dead_rows,
        keeping,
    }
}

async fn to_topic(
    client: &SqlClient,
    mut settings: Settings,
    (prepared, topic, by): (Prepared, &str, ReplayCaller),
    shutdown: &Shutdown,
) -> Result<(u64, String), Error> {
    settings.relay.router.topic = topics::template(topic)?;
    let settings = &settings;
    let Prepared { id, request, keeping, settled: (start, before), .. } = &prepared;
    let gap = gap(request);
    let mut tables = tables(client, settings, request).await?;
    if let Some(left_out) = &prepared.left_out {
        tables = tables.into_iter().map(|table| left_out.of(table)).collect();
    }
    let mut rows = 0;
    for one in &tables {
        rows += gap.count(client, one).await?;
    }
    match by {
        ReplayCaller::Command(_) => tracing::info!(id, rows, "backfill begins"),
        ReplayCaller::Step => tracing::info!(rows, topic, "publishing the rows of the outbox"),
    }
    let replay = replay_of((id, *start), request, *keeping);
    let tally = Tally::resumed(*before, *start);
    let server = BackfillServer {
        settings,
        replay: &replay,
        gap,
        tables,
        tally: tally.clone(),
        beginning: Beginning::Marked(ResumePoints::from(request.resumption.clone())),
        serving: TableStreamServer::default(),
    };
    let run = Run { by, settings, replay: &replay, rate: request.rate, tally: &tally };
    Box::pin(run.run_to_completion(server, shutdown)).await?;
    // No consumer receives the rows that were left out.
    Ok((rows.saturating_sub(tally.left_out()), summary((&prepared, topic, by), &tally)))
}

/// Publishes rows to a topic for another command, and returns how many rows the topic received.
///
/// # Errors
///
/// Returns the errors of [`execute`].
pub(super) async fn refill(to_apply: &RowsToApply, shutdown: &Shutdown) -> Result<u64, Error> {
    let RowsToApply { refill, left_out, .. } = to_apply;
    let OutboxRowsConfig { settings, topic, aggregate_types, dead_rows } = refill.clone();
    let order = BackfillOrder {
        since: None,
        matching: ColumnFilter { aggregate_types, ..ColumnFilter::default() },
        event_ids: Vec::new(),
        destination: Destination::Topic(topic.clone()),
        order_by: Vec::new(),
        rate: None,
        dead_rows,
        keeping: Keeping::OnRecord,
    };
    let client = connect_sql(&settings.connect).await?;
    let publish = async {
        let mut prepared = begin(&client, &settings, order).await?;
        prepared.left_out = Some(left_out.clone());
        let id = prepared.id.clone();
        let done =
            to_topic(&client, settings, (prepared, &topic, ReplayCaller::Step), shutdown).await;
        if done.is_err() {
            give_up(&client, &id).await;
        }
        done
    };
    let done = Box::pin(publish).await;
    client.close().await;
    let (rows, told) = done?;
    print(&told)?;
    Ok(rows)
}

/// Abandons the backfill. A rebuild always starts again from scratch, so nobody would resume this
/// backfill, and an unfinished backfill keeps `prune` from deleting outbox rows.
async fn give_up(client: &SqlClient, id: &str) {
    let given_up = async {
        let rows = read_replay(client, id).await?.map_or(0, |row| row.rows);
        give_up_replay(client, id, rows).await
    };
    if let Err(error) = given_up.await {
        let error = Chain(&error);
        tracing::warn!(%error, "to be given up by hand: walrelay replay cancel {id}");
    }
}

/// Checks that the outbox has rows and that the topic exists, before the caller empties the read
/// model.
///
/// # Errors
///
/// The outbox has no rows, the topic does not exist, or Postgres or Pub/Sub cannot be reached.
pub(super) async fn check_refill(config: &OutboxRowsConfig) -> Result<(), Error> {
    let OutboxRowsConfig { settings, topic, .. } = config;
    let client = connect_sql(&settings.connect).await?;
    let look = async {
        refuse_without_rows(&client, &settings.relay.outbox.tables).await?;
        topics::refuse_missing(&client, settings, topic).await
    };
    let found = look.await;
    client.close().await;
    found
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

fn gap(request: &BackfillRequest) -> UnsettledRows {
    let ColumnFilter { aggregate_types, aggregate_ids, .. } = request.matching.clone();
    let settled = request.since.map_or(SettledRows::None, SettledRows::Before);
    let event_ids = request.event_ids.clone();
    let scope = Scope { aggregate_types, aggregate_ids, event_ids, from: None };
    UnsettledRows { snapshot: request.snapshot.clone(), settled, scope }
}

/// Returns the outbox tables with the requested order within an aggregate. In place, a shard reads
/// only its own rows, because only that shard's dispatch state orders them with the live rows of
/// their keys.
async fn tables(
    client: &SqlClient,
    settings: &Settings,
    BackfillRequest { destination, order_by, .. }: &BackfillRequest,
) -> Result<Vec<SourceTable>, Error> {
    let (outbox, columns) = (&settings.relay.outbox, &settings.relay.router.columns);
    let mut tables = Vec::new();
    for name in &outbox.tables {
        let mut found = match destination {
            Destination::Topic(_) => table(client, name, columns).await?,
            Destination::InPlace => published_table(client, (outbox, name), columns).await?,
        };
        if let Some(missing) = order_by.iter().find(|one| found.column(Some(one)).is_none()) {
            return Err(Error::Unfit {
                what: format!("{name} has no column {missing:?} to order by"),
                hint: "name columns of the table with --order-by, or none: then it is version, time and id",
            });
        }
        if !order_by.is_empty() {
            found.order.clone_from(order_by);
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
    let slot = slot_of(settings, &order.destination);
    refuse_hidden_rows(client, &settings.relay.outbox.tables, TableAccess::Read).await?;
    if order.destination == Destination::InPlace {
        refuse_other_shards(client, &settings.relay.outbox).await?;
    }
    let snapshot = client
        .query_typed_one("SELECT pg_current_snapshot()::text AS snapshot", &[])
        .await
        .map_err(|source| SqlError::Sql { action: "take a snapshot".to_owned(), source })?;
    let keeping = order.keeping;
    let BackfillOrder {
        since, matching, event_ids, destination, order_by, rate, dead_rows, ..
    } = order;
    let request = BackfillRequest {
        destination,
        snapshot: snapshot.get("snapshot"),
        since: since.map(PgTimestamp::from_system_time),
        matching,
        event_ids,
        order_by,
        rate,
        dead_rows,
        resumption: None,
    };
    let id = record::new_id();
    let mut row = None;
    if keeping == Keeping::OnRecord {
        row = Some(ReplayRow {
            id: id.clone(),
            slot: slot.to_owned(),
            anchor: String::new(),
            system_identifier: read_recorded_system_identifier(client, slot).await?,
            request: request.to_json(),
            from: Lsn::ZERO,
            to: BACKFILL_END,
            settled: Lsn::ZERO,
            rows: 0,
            end: None,
        });
    }
    if let (Destination::Topic(topic), Some(row)) = (&request.destination, &row) {
        topics::refuse_missing(client, settings, topic).await?;
        take_replay(client, &id).await?;
        begin_replay(client, row).await?;
    }
    Ok(Prepared { id, request, keeping, settled: (Lsn::ZERO, 0), row, left_out: None })
}

/// Returns the slot that the backfill is recorded under. To another topic, one backfill reads the
/// rows of all shards. In place, a backfill pauses keys in the dispatch state of one slot.
fn slot_of<'a>(settings: &'a Settings, destination: &Destination) -> &'a str {
    match destination {
        Destination::Topic(_) => settings.relay.outbox.base_slot(),
        Destination::InPlace => &settings.relay.outbox.slot,
    }
}

async fn resume(client: &SqlClient, settings: &Settings, id: String) -> Result<Prepared, Error> {
    let outbox = &settings.relay.outbox;
    let slot = outbox.slot.as_str();
    let slots = [outbox.base_slot(), slot];
    let unfit = |what, hint| Error::Unfit { what, hint };
    let row = record::take_up(client, ("backfill", &id), (slot, &slots)).await?;
    if row.system_identifier != read_recorded_system_identifier(client, slot).await? {
        let what = format!(
            "backfill {id} was begun on another server, whose transaction ids may mean nothing here"
        );
        return Err(unfit(what, "begin a new one"));
    }
    let request = BackfillRequest::from_json(&row.request)
        .map_err(|error| unfit(error.to_string(), "begin a new one"))?;
    if let Destination::Topic(topic) = &request.destination {
        topics::refuse_missing(client, settings, topic).await?;
    }
    let (keeping, settled) = (Keeping::OnRecord, (row.settled, row.rows));
    Ok(Prepared { id, request, keeping, settled, row: None, left_out: None })
}

fn summary((prepared, topic, by): (&Prepared, &str, ReplayCaller), tally: &Tally) -> String {
    let Prepared { id, keeping, .. } = prepared;
    let rows = tally.published();
    let left_out = record::left_out(tally);
    match (keeping, by) {
        (Keeping::Nothing, _) => {
            format!("would publish {rows} row(s); nothing was published\n{left_out}")
        }
        (Keeping::OnRecord, ReplayCaller::Command(_)) => {
            let copies = record::COPIES;
            format!("backfill {id}: {rows} row(s) are in {topic}\n{left_out}{copies}")
        }
        (Keeping::OnRecord, ReplayCaller::Step) => {
            format!("published: {rows} row(s) to {topic}\n{left_out}")
        }
    }
}
