//! One pass over the rows of a replay: a session of the relay's event loop, over the WAL or the
//! tables.

use std::num::NonZeroU32;
use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::time::{MissedTickBehavior, interval};
use walrelay_core::{ColumnFilter, Random, ReplaySelection, Template};
use walrelay_outbox_store::{DispatchStore, read_wal_end};
use walrelay_pg_client::SqlClient;
use walrelay_relay::lifecycle::server::Server;
use walrelay_relay::lifecycle::supervisor::Supervisor;
use walrelay_relay::observe::health::Health;
use walrelay_relay::observe::metrics::Metrics;
use walrelay_relay::seed::random_seed;
use walrelay_relay::settings::Settings;
use walrelay_relay::shutdown::Shutdown;
use walrelay_relay::stream::mode::StopReason;
use walrelay_relay::stream::publisher::Publisher;

use super::Replay;
use super::anchor_copy::AnchorCopy;
use super::counting_publisher::CountingPublisher;
use super::in_place::HistoryWriter;
use super::record::ReplayJob;
use super::replay_error::ReplayError;
use super::replay_progress::Tally;
use super::replay_step::{ReadProgress, ReplayStep, ReplaySteps, report};
use super::request::{DeadRows, Destination, ReplaySource, TableRows, WalRows};
use super::store::Keeping;
use super::table_server::{Beginning, TABLE_END, TableServer, whole_stream};
use crate::admin_error::AdminError;
use crate::recovery::{ResumePoints, TableStreamServer, published_table, table_of_all_shards};
use crate::rows::unsettled_rows::{Scope, SettledRows, SourceTable, UnsettledRows};

/// Interval between reports of the progress.
const REPORTED_EVERY: Duration = Duration::from_millis(200);

#[derive(Clone, Copy)]
pub struct ReplayEnv<'a> {
    pub settings: &'a Settings,
    pub steps: &'a ReplaySteps<'a>,
    /// Ends the replay early. A replay on record can be resumed.
    pub shutdown: &'a Shutdown,
}

impl std::fmt::Debug for ReplayEnv<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplayEnv").finish_non_exhaustive()
    }
}

/// The purpose of a pass.
#[derive(Debug)]
pub(super) enum Pass {
    /// Reads all rows, and records nothing.
    Count,
    /// Publishes the rows behind the recorded progress.
    Publish,
    /// Adds the rows up to this position to dispatch state.
    WriteHistory {
        /// The position up to which the relay has confirmed the pauses.
        through: Lsn,
        /// The snapshot that sees every row of the history, if the tables are read.
        snapshot: Option<String>,
        /// Records rows that can never be published.
        history: HistoryWriter,
    },
}

impl Pass {
    fn history(&self) -> Option<HistoryWriter> {
        match self {
            Self::Count | Self::Publish => None,
            Self::WriteHistory { history, .. } => Some(history.clone()),
        }
    }

    const fn keeping(&self) -> Keeping {
        match self {
            Self::Count => Keeping::Nothing,
            Self::Publish | Self::WriteHistory { .. } => Keeping::OnRecord,
        }
    }
}

