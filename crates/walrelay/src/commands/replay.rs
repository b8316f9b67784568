//! `walrelay replay start`: publishes the rows after an anchor again, beside the running relay. The rows
//! go to another topic, or through dispatch state to their own topics.

pub(super) mod in_place;
pub(super) mod jobs;
mod progress;
pub(super) mod record;

use std::time::Duration;
use walrelay_outbox_admin::{AdminError, ReplayRow, begin_replay, finish_replay, take_replay};
use walrelay_outbox_store::{
    Anchor, HistorySource, StoreError, first_position_after, read_anchor, read_anchors,
    read_recorded_system_identifier, read_wal_end,
};

use pgoutput_parser::{Lsn, PgTimestamp};
use walrelay_core::Random;
use walrelay_outbox_admin::replay::{
    AnchorCopy, Destination, Keeping, KeysSeen, Rate, RateLimited, Replay, Request, Tally,
};
use walrelay_pg_client::{SqlClient, connect_sql};
use walrelay_pubsub::GrpcPublisher;
use walrelay_relay::lifecycle::server::Server;
use walrelay_relay::lifecycle::supervisor::Supervisor;
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::observe::report::rfc3339;
use walrelay_relay::seed::random_seed;
use walrelay_relay::settings::Settings;
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::mode::StopReason;
use walrelay_relay::stream::publisher::Publisher;

use super::shared::preconditions::{at_time, refuse_other_shards};
use super::shared::topics;
use crate::config::{Place, ReplayAction, ReplayConfig, ReplayOrder};
use crate::error::Error;
use crate::output::print;
use in_place::InPlace;

/// A replay that is ready to start.
struct Prepared {
    replay: Replay,
    request: Request,
    tally: Tally,
}

/// Runs the replay to its end, or until it is interrupted.
///
/// # Errors
///
/// The anchor or replay does not exist, a row cannot be published, or the replay was interrupted.
/// After an interruption the error names the command that resumes the replay.
pub async fn execute(config: ReplayConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let ReplayConfig { settings, action } = config;
    let mut client = connect_sql(&settings.connect).await?;
    let done = Box::pin(act(&mut client, settings, action, shutdown)).await;
    // The session must stay open until here: its lock keeps other processes from running the same
    // replay.
    client.close().await;
    print(&done?)
}

async fn act(
    client: &mut SqlClient,
    settings: Settings,
    action: ReplayAction,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    refuse_other_shards(client, &settings.relay.outbox).await?;
    match action {
        ReplayAction::Begin(order) => match order.destination.clone() {
            Destination::InPlace => begin_in_place(client, &settings, order, shutdown).await,
            Destination::Topic(topic) => {
                let prepared = begin(client, &settings, order).await?;
                to_topic(settings, (prepared, &topic), shutdown).await
            }
        },
        ReplayAction::Resume { id, dead_rows } => {
            let (row, mut request) = take_up(client, &settings, &id).await?;
            record::record_skip_dead(client, (&id, dead_rows), &mut request.dead_rows).await?;
            match request.destination.clone() {
                Destination::InPlace => {
                    continue_in_place(client, &settings, (&row, &request), shutdown).await
                }
                Destination::Topic(topic) => {
                    topics::refuse_missing(client, &settings, &topic).await?;
                    let prepared = resume(client, &settings, (row, request)).await?;
                    to_topic(settings, (prepared, &topic), shutdown).await
                }
            }
        }
    }
}

async fn to_topic(
    mut settings: Settings,
    (prepared, topic): (Prepared, &str),
    shutdown: &Shutdown,
) -> Result<String, Error> {
    settings.relay.router.topic = topics::template(topic)?;
    let Prepared { replay, request, tally } = &prepared;
    let server = AnchorCopy { settings: &settings, replay, tally: tally.clone() };
    let run = Run {
        by: ReplayCaller::Command("replay"),
        settings: &settings,
        replay,
        rate: request.rate,
        tally,
    };
    Box::pin(run.run_to_completion(server, shutdown)).await?;
    Ok(summary((replay, topic), tally))
}

