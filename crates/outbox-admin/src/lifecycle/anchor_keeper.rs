//! `run --anchor-keep`: one anchor that the relay keeps for itself.
//!
//! The anchor covers the configured time, but never retains more WAL than its share.

use std::time::{Duration, SystemTime};

use pgoutput_parser::Lsn;
use tokio::time::sleep;
use walrelay_core::{WalBudgetLimit, WalRetentionLimit};
use walrelay_outbox_replay::{AdminError, read_operation};
use walrelay_outbox_store::{
    Anchor, CopyLifetime, advance_anchor, anchor_slot, copy_slot, position_at, read_anchors,
    read_recorded_system_identifier, read_slot_capacity,
};
use walrelay_pg_client::{ConnectConfig, SqlClient, connect_sql};
use walrelay_pg_replication::{drop_slot, read_slot};

use walrelay_errors::Chain;
use walrelay_relay::error::RelayError;
use walrelay_relay::observe::health::{Health, Phase};

pub const KEPT_ANCHOR: &str = "kept";

/// The interval at which the anchor is moved. Times are noted at the same interval, and no server
/// drops an idle slot this quickly.
const PACE: Duration = Duration::from_secs(60);

/// The interval at which the keeper checks whether the relay has started to stream.
const FIRST: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct AnchorKeeper {
    pub connect: ConnectConfig,
    /// The live slot.
    pub slot: String,
    /// How far back the anchor reaches.
    pub keep: Duration,
    /// The WAL budget that must stay free for the relay.
    pub wal_budget: WalBudgetLimit,
}

/// Returns the bytes of WAL that an anchor may retain so that the relay's own budget still fits
/// after a reset. Returns `None` if the server sets no limit.
#[must_use]
pub fn anchor_wal_share(keep_bytes: Option<u64>, wal_budget: WalBudgetLimit) -> Option<u64> {
    let keep = keep_bytes?;
    // Without a budget, nothing is known about how far the relay may fall behind. It gets half of
    // the space.
    let budget = wal_budget.bytes(WalRetentionLimit::Bytes(keep)).unwrap_or(keep / 2);
    Some(keep.saturating_sub(budget))
}

/// The positions of the anchor, the live slot and the WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    /// The position of the anchor.
    at: Lsn,
    /// The WAL position at the start of the wanted time, if a position was noted for that time.
    wanted: Option<Lsn>,
    /// The position of the live slot. The anchor never passes it.
    live: Lsn,
    end: Lsn,
    /// The bytes of WAL that the anchor retains.
    kept: u64,
    /// The bytes of WAL that the anchor may retain.
    share: Option<u64>,
}

impl Standing {
    /// Returns the position to move the anchor to, if it must move. Its share wins over its time.
    fn target(&self) -> Option<Lsn> {
        // The target is a quarter below the share, so that the anchor does not move at every check.
        // Retained WAL starts before the anchor's position: transactions that were open there need
        // older WAL.
        let of_share = self.share.filter(|share| self.kept > *share).map(|share| {
            let open = self.kept.saturating_sub(self.end.bytes_since(self.at));
            let room = (share / 4 * 3).saturating_sub(open);
            Lsn::new(self.end.as_u64().saturating_sub(room))
        });
        let target = self.wanted.max(of_share)?.min(self.live);
        (target > self.at).then_some(target)
    }
}

impl AnchorKeeper {
    /// Maintains the anchor for as long as this future runs. Errors are logged and retried, because
    /// the relay works without the anchor.
    pub async fn run(self, health: Health) {
        loop {
            let pause = match health.phase() {
                Phase::Streaming => {
                    self.keep_or_log().await;
                    PACE
                }
                Phase::Starting
                | Phase::Standby { .. }
                | Phase::Reconnecting { .. }
                | Phase::Waiting { .. }
                | Phase::Ending { .. }
                | Phase::Draining => FIRST,
            };
            sleep(pause).await;
        }
    }

    async fn keep_or_log(&self) {
        if let Err(error) = self.keep().await {
            tracing::warn!(error = %Chain(&error), "the automatic anchor cannot be advanced");
        }
    }

    async fn keep(&self) -> Result<(), RelayError> {
        let client = connect_sql(&self.connect).await.map_err(RelayError::Connect)?;
        let kept = self.keep_once(&client).await;
        client.close().await;
        Ok(kept?)
    }

