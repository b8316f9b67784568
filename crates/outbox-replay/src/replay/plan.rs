//! The begin of a replay: resolves an order to positions, and puts the replay on record. Also the
//! resumption of a replay on record.

use std::time::{Duration, SystemTime};

use pgoutput_parser::{Lsn, PgTimestamp};
use walrelay_core::Topic;
use walrelay_outbox_store::{
    Anchor, Key, StoreError, first_position_after, read_anchor, read_anchors,
    read_recorded_system_identifier, read_wal_end,
};
use walrelay_pg_client::{SqlClient, TableAccess, refuse_hidden_rows, sql};
use walrelay_relay::failpoint;
use walrelay_relay::seed::random_seed;
use walrelay_relay::settings::Settings;

use super::in_place::HELD_KEYS_MAX;
use super::record::{
    ReplayEnd, ReplayJob, ReplayProgress, begin_replay, note_skip_dead, read_replay, take_replay,
};
use super::replay_error::{ReplayError, RowCount};
use super::replay_step::{ReplayStep, ReplaySteps, report};
use super::request::{
    DeadRows, Destination, OrderedSource, OrderedTable, OrderedWal, ReplayOrder, ReplayRequest,
    ReplaySource, TableRows, WalRows,
};
use crate::admin_error::AdminError;

/// Commit times may be out of order by this much: a transaction takes its commit time shortly
/// before its place in the WAL.
const COMMIT_SLACK: Duration = Duration::from_secs(10);

impl ReplayJob {
    /// Resolves an order to a replay that is not on record yet.
    ///
    /// # Errors
    ///
    /// The range is not in the WAL behind an anchor, or rows of the tables are hidden.
    pub async fn plan(
        client: &SqlClient,
        settings: &Settings,
        order: ReplayOrder,
    ) -> Result<Self, ReplayError> {
        let outbox = &settings.relay.outbox;
        let ReplayOrder { source, destination, matching, dead_rows } = order;
        let (source, slot) = match (source, &destination) {
            (OrderedSource::Wal(wal), _) => {
                (ReplaySource::Wal(range(client, &outbox.slot, wal).await?), outbox.slot.as_str())
            }
            // To another topic, one replay reads the rows of all shards. In place, a replay pauses
            // keys in the dispatch state of one slot.
            (OrderedSource::Table(table), Destination::Topic { .. }) => {
                (visible_rows(client, settings, table).await?, outbox.base_slot())
            }
            (OrderedSource::Table(table), Destination::InPlace) => {
                (visible_rows(client, settings, table).await?, outbox.slot.as_str())
            }
        };
        let settled = match &source {
            ReplaySource::Wal(wal) => wal.from,
            ReplaySource::Table(_) => Lsn::ZERO,
        };
        let request = ReplayRequest { source, destination, matching, dead_rows };
        let job = Self {
            id: format!("{:08x}", random_seed() & u64::from(u32::MAX)),
            slot: slot.to_owned(),
            system_identifier: String::new(),
            request,
            progress: ReplayProgress { settled, rows: 0, resume_at: None },
            end: None,
        };
        // Before the replay is on record: a relay would run it again and again.
        let tables = job.tables(client, settings).await?;
        if matches!(&job.request.source, ReplaySource::Table(TableRows { since: Some(_), .. })) {
            tables.iter().try_for_each(|table| table.time_column().map(drop))?;
        }
        Ok(job)
    }

    /// Locks the replay and puts it on record. A replay in place pauses `keys` also, in the same
    /// transaction.
    ///
    /// # Errors
    ///
    /// Another replay pauses one of the keys, or there are too many.
    pub async fn begin(
        &mut self,
        client: &mut SqlClient,
        settings: &Settings,
        keys: &[(Topic, String)],
        steps: &ReplaySteps<'_>,
    ) -> Result<(), ReplayError> {
        if keys.len() > HELD_KEYS_MAX {
            return Err(ReplayError::TooManyKeys);
        }
        self.system_identifier = read_recorded_system_identifier(client, &self.slot).await?;
        take_replay(client, &self.id).await?;
        let failed = || ReplayError::sql("begin a replay");
        let transaction = client.transaction().await.map_err(failed())?;
        begin_replay(transaction.client(), self).await?;
        if self.request.destination == Destination::InPlace {
            let named: Vec<_> =
                keys.iter().map(|(topic, ordering_key)| Key { topic, ordering_key }).collect();
            let store = self.dispatch(settings);
            if let Some(other) = store.request_pauses(&transaction, &self.id, &named).await? {
                return Err(ReplayError::KeyIsPaused { other });
            }
            transaction.commit().await.map_err(failed())?;
            report(steps, &ReplayStep::RequestsPauses { job: self, keys: keys.len() })?;
            failpoint::hit("replay-placed");
        } else {
            transaction.commit().await.map_err(failed())?;
            report(steps, &ReplayStep::Begins(self))?;
        }
        Ok(())
    }

    /// Locks and returns an unfinished replay of this outbox that no other process runs.
    ///
    /// # Errors
    ///
    /// There is no such replay, it has ended, it belongs to another server, or another process
    /// runs it.
    pub async fn load(
        client: &SqlClient,
        settings: &Settings,
        id: &str,
    ) -> Result<Self, ReplayError> {
        let outbox = &settings.relay.outbox;
        let slots = [outbox.base_slot(), outbox.slot.as_str()];
        let missing = || ReplayError::Missing { id: id.to_owned(), slot: outbox.slot.clone() };
        let job = take(client, id, &slots).await?.ok_or_else(missing)?;
        job.refuse_ended()?;
        if job.system_identifier != read_recorded_system_identifier(client, &outbox.slot).await? {
            return Err(ReplayError::OtherServer { id: id.to_owned() });
        }
        Ok(job)
    }