impl ReplayJob {
    /// Passes the rows to a publisher. Without a publisher the rows only count as published.
    pub(super) async fn read<P: Publisher + Sync>(
        &self,
        client: &SqlClient,
        env: ReplayEnv<'_>,
        pass: &Pass,
        publisher: Option<P>,
    ) -> Result<Tally, ReplayError> {
        let mut settings = env.settings.clone();
        if let Destination::Topic { template, .. } = &self.request.destination {
            settings.relay.router.topic = parsed(template)?;
        }
        settings.relay.rate = self.rate(pass);
        let env = ReplayEnv { settings: &settings, ..env };
        let tally = match pass {
            Pass::WriteHistory { .. } if matches!(self.request.source, ReplaySource::Table(_)) => {
                Tally::resumed(0, Lsn::ZERO)
            }
            Pass::Count | Pass::Publish | Pass::WriteHistory { .. } => {
                Tally::resumed(self.progress.rows, self.progress.settled)
            }
        };
        let publisher = CountingPublisher::new(publisher, tally.clone());
        let ended = match &self.request.source {
            ReplaySource::Wal(wal) => {
                let replay = self.wal_replay(client, wal, pass).await?;
                let server = AnchorCopy {
                    settings: &settings,
                    replay: &replay,
                    tally: tally.clone(),
                    history: pass.history(),
                };
                let sessions = Sessions { env, replay: &replay, tally: &tally };
                Box::pin(sessions.run(server, publisher)).await?
            }
            ReplaySource::Table(rows) => {
                let replay = self.table_replay(pass);
                let snapshot = match pass {
                    Pass::WriteHistory { snapshot: Some(snapshot), .. } => snapshot,
                    Pass::Count | Pass::Publish | Pass::WriteHistory { .. } => &rows.snapshot,
                };
                let server = TableServer {
                    settings: &settings,
                    replay: &replay,
                    gap: self.gap(rows, snapshot),
                    tables: self.tables(client, &settings).await?,
                    tally: tally.clone(),
                    history: pass.history(),
                    beginning: self.beginning(pass, self.dispatch(&settings)),
                    serving: TableStreamServer::default(),
                };
                let sessions = Sessions { env, replay: &replay, tally: &tally };
                Box::pin(sessions.run(server, publisher)).await?
            }
        };
        match (ended, pass.keeping()) {
            (Some(StopReason::CaughtUp), _) => Ok(tally),
            (Some(StopReason::Stopped) | None, Keeping::OnRecord) => {
                Err(self.stopped(tally.published()))
            }
            (Some(StopReason::Stopped) | None, Keeping::Nothing) => Err(ReplayError::Interrupted),
        }
    }

    pub(super) fn stopped(&self, published: u64) -> ReplayError {
        ReplayError::Stopped { id: self.id.clone(), published }
    }

    /// Returns dispatch state, where a replay in place has its rows.
    pub(super) fn dispatch(&self, settings: &Settings) -> DispatchStore {
        DispatchStore::new(self.slot.clone()).with_on_dead(settings.relay.on_dead)
    }

    /// Returns the rate limit. Nothing but publishes is limited.
    const fn rate(&self, pass: &Pass) -> Option<NonZeroU32> {
        match (&self.request.destination, pass) {
            (Destination::Topic { rate, .. }, Pass::Publish) => *rate,
            (Destination::Topic { .. } | Destination::InPlace, _) => None,
        }
    }

    async fn wal_replay(
        &self,
        client: &SqlClient,
        wal: &WalRows,
        pass: &Pass,
    ) -> Result<Replay, ReplayError> {
        let anchor = self.anchor(client, wal).await?;
        let end = read_wal_end(client).await?.ok_or(AdminError::InRecovery)?;
        let WalRows { from, to, since, until, .. } = *wal;
        let to = match pass {
            Pass::WriteHistory { through, .. } => (*through).max(from),
            Pass::Count | Pass::Publish => to,
        };
        let matching = self.request.matching.clone();
        Ok(Replay {
            id: self.id.clone(),
            anchor_slot: anchor.slot.name,
            selection: ReplaySelection { from, to, since, until, matching },
            start: self.progress.settled,
            // The commit at `to` ends after `to`, but no commit ends after the end of the WAL.
            goal: Lsn::new(to.as_u64() + 1).min(end),
            dead_rows: self.dead_rows(),
            keeping: pass.keeping(),
        })
    }

    fn table_replay(&self, pass: &Pass) -> Replay {
        Replay {
            id: self.id.clone(),
            anchor_slot: String::new(),
            selection: whole_stream(),
            start: match pass {
                Pass::WriteHistory { .. } => Lsn::ZERO,
                Pass::Count | Pass::Publish => self.progress.settled,
            },
            goal: TABLE_END,
            dead_rows: self.dead_rows(),
            keeping: pass.keeping(),
        }
    }

