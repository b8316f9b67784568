//! `walrelay replay`: the rows behind an anchor once more, into another topic, beside the running relay.

mod progress;

use std::time::Duration;

use pgoutput_parser::{Lsn, PgTimestamp};
use walrelay_core::Random;
use walrelay_postgres::{
    Anchor, ReplayRow, SqlClient, StoreError, begin_replay, connect_sql, finish_replay,
    first_position_after, read_anchor, read_anchors, read_history, read_replay, read_wal_end,
    take_replay,
};
use walrelay_pubsub::GrpcPublisher;
use walrelay_relay::lifecycle::server::Server;
use walrelay_relay::lifecycle::supervisor::Supervisor;
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::observe::report::rfc3339;
use walrelay_relay::replay::{AnchorCopy, Keeping, Paced, Rate, Replay, Request, Tally};
use walrelay_relay::seed::random_seed;
use walrelay_relay::settings::Settings;
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::mode::Ended;

use super::before::{at_time, refuse_other_shards};
use super::topics;
use crate::config::{Place, ReplayAction, ReplayConfig, ReplayOrder};
use crate::error::Error;
use crate::output::print;

/// A replay that can begin.
struct Prepared {
    replay: Replay,
    request: Request,
    tally: Tally,
}

/// Replays to the end, or until it is interrupted.
///
/// # Errors
///
/// There is no such anchor or replay, a row cannot be published, or it was interrupted; then the error
/// says how to go on.
pub async fn execute(config: ReplayConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let ReplayConfig { mut settings, action } = config;
    let client = connect_sql(&settings.connect).await?;
    let prepared = async {
        refuse_other_shards(&client, &settings.relay.outbox).await?;
        match action {
            ReplayAction::Begin(order) => begin(&client, &settings, order).await,
            ReplayAction::Resume { id } => resume(&client, &settings, id).await,
        }
    };
    let prepared = match prepared.await {
        Ok(prepared) => prepared,
        Err(error) => {
            client.close().await;
            return Err(error);
        }
    };
    settings.relay.router.topic = topics::template(&prepared.request.to_topic)?;
    let Prepared { replay, request, tally } = &prepared;
    let server = AnchorCopy { settings: &settings, replay, tally: tally.clone() };
    let run = Run { command: "replay", settings: &settings, replay, rate: request.rate, tally };
    let done = Box::pin(run.to_the_end(server, shutdown)).await;
    // Until here, because it is what keeps another process from doing the same replay.
    client.close().await;
    done?;
    print(&summary(replay, request, tally))
}

/// A replay that is ready to be published, from whatever source.
pub(super) struct Run<'a> {
    /// What it is taken up again with.
    pub(super) command: &'static str,
    pub(super) settings: &'a Settings,
    pub(super) replay: &'a Replay,
    pub(super) rate: Option<Rate>,
    pub(super) tally: &'a Tally,
}

impl Run<'_> {
    /// Publishes it, and notes that it is done; interrupted, tells how to go on.
    pub(super) async fn to_the_end<C: Server>(
        &self,
        server: C,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let Self { command, settings, replay, tally, .. } = self;
        let is_kept = replay.keeping == Keeping::OnRecord;
        match Box::pin(self.publish(server, shutdown)).await {
            Ok(Some(Ended::CaughtUp)) => {}
            Ok(Some(Ended::Stopped) | None) if is_kept => {
                let (id, published) = (replay.id.clone(), tally.published());
                return Err(Error::ReplayStopped { command, id, published });
            }
            Ok(Some(Ended::Stopped) | None) => return Err(Error::Interrupted),
            Err(error) => {
                if is_kept {
                    tracing::warn!("to go on: walrelay {command} --resume {}", replay.id);
                }
                return Err(error);
            }
        }
        if is_kept {
            let recording = connect_sql(&settings.connect).await?;
            finish_replay(&recording, &replay.id, tally.published()).await?;
            recording.close().await;
        }
        Ok(())
    }

    async fn publish<C: Server>(
        &self,
        server: C,
        shutdown: &Shutdown,
    ) -> Result<Option<Ended>, Error> {
        let Self { command, settings, replay, rate, tally } = *self;
        let publisher = match replay.keeping {
            Keeping::Nothing => None,
            Keeping::OnRecord => {
                let publisher =
                    GrpcPublisher::connect(&settings.pubsub.publisher).map_err(Error::PubSub)?;
                tokio::select! {
                    biased;
                    () = shutdown.requested() => return Ok(None),
                    token = publisher.authenticate() => token.map_err(Error::PubSub)?,
                }
                Some(publisher)
            }
        };
        let sessions = replay.session_settings(settings, rate);
        let supervisor = Supervisor {
            settings: &sessions,
            server,
            publisher: Paced::new(publisher, rate, tally.clone()),
            metrics: Metrics::new(),
            health: Health::new(),
            random: Random::new(random_seed()),
        };
        let mut shown =
            progress::Progress::new(command, (replay.start, replay.goal), tally.clone());
        let mut running = Box::pin(supervisor.run(shutdown));
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut running => break ended,
                () = shown.next() => {}
            }
        };
        shown.end();
        ended.map_err(Error::Relay)
    }
}

