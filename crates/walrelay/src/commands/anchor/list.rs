//! `walrelay anchor list`.

use clap::Args;
use pgoutput_parser::Lsn;
use serde::Serialize;
use walrelay_outbox_admin::protocols::{AnchorList, list_anchors};
use walrelay_outbox_store::Anchor;
use walrelay_relay::observe::report::{rfc3339, wal_status};
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::operator::{StopMode, Terminal, run_protocol};
use crate::config::{Checks, DatabaseConfig};
use crate::error::Error;
use crate::options::{DatabaseOptions, OutputOptions, WalBudgetOption};
use crate::output::text::{human_bytes, lsn_or_dash};
use crate::plan::Plan;

/// List the anchors of the slot, their reach and the WAL that they retain.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  walrelay anchor list --output json")]
pub(crate) struct List {
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    wal_budget: WalBudgetOption,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl List {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let database = checks.database(&self.database)?;
        Some(Plan::new(async move |shutdown| self.run(&database, shutdown).await))
    }

    async fn run(
        &self,
        DatabaseConfig { connect, outbox }: &DatabaseConfig,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let terminal = Terminal::unasked(self.output.output, shutdown);
        let list = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
            list_anchors(session.client, outbox, self.wal_budget.wal_budget).await
        });
        let text = |it: &AnchorList| as_table(&it.anchors, it.share, &outbox.slot);
        terminal.print_result(Some(&list.await?), text, AnchorListing::list)
    }
}

#[derive(Debug, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the JSON")]
struct AnchorListing {
    anchor: String,
    slot: String,
    active: bool,
    active_pid: Option<i32>,
    wal_status: Option<&'static str>,
    lost: bool,
    invalidation_reason: Option<String>,
    failover: Option<bool>,
    wal_end: String,
    confirmed_flush_lsn: Option<String>,
    restart_lsn: Option<String>,
    lag_bytes: Option<u64>,
    retained_bytes: Option<u64>,
    pinned_bytes: Option<u64>,
    safe_wal_bytes: Option<i64>,
    reaches_back_to: Option<String>,
    share_bytes: Option<u64>,
}

impl AnchorListing {
    fn list(AnchorList { anchors, share }: &AnchorList) -> Vec<Self> {
        anchors.iter().map(|anchor| Self::new(anchor, *share)).collect()
    }

    fn new(anchor: &Anchor, share_bytes: Option<u64>) -> Self {
        let state = &anchor.slot;
        let text = |lsn: Option<Lsn>| lsn.map(|lsn| lsn.to_string());
        Self {
            anchor: anchor.name.clone(),
            slot: state.name.clone(),
            active: state.active_pid.is_some(),
            active_pid: state.active_pid,
            wal_status: state.wal_status.map(wal_status),
            lost: state.is_lost(),
            invalidation_reason: state.invalidation_reason.clone(),
            failover: state.failover,
            wal_end: state.wal_end.to_string(),
            confirmed_flush_lsn: text(state.confirmed_flush_lsn),
            restart_lsn: text(state.restart_lsn),
            lag_bytes: state.lag_bytes(),
            retained_bytes: state.retained_bytes(),
            pinned_bytes: state.pinned_bytes(),
            safe_wal_bytes: state.safe_wal_size,
            reaches_back_to: anchor.reaches_back_to.map(rfc3339),
            share_bytes,
        }
    }
}

fn as_table(anchors: &[Anchor], share: Option<u64>, slot: &str) -> String {
    if anchors.is_empty() {
        return format!("slot {slot} has no anchor\n");
    }
    let mut text = String::new();
    for anchor in anchors {
        let state = &anchor.slot;
        let back = anchor.reaches_back_to.map_or_else(|| "nothing".to_owned(), rfc3339);
        let headroom = match (state.is_lost(), state.safe_wal_size) {
            (true, _) => "lost: the WAL that it retained was removed".to_owned(),
            (false, Some(bytes)) => human_bytes(u64::try_from(bytes).unwrap_or(0)),
            (false, None) => "unlimited".to_owned(),
        };
        let kept = state.retained_bytes().unwrap_or(0);
        let past = match share.filter(|share| kept > *share) {
            Some(share) => format!(", past its share of {}: advance it", human_bytes(share)),
            None => String::new(),
        };
        text.push_str(&format!(
            "{}\n  slot             {}\n  reaches back to  {back}\n  position         {}\n  \
             retains          {}{past}\n  until lost       {headroom}\n",
            anchor.name,
            state.name,
            lsn_or_dash(state.confirmed_flush_lsn),
            human_bytes(kept),
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use walrelay_pg_replication::{SlotState, SlotType, WalStatus};
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_the_list_are_documented() {
        let slot = SlotState {
            name: "walrelay_anchor_daily".to_owned(),
            plugin: None,
            slot_type: SlotType::Logical,
            database: None,
            active_pid: Some(7),
            restart_lsn: Some(Lsn::new(1)),
            confirmed_flush_lsn: Some(Lsn::new(2)),
            wal_status: Some(WalStatus::Extended),
            safe_wal_size: Some(1),
            two_phase: false,
            failover: Some(false),
            invalidation_reason: Some("wal_removed".to_owned()),
            conflicting: None,
            wal_end: Lsn::new(3),
        };
        let reaches_back_to = Some(SystemTime::UNIX_EPOCH);
        let anchor = Anchor { name: "daily".to_owned(), slot, reaches_back_to };
        let list = AnchorList { anchors: vec![anchor], share: Some(1) };
        assert_documented("anchor list", &AnchorListing::list(&list));
    }
}