    /// Returns how a pass treats a row that can never be published. In place, such a row becomes
    /// dead in dispatch state, and `--on-dead` decides there about its key.
    const fn dead_rows(&self) -> DeadRows {
        match self.request.destination {
            Destination::Topic { .. } => self.request.dead_rows,
            Destination::InPlace => DeadRows::LeaveOut,
        }
    }

    fn beginning(&self, pass: &Pass, store: DispatchStore) -> Beginning {
        match pass {
            Pass::WriteHistory { .. } => Beginning::Anew(store),
            Pass::Count | Pass::Publish => {
                Beginning::Marked(ResumePoints::from(self.progress.resume_at.clone()))
            }
        }
    }

    fn gap(&self, rows: &TableRows, snapshot: &str) -> UnsettledRows {
        let ColumnFilter { aggregate_types, aggregate_ids, .. } = self.request.matching.clone();
        let settled = rows.since.map_or(SettledRows::None, SettledRows::Before);
        let event_ids = rows.event_ids.clone();
        let scope = Scope { aggregate_types, aggregate_ids, event_ids, from: None };
        UnsettledRows { snapshot: snapshot.to_owned(), settled, scope }
    }

    /// Returns the outbox tables with the requested order within an aggregate, or nothing if the
    /// WAL is read. In place, a shard reads only its own rows, because only that shard's dispatch
    /// state orders them with the live rows of their keys.
    pub(super) async fn tables(
        &self,
        client: &SqlClient,
        settings: &Settings,
    ) -> Result<Vec<SourceTable>, ReplayError> {
        let ReplaySource::Table(rows) = &self.request.source else { return Ok(Vec::new()) };
        let (outbox, columns) = (&settings.relay.outbox, &settings.relay.router.columns);
        let mut tables = Vec::new();
        for name in &outbox.tables {
            let mut found = match &self.request.destination {
                Destination::Topic { .. } => {
                    table_of_all_shards(client, (outbox, name), columns).await?
                }
                Destination::InPlace => published_table(client, (outbox, name), columns).await?,
            };
            let missing = rows.order_by.iter().find(|one| found.column(Some(one)).is_none());
            if let Some(column) = missing {
                let (table, column) = (name.clone(), column.clone());
                return Err(ReplayError::OrderColumnMissing { table, column });
            }
            if !rows.order_by.is_empty() {
                found.order.clone_from(&rows.order_by);
            }
            tables.push(found);
        }
        Ok(tables)
    }
}

pub(super) fn parsed(template: &str) -> Result<Template, ReplayError> {
    Template::parse(template)
        .map_err(|source| ReplayError::TopicInvalid { template: template.to_owned(), source })
}

/// The sessions of a pass, one after the other.
struct Sessions<'a> {
    env: ReplayEnv<'a>,
    replay: &'a Replay,
    tally: &'a Tally,
}

impl Sessions<'_> {
    async fn run<C: Server, P: Publisher + Sync>(
        self,
        server: C,
        publisher: CountingPublisher<P>,
    ) -> Result<Option<StopReason>, ReplayError> {
        let Self { env: ReplayEnv { settings, steps, shutdown }, replay, tally } = self;
        let requests_max = settings.pubsub.max_outstanding_requests;
        let sessions = replay.session_settings(&settings.relay, requests_max);
        let supervisor = Supervisor {
            settings: &sessions,
            server,
            publisher,
            metrics: Metrics::new(),
            health: Health::new(),
            random: Random::new(random_seed()),
        };
        let progress = || ReadProgress { start: replay.start, goal: replay.goal, tally };
        let mut due = interval(REPORTED_EVERY);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut running = Box::pin(supervisor.run(shutdown));
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut running => break ended,
                _ = due.tick() => report(steps, &ReplayStep::Reads(progress()))?,
            }
        };
        report(steps, &ReplayStep::ReadsNoMore(progress()))?;
        Ok(ended?)
    }
}
