//! `walrelay anchor`: create, list, advance, drop. Only these commands change anchors (I9).

use crate::config::{AnchorAction, AnchorConfig, DatabaseConfig, Place};
use crate::error::Error;
use crate::output::text::human_bytes;
use pgoutput_parser::Lsn;
use serde::Serialize;
use walrelay_outbox_admin::protocols::{
    AdvancedAnchor, AnchorList, CreatedAnchor, create_anchor, drop_anchor, list_anchors,
    move_anchor,
};
use walrelay_outbox_store::Anchor;
use walrelay_relay::observe::report::{rfc3339, wal_status};
use walrelay_relay::shutdown::Shutdown;

use super::shared::operator::{StopMode, Terminal, run_protocol};

/// Carries out the action and prints the result.
///
/// # Errors
///
/// Postgres cannot be reached or refuses, the anchor does not exist, or the server has no capacity
/// for one.
pub(crate) async fn execute(config: AnchorConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let AnchorConfig { database, action, options } = config;
    let terminal = Terminal::new(options, shutdown);
    let DatabaseConfig { connect, outbox } = &database;
    match action {
        AnchorAction::Create { name, wal_budget } => {
            let created = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
                create_anchor(session.client, outbox, &name, wal_budget).await
            });
            let created = created.await?;
            let json = AnchorCreateJson::new(&name, &created);
            terminal.print_result(Some(&created), |it| created_text(&name, it), |_| json)
        }
        AnchorAction::List { wal_budget } => {
            let list = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
                list_anchors(session.client, outbox, wal_budget).await
            });
            let text = |it: &AnchorList| as_table(&it.anchors, it.share, &outbox.slot);
            terminal.print_result(Some(&list.await?), text, AnchorListing::list)
        }
        AnchorAction::Advance { name, to } => advance(&database, &name, to, terminal).await,
        AnchorAction::Drop { name } => {
            let dropped = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
                drop_anchor(session, outbox, &name).await
            });
            let text = |bytes: &u64| {
                format!("dropped: anchor {name}, which retained {} of WAL\n", human_bytes(*bytes))
            };
            let json = |bytes: &u64| AnchorDropJson { anchor: &name, retained_bytes: *bytes };
            terminal.print_result(dropped.await?.as_ref(), text, json)
        }
    }
}

async fn advance(
    DatabaseConfig { connect, outbox }: &DatabaseConfig,
    name: &str,
    to: Option<Place>,
    terminal: Terminal<'_>,
) -> Result<(), Error> {
    let moved = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
        move_anchor(session, outbox, name, to).await
    });
    let text = |it: &AdvancedAnchor| {
        format!(
            "anchor {name} is now at {}; it retains {} of WAL, {} before\n",
            shown_lsn(it.at),
            human_bytes(it.retained),
            human_bytes(it.retained_before)
        )
    };
    let json = |it: &AdvancedAnchor| AnchorAdvanceJson::new(name, it);
    terminal.print_result(moved.await?.as_ref(), text, json)
}

fn created_text(name: &str, created: &CreatedAnchor) -> String {
    let CreatedAnchor { slot, at, share, slots_left } = created;
    let limit = match share {
        Some(share) => format!(
            "advance it before it retains {} of WAL: beyond that, the relay's own --wal-budget does not fit\n",
            human_bytes(*share)
        ),
        None => {
            "this server retains WAL without limit (max_slot_wal_keep_size): advance or drop the anchor before the \
             disk is full\n"
                .to_owned()
        }
    };
    let full = match slots_left {
        0 => "no replication slot is left, and a replay needs one: raise max_replication_slots\n",
        _ => "",
    };
    format!("created: anchor {name} (slot {slot}), from {at}\n{limit}{full}")
}

#[derive(Debug, Serialize)]
struct AnchorCreateJson<'a> {
    anchor: &'a str,
    slot: String,
    lsn: String,
    share_bytes: Option<u64>,
    replication_slots_left: u32,
}

impl<'a> AnchorCreateJson<'a> {
    fn new(anchor: &'a str, created: &CreatedAnchor) -> Self {
        Self {
            anchor,
            slot: created.slot.clone(),
            lsn: created.at.to_string(),
            share_bytes: created.share,
            replication_slots_left: created.slots_left,
        }
    }
}

#[derive(Debug, Serialize)]
struct AnchorAdvanceJson<'a> {
    anchor: &'a str,
    lsn: Option<String>,
    retained_bytes: u64,
    retained_bytes_before: u64,
}

impl<'a> AnchorAdvanceJson<'a> {
    fn new(anchor: &'a str, moved: &AdvancedAnchor) -> Self {
        Self {
            anchor,
            lsn: moved.at.map(|lsn| lsn.to_string()),
            retained_bytes: moved.retained,
            retained_bytes_before: moved.retained_before,
        }
    }
}

#[derive(Debug, Serialize)]
struct AnchorDropJson<'a> {
    anchor: &'a str,
    retained_bytes: u64,
}

/// An anchor, as `anchor list -o json` prints it.
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

fn shown_lsn(lsn: Option<Lsn>) -> String {
    lsn.map_or_else(|| "–".to_owned(), |lsn| lsn.to_string())
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
            shown_lsn(state.confirmed_flush_lsn),
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

    #[test]
    fn the_fields_of_each_change_are_documented() {
        let created = CreatedAnchor {
            slot: "walrelay_anchor_daily".to_owned(),
            at: Lsn::new(1),
            share: Some(1),
            slots_left: 0,
        };
        assert_documented("anchor create", &AnchorCreateJson::new("daily", &created));
        let moved = AdvancedAnchor { at: Some(Lsn::new(1)), retained_before: 2, retained: 1 };
        assert_documented("anchor advance", &AnchorAdvanceJson::new("daily", &moved));
        assert_documented("anchor drop", &AnchorDropJson { anchor: "daily", retained_bytes: 1 });
    }
}