fn in_place_of<'a>(settings: &'a Settings, id: &'a str) -> InPlace<'a> {
    InPlace { command: "replay", settings, id }
}

async fn begin_in_place(
    client: &mut SqlClient,
    settings: &Settings,
    order: ReplayOrder,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let keeping = order.keeping;
    let ReplayRange { row, request, anchor, end } = stretch(client, settings, order).await?;
    let tally = Tally::resumed(0, row.from);
    let replay = replay_of(&row, &request, (&anchor, end, Keeping::Nothing));
    let server = AnchorCopy { settings, replay: &replay, tally: tally.clone() };
    let run = Run {
        by: ReplayCaller::Command("replay"),
        settings,
        replay: &replay,
        rate: None,
        tally: &tally,
    };
    let seen = KeysSeen::default();
    let read = Box::pin(run.sessions(server, Some(seen.clone()), shutdown)).await;
    run.ended(read)?;
    let (rows, keys) = (tally.published(), seen.keys());
    if keeping == Keeping::Nothing || keys.is_empty() {
        return Ok(format!(
            "would publish {rows} row(s) of {} key(s) again; nothing was published\n",
            keys.len()
        ));
    }
    in_place_of(settings, &row.id).place(client, &row, &keys).await?;
    continue_in_place(client, settings, (&row, &request), shutdown).await
}

/// Continues once the key pauses are recorded: reads the WAL again, up to the position where the
/// last key was paused.
async fn continue_in_place(
    client: &mut SqlClient,
    settings: &Settings,
    (row, request): (&ReplayRow, &Request),
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let in_place = in_place_of(settings, &row.id);
    let holds = in_place.held(client, shutdown).await?;
    if holds.held > 0 {
        let anchor = anchor_of(client, settings, row).await?;
        let end = read_wal_end(client).await?.ok_or(AdminError::InRecovery)?;
        let through = ReplayRow { to: holds.through.max(row.from), ..row.clone() };
        let replay = replay_of(&through, request, (&anchor, end, Keeping::OnRecord));
        let tally = Tally::resumed(row.rows, row.settled);
        let server = AnchorCopy { settings, replay: &replay, tally: tally.clone() };
        let run = Run {
            by: ReplayCaller::Command("replay"),
            settings,
            replay: &replay,
            rate: None,
            tally: &tally,
        };
        let writer = in_place.writer(client, HistorySource::Log).await?;
        let read = Box::pin(run.sessions(server, Some(writer), shutdown)).await;
        run.ended(read)?;
        in_place.lift(client).await?;
    }
    in_place.published(client, shutdown).await
}

/// The command, or the step of a command, that publishes rows again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplayCaller {
    /// A command that can be resumed after an interruption.
    Command(&'static str),
    /// A step of a command that always starts again from scratch.
    Step,
}

impl ReplayCaller {
    /// Returns the verb for progress messages.
    fn doing(self) -> &'static str {
        match self {
            Self::Command("backfill") => "backfilling",
            Self::Command(_) => "replaying",
            Self::Step => "publishing",
        }
    }
}

/// A replay that is ready to be published, from any source of rows.
pub(super) struct Run<'a> {
    pub(super) by: ReplayCaller,
    pub(super) settings: &'a Settings,
    pub(super) replay: &'a Replay,
    pub(super) rate: Option<Rate>,
    pub(super) tally: &'a Tally,
}