async fn begin(
    client: &SqlClient,
    settings: &Settings,
    order: ReplayOrder,
) -> Result<Prepared, Error> {
    let slot = settings.relay.outbox.slot.as_str();
    let end = read_wal_end(client).await?.ok_or(StoreError::InRecovery)?;
    let from = match order.from {
        None => None,
        Some(Place::Lsn(lsn)) => Some(lsn),
        Some(Place::Time(time)) => Some(at_time(client, slot, time).await?),
    };
    let anchor = anchor(client, slot, (order.anchor.as_deref(), from)).await?;
    let reaches = anchor.slot.confirmed_flush_lsn.unwrap_or(Lsn::ZERO);
    let from = from.unwrap_or(reaches);
    refuse_too_early(&anchor, (from, reaches))?;
    let system = read_history(client, slot).await?;
    let to = match order.to {
        None => end,
        Some(Place::Lsn(lsn)) => lsn,
        Some(Place::Time(time)) => {
            let behind = first_position_after(client, &system, time + COMMIT_SLACK).await?;
            behind.map_or(end, |noted| noted.lsn.min(end))
        }
    };
    if to < from || to > end {
        return Err(Error::Unfit {
            what: format!(
                "{to} is not between {from}, where the replay begins, and {end}, where the log ends"
            ),
            hint: "name a position in between, or none",
        });
    }
    let moment = |place: Option<Place>| match place {
        Some(Place::Time(time)) => Some(PgTimestamp::from_system_time(time)),
        Some(Place::Lsn(_)) | None => None,
    };
    let ReplayOrder { matching, to_topic, rate, dead_rows, keeping, .. } = order;
    let (since, until) = (moment(order.from), moment(order.to));
    let request = Request { to_topic, since, until, matching, rate, dead_rows };
    let row = ReplayRow {
        id: format!("{:08x}", random_seed() & u64::from(u32::MAX)),
        slot: slot.to_owned(),
        anchor: anchor.name.clone(),
        system_identifier: system,
        request: request.to_json(),
        from,
        to,
        settled: from,
        rows: 0,
        is_finished: false,
    };
    if keeping == Keeping::OnRecord {
        topics::refuse_missing(client, settings, &request.to_topic).await?;
        take_replay(client, &row.id).await?;
        begin_replay(client, &row).await?;
    }
    tracing::info!(id = row.id, anchor = anchor.name, %from, %to, "replay begins");
    let tally = Tally::resumed(0, from);
    Ok(Prepared { replay: replay_of(&row, &request, (&anchor, end, keeping)), request, tally })
}

/// A transaction takes its time of commit a moment before its place in the log.
const COMMIT_SLACK: Duration = Duration::from_secs(10);

fn replay_of(
    row: &ReplayRow,
    request: &Request,
    (anchor, end, keeping): (&Anchor, Lsn, Keeping),
) -> Replay {
    Replay {
        id: row.id.clone(),
        anchor_slot: anchor.slot.name.clone(),
        selection: request.selection(row.from, row.to),
        start: row.settled,
        // The commit at `to` ends behind it; nothing ends behind the end of the log.
        goal: Lsn::new(row.to.as_u64() + 1).min(end),
        dead_rows: request.dead_rows,
        keeping,
    }
}