    /// Records whether this run and all later ones leave out rows that Pub/Sub never accepts.
    pub async fn record_dead_rows(&self, client: &SqlClient) -> Result<(), ReplayError> {
        match self.request.dead_rows {
            DeadRows::LeaveOut => Ok(note_skip_dead(client, &self.id).await?),
            DeadRows::Stop => Ok(()),
        }
    }

    /// Returns whether the replay belongs to one shard of the outbox.
    #[must_use]
    pub const fn reads_one_slot(&self) -> bool {
        match (&self.request.source, &self.request.destination) {
            (ReplaySource::Wal(_), _) | (ReplaySource::Table(_), Destination::InPlace) => true,
            (ReplaySource::Table(_), Destination::Topic { .. }) => false,
        }
    }

    pub(super) fn refuse_ended(&self) -> Result<(), ReplayError> {
        match self.end {
            None => Ok(()),
            Some(end) => Err(ReplayError::Ended { id: self.id.clone(), end, rows: self.rows() }),
        }
    }

    #[must_use]
    pub fn rows(&self) -> RowCount {
        let is_counted_in_dispatch = self.request.destination == Destination::InPlace;
        match self.end {
            Some(ReplayEnd::Done) => RowCount::Exactly(self.progress.rows),
            _ if is_counted_in_dispatch => RowCount::Exactly(self.progress.rows),
            Some(ReplayEnd::Cancelled) | None => RowCount::AtLeast(self.progress.rows),
        }
    }

    /// Returns the anchor of the replay. If it is gone, the replay can only be cancelled.
    pub(super) async fn anchor(
        &self,
        client: &SqlClient,
        wal: &WalRows,
    ) -> Result<Anchor, ReplayError> {
        let gone = match read_anchor(client, &self.slot, &wal.anchor).await {
            Ok(anchor) => match refuse_too_late(&anchor, self.progress.settled) {
                Ok(()) => return Ok(anchor),
                Err(error) => error,
            },
            Err(gone @ (StoreError::AnchorMissing { .. } | StoreError::AnchorLost { .. })) => {
                gone.into()
            }
            Err(error) => return Err(error.into()),
        };
        Err(ReplayError::AnchorGone { id: self.id.clone(), source: Box::new(gone) })
    }
}

/// Locks the replay and reads it, if it belongs to one of these slots.
pub(super) async fn take(
    client: &SqlClient,
    id: &str,
    slots: &[&str],
) -> Result<Option<ReplayJob>, ReplayError> {
    // The lock comes before the read, because the previous holder may have made further progress.
    if !take_replay(client, id).await? {
        return Err(ReplayError::Running { id: id.to_owned() });
    }
    let job = read_replay(client, id).await?;
    Ok(job.filter(|job| slots.contains(&job.slot.as_str())))
}

async fn visible_rows(
    client: &SqlClient,
    settings: &Settings,
    order: OrderedTable,
) -> Result<ReplaySource, ReplayError> {
    refuse_hidden_rows(client, &settings.relay.outbox.tables, TableAccess::Read).await?;
    let snapshot = client.query_typed_one(sql!("plan.sql", "snapshot"), &[]).await;
    let snapshot = snapshot.map_err(ReplayError::sql("take a snapshot"))?.get("snapshot");
    let OrderedTable { since, event_ids, order_by } = order;
    let since = since.map(PgTimestamp::from_system_time);
    Ok(ReplaySource::Table(TableRows { snapshot, since, event_ids, order_by }))
}

async fn range(client: &SqlClient, slot: &str, order: OrderedWal) -> Result<WalRows, ReplayError> {
    let end = read_wal_end(client).await?.ok_or(AdminError::InRecovery)?;
    let anchor = usable_anchor(client, slot, &order).await?;
    let from = order.from.unwrap_or_else(|| reach(&anchor));
    refuse_too_late(&anchor, from)?;
    let to = match (order.to, order.until) {
        (Some(to), _) => to,
        (None, None) => end,
        (None, Some(until)) => {
            let system = read_recorded_system_identifier(client, slot).await?;
            let behind = first_position_after(client, &system, until + COMMIT_SLACK).await?;
            behind.map_or(end, |noted| noted.lsn.min(end))
        }
    };
    if to < from || to > end {
        return Err(ReplayError::EndOutside { to, from, end });
    }
    let time = |time: Option<SystemTime>| time.map(PgTimestamp::from_system_time);
    let (since, until) = (time(order.since), time(order.until));
    Ok(WalRows { anchor: anchor.name, from, to, since, until })
}

/// Returns the named anchor, or the nearest one that reaches back to the start.
async fn usable_anchor(
    client: &SqlClient,
    slot: &str,
    order: &OrderedWal,
) -> Result<Anchor, ReplayError> {
    if let Some(name) = &order.anchor {
        return Ok(read_anchor(client, slot, name).await?);
    }
    let from = order.from.unwrap_or(Lsn::ZERO);
    let mut usable = read_anchors(client, slot).await?;
    usable.retain(|anchor| {
        !anchor.slot.is_lost() && anchor.slot.confirmed_flush_lsn.is_some_and(|at| at <= from)
    });
    usable.pop().ok_or(ReplayError::NoAnchor { from })
}

fn reach(anchor: &Anchor) -> Lsn {
    anchor.slot.confirmed_flush_lsn.unwrap_or(Lsn::ZERO)
}

fn refuse_too_late(anchor: &Anchor, from: Lsn) -> Result<(), ReplayError> {
    let reaches = reach(anchor);
    match from >= reaches {
        true => Ok(()),
        false => Err(ReplayError::AnchorTooLate {
            anchor: anchor.name.clone(),
            reaches,
            since: anchor.reaches_back_to,
            from,
        }),
    }
}