impl Run<'_> {
    /// Publishes the replay, and records that it is finished. After an interruption the error names
    /// the command that resumes it.
    pub(super) async fn run_to_completion<C: Server>(
        &self,
        server: C,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let Self { settings, replay, tally, .. } = self;
        let published = Box::pin(self.publish(server, shutdown)).await;
        self.ended(published)?;
        if replay.keeping == Keeping::OnRecord {
            let recording = connect_sql(&settings.connect).await?;
            finish_replay(&recording, &replay.id, tally.published()).await?;
            recording.close().await;
        }
        Ok(())
    }

    /// Returns an error unless the replay is complete. The error, or a warning, names the command
    /// that resumes the replay.
    pub(super) fn ended(&self, ended: Result<Option<StopReason>, Error>) -> Result<(), Error> {
        let Self { by, replay, tally, .. } = self;
        let resumed_by = match *by {
            ReplayCaller::Command(command) if replay.keeping == Keeping::OnRecord => Some(command),
            ReplayCaller::Command(_) | ReplayCaller::Step => None,
        };
        match ended {
            Ok(Some(StopReason::CaughtUp)) => Ok(()),
            Ok(Some(StopReason::Stopped) | None) => Err(match resumed_by {
                Some(_) => {
                    let (id, published) = (replay.id.clone(), tally.published());
                    Error::ReplayStopped { id, published }
                }
                None => Error::Interrupted,
            }),
            Err(error) => {
                if resumed_by.is_some() {
                    tracing::warn!("to go on: walrelay replay resume {}", replay.id);
                }
                Err(error)
            }
        }
    }

    async fn publish<C: Server>(
        &self,
        server: C,
        shutdown: &Shutdown,
    ) -> Result<Option<StopReason>, Error> {
        let Self { settings, replay, .. } = *self;
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
        Box::pin(self.sessions(server, publisher, shutdown)).await
    }

    /// Passes the rows to a publisher. Without a publisher the rows only count as published.
    pub(super) async fn sessions<C: Server, P: Publisher + Sync>(
        &self,
        server: C,
        publisher: Option<P>,
        shutdown: &Shutdown,
    ) -> Result<Option<StopReason>, Error> {
        let Self { by, settings, replay, rate, tally } = *self;
        let requests_max = settings.pubsub.max_outstanding_requests;
        let sessions = replay.session_settings((&settings.relay, requests_max), rate);
        let supervisor = Supervisor {
            settings: &sessions,
            server,
            publisher: RateLimited::new(publisher, rate, tally.clone()),
            metrics: Metrics::new(),
            health: Health::new(),
            random: Random::new(random_seed()),
        };
        let mut shown =
            progress::Progress::new(by.doing(), (replay.start, replay.goal), tally.clone());
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

/// The range of a replay, before the replay is recorded.
struct ReplayRange {
    row: ReplayRow,
    request: Request,
    anchor: Anchor,
    end: Lsn,
}

async fn begin(
    client: &SqlClient,
    settings: &Settings,
    order: ReplayOrder,
) -> Result<Prepared, Error> {
    let keeping = order.keeping;
    let ReplayRange { row, request, anchor, end } = stretch(client, settings, order).await?;
    if let (Keeping::OnRecord, Destination::Topic(topic)) = (keeping, &request.destination) {
        topics::refuse_missing(client, settings, topic).await?;
        take_replay(client, &row.id).await?;
        begin_replay(client, &row).await?;
    }
    let (id, from, to) = (&row.id, row.from, row.to);
    tracing::info!(id, anchor = anchor.name, %from, %to, "replay begins");
    let tally = Tally::resumed(0, from);
    Ok(Prepared { replay: replay_of(&row, &request, (&anchor, end, keeping)), request, tally })
}

async fn stretch(
    client: &SqlClient,
    settings: &Settings,
    order: ReplayOrder,
) -> Result<ReplayRange, Error> {
    let slot = settings.relay.outbox.slot.as_str();
    let end = read_wal_end(client).await?.ok_or(AdminError::InRecovery)?;
    let from = match order.from {
        None => None,
        Some(Place::Lsn(lsn)) => Some(lsn),
        Some(Place::Time(time)) => Some(at_time(client, slot, time).await?),
    };
    let anchor = anchor(client, slot, (order.anchor.as_deref(), from)).await?;
    let from = from.unwrap_or(reach(&anchor));
    refuse_too_early(&anchor, (from, reach(&anchor)))?;
    let system = read_recorded_system_identifier(client, slot).await?;
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
    let ReplayOrder { matching, destination, rate, dead_rows, .. } = order;
    let (since, until) = (moment(order.from), moment(order.to));
    let request = Request { destination, since, until, matching, rate, dead_rows };
    let row = ReplayRow {
        id: record::new_id(),
        slot: slot.to_owned(),
        anchor: anchor.name.clone(),
        system_identifier: system,
        request: request.to_json(),
        from,
        to,
        settled: from,
        rows: 0,
        end: None,
    };
    Ok(ReplayRange { row, request, anchor, end })
}

fn reach(anchor: &Anchor) -> Lsn {
    anchor.slot.confirmed_flush_lsn.unwrap_or(Lsn::ZERO)
}

/// Commit times may be out of order by this much: a transaction takes its commit time shortly
/// before its place in the WAL.
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
        // The commit at `to` ends after `to`, but no commit ends after the end of the WAL.
        goal: Lsn::new(row.to.as_u64() + 1).min(end),
        dead_rows: request.dead_rows,
        keeping,
    }
}