    async fn keep_once(&self, client: &SqlClient) -> Result<(), AdminError> {
        // An unfinished operation may need the slots as they are.
        if read_operation(client, &self.slot).await?.is_some() {
            return Ok(());
        }
        let name = anchor_slot(&self.slot, KEPT_ANCHOR)?;
        let anchors = read_anchors(client, &self.slot).await?;
        match anchors.into_iter().find(|anchor| anchor.slot.name == name) {
            None => self.create(client, &name).await,
            Some(anchor) if anchor.slot.is_lost() => {
                tracing::warn!(anchor = name, "the kept anchor was lost; another begins now");
                drop_slot(client, &name).await?;
                self.create(client, &name).await
            }
            Some(anchor) => self.advance(client, &anchor).await,
        }
    }

    async fn create(&self, client: &SqlClient, name: &str) -> Result<(), AdminError> {
        let room = read_slot_capacity(client).await?;
        if room.used >= room.max {
            return Err(AdminError::NoRoom(format!(
                "all {} replication slots are in use, and an anchor is one (max_replication_slots)",
                room.max
            )));
        }
        let at = copy_slot(client, &self.slot, name, CopyLifetime::Kept).await?;
        tracing::info!(anchor = name, %at, "an anchor is kept from here on");
        Ok(())
    }

    async fn advance(&self, client: &SqlClient, anchor: &Anchor) -> Result<(), AdminError> {
        let Some(live) = read_slot(client, &self.slot).await? else { return Ok(()) };
        let system = read_recorded_system_identifier(client, &self.slot).await?;
        let since = SystemTime::now().checked_sub(self.keep).unwrap_or(SystemTime::UNIX_EPOCH);
        let wanted = position_at(client, &system, since).await?;
        let room = read_slot_capacity(client).await?;
        let standing = Standing {
            at: anchor.slot.confirmed_flush_lsn.unwrap_or(Lsn::ZERO),
            wanted: wanted.map(|noted| noted.lsn),
            live: live.confirmed_flush_lsn.unwrap_or(Lsn::ZERO),
            end: live.wal_end,
            kept: anchor.slot.retained_bytes().unwrap_or(0),
            share: anchor_wal_share(room.keep_bytes, self.wal_budget),
        };
        let Some(target) = standing.target() else { return Ok(()) };
        if standing.wanted.is_none_or(|of_time| of_time < target) {
            tracing::warn!(
                anchor = anchor.slot.name,
                kept = standing.kept,
                "the kept anchor has grown past its share of max_slot_wal_keep_size: it covers less time"
            );
        }
        advance_anchor(client, anchor, target).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_relays_budget_and_an_anchors_share_fit_into_what_the_server_keeps() {
        for keep in [GIB, 4 * GIB, 64 * GIB] {
            for budget in
                [WalBudgetLimit::Auto, WalBudgetLimit::Off, WalBudgetLimit::Bytes(GIB / 2)]
            {
                let share = anchor_wal_share(Some(keep), budget).unwrap();
                let own = budget.bytes(WalRetentionLimit::Bytes(keep)).unwrap_or(keep / 2);
                assert!(share > 0 && share + own <= keep, "{keep} {budget:?}");
            }
        }
        let all = anchor_wal_share(Some(GIB), WalBudgetLimit::Bytes(2 * GIB));
        assert_eq!(all, Some(0), "it takes it all");
        assert_eq!(anchor_wal_share(None, WalBudgetLimit::Auto), None);
    }

    #[test]
    fn a_kept_anchor_follows_its_time_stays_behind_the_slot_and_within_its_share() {
        let at = Standing {
            at: Lsn::new(1_000),
            wanted: Some(Lsn::new(1_500)),
            live: Lsn::new(9_000),
            end: Lsn::new(9_500),
            kept: 8_600,
            share: None,
        };
        assert_eq!(at.target(), Some(Lsn::new(1_500)), "as far back as was asked for");
        assert_eq!(Standing { wanted: None, ..at }.target(), None, "no time is noted yet");
        assert_eq!(Standing { wanted: Some(Lsn::new(900)), ..at }.target(), None);
        let share = Standing { share: Some(4_000), ..at };
        // Three quarters of the share, minus the 100 bytes retained for transactions that were
        // open.
        assert_eq!(share.target(), Some(Lsn::new(9_500 - 2_900)), "its share wins");
        assert_eq!(Standing { share: Some(8_600), ..at }.target(), Some(Lsn::new(1_500)));
        let stuck = Standing { live: Lsn::new(1_200), share: Some(10), ..at };
        assert_eq!(stuck.target(), Some(Lsn::new(1_200)), "never past the slot");
    }
}