/// The anchor of this name, or the nearest one behind which `from` lies.
async fn anchor(
    client: &SqlClient,
    slot: &str,
    (name, from): (Option<&str>, Option<Lsn>),
) -> Result<Anchor, Error> {
    if let Some(name) = name {
        return Ok(read_anchor(client, slot, name).await?);
    }
    let from = from.unwrap_or(Lsn::ZERO);
    let mut usable = read_anchors(client, slot).await?;
    usable.retain(|anchor| {
        !anchor.slot.is_lost() && anchor.slot.confirmed_flush_lsn.is_some_and(|at| at <= from)
    });
    usable.pop().ok_or_else(|| Error::Unfit {
        what: format!("no anchor reaches back to {from}"),
        hint: "`walrelay anchor list` shows how far they do",
    })
}

fn refuse_too_early(anchor: &Anchor, (from, reaches): (Lsn, Lsn)) -> Result<(), Error> {
    if from >= reaches {
        return Ok(());
    }
    let since = anchor.reaches_back_to.map(rfc3339).unwrap_or_default();
    Err(Error::Unfit {
        what: format!(
            "anchor {:?} reaches back to {reaches} ({since}) and no farther; {from} lies before it",
            anchor.name
        ),
        hint: "name an anchor that reaches farther back, or a later place",
    })
}

async fn resume(client: &SqlClient, settings: &Settings, id: String) -> Result<Prepared, Error> {
    let slot = settings.relay.outbox.slot.as_str();
    let unfit = |what, hint| Error::Unfit { what, hint };
    // Before the row is read: whoever had it until now may have come further.
    if !take_replay(client, &id).await? {
        return Err(Error::ReplayTaken { id });
    }
    let Some(row) = read_replay(client, &id).await?.filter(|row| row.slot == slot) else {
        let what = format!("slot {slot:?} has no replay {id:?}");
        return Err(unfit(what, "the id stands in the line that told how to go on"));
    };
    if row.is_finished {
        let what = format!("replay {id} is done: {} row(s) were published", row.rows);
        return Err(unfit(what, "begin a new one"));
    }
    if row.system_identifier != read_history(client, slot).await? {
        let what =
            format!("replay {id} was begun on another server, whose positions mean nothing here");
        return Err(unfit(what, "begin a new one"));
    }
    let anchor = read_anchor(client, slot, &row.anchor).await?;
    let reaches = anchor.slot.confirmed_flush_lsn.unwrap_or(Lsn::ZERO);
    refuse_too_early(&anchor, (row.settled, reaches))?;
    let request = Request::from_json(&row.request)
        .map_err(|error| unfit(error.to_string(), "begin a new one"))?;
    topics::refuse_missing(client, settings, &request.to_topic).await?;
    let end = read_wal_end(client).await?.ok_or(StoreError::InRecovery)?;
    tracing::info!(id, from = %row.settled, to = %row.to, "replay goes on");
    let tally = Tally::resumed(row.rows, row.settled);
    let replay = replay_of(&row, &request, (&anchor, end, Keeping::OnRecord));
    Ok(Prepared { replay, request, tally })
}

fn summary(replay: &Replay, request: &Request, tally: &Tally) -> String {
    let (from, to) = (replay.selection.from, replay.selection.to);
    let rows = tally.published();
    let left_out = match tally.left_out() {
        0 => String::new(),
        dead => {
            format!("left out: {dead} row(s) that Pub/Sub would never take, named in the log\n")
        }
    };
    match replay.keeping {
        Keeping::Nothing => {
            format!(
                "would publish {rows} row(s) of {from} to {to}; nothing was published\n{left_out}"
            )
        }
        Keeping::OnRecord => format!(
            "replay {}: {rows} row(s) of {from} to {to} are in {}\n{left_out}",
            replay.id, request.to_topic
        ),
    }
}