/// Returns the named anchor, or the nearest one that reaches back to `from`.
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

/// Returns the anchor of an unfinished replay. If it is gone, the user can only abandon the replay.
async fn anchor_of(
    client: &SqlClient,
    settings: &Settings,
    row: &ReplayRow,
) -> Result<Anchor, Error> {
    let found = match read_anchor(client, &settings.relay.outbox.slot, &row.anchor).await {
        Ok(anchor) => refuse_too_early(&anchor, (row.settled, reach(&anchor))).map(|()| anchor),
        Err(gone @ (StoreError::AnchorMissing { .. } | StoreError::AnchorLost { .. })) => {
            Err(gone.into())
        }
        Err(error) => return Err(error.into()),
    };
    let then = match Destination::from_json(&row.request) {
        Ok(Destination::Topic(_)) => "",
        Ok(Destination::InPlace) | Err(_) => "; keys that are held for it go on then",
    };
    found.map_err(|error| Error::Unfinished {
        what: format!("replay {} cannot go on: {error}", row.id),
        hint: format!("`walrelay replay cancel {}` gives it up{then}", row.id),
    })
}

/// Locks and returns an unfinished replay that no other process runs.
async fn take_up(
    client: &SqlClient,
    settings: &Settings,
    id: &str,
) -> Result<(ReplayRow, Request), Error> {
    let slot = settings.relay.outbox.slot.as_str();
    let unfit = |what, hint| Error::Unfit { what, hint };
    let row = record::take_up(client, ("replay", id), (slot, &[slot])).await?;
    if row.system_identifier != read_recorded_system_identifier(client, slot).await? {
        let what =
            format!("replay {id} was begun on another server, whose positions mean nothing here");
        return Err(unfit(what, "begin a new one"));
    }
    let request = Request::from_json(&row.request)
        .map_err(|error| unfit(error.to_string(), "begin a new one"))?;
    Ok((row, request))
}

async fn resume(
    client: &SqlClient,
    settings: &Settings,
    (row, request): (ReplayRow, Request),
) -> Result<Prepared, Error> {
    let anchor = anchor_of(client, settings, &row).await?;
    let end = read_wal_end(client).await?.ok_or(AdminError::InRecovery)?;
    tracing::info!(id = row.id, from = %row.settled, to = %row.to, "replay goes on");
    let tally = Tally::resumed(row.rows, row.settled);
    let replay = replay_of(&row, &request, (&anchor, end, Keeping::OnRecord));
    Ok(Prepared { replay, request, tally })
}

fn summary((replay, topic): (&Replay, &str), tally: &Tally) -> String {
    let (from, to) = (replay.selection.from, replay.selection.to);
    let rows = tally.published();
    let left_out = record::left_out(tally);
    match replay.keeping {
        Keeping::Nothing => {
            format!(
                "would publish {rows} row(s) of {from} to {to}; nothing was published\n{left_out}"
            )
        }
        Keeping::OnRecord => format!(
            "replay {}: {rows} row(s) of {from} to {to} are in {}\n{left_out}{}",
            replay.id,
            topic,
            record::COPIES
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backfill_is_not_called_a_replay() {
        let doing = [
            ReplayCaller::Command("backfill"),
            ReplayCaller::Command("replay"),
            ReplayCaller::Step,
        ]
        .map(ReplayCaller::doing);
        assert_eq!(doing, ["backfilling", "replaying", "publishing"]);
    }
}
