//! `walrelay slot`: drops, advances, resets, releases and recovers the slot. Only explicit commands create or
//! drop slots (I9).

use crate::config::{
    AdvanceOrder, DatabaseConfig, RecoverOrder, ResetOrder, SlotAction, SlotConfig,
};
use crate::error::Error;
use crate::steps::protocol::{START_RELAY, rows_text};
use serde::Serialize;
use walrelay_outbox_admin::protocols::{
    Advance, AdvancedSlot, DroppedSlot, Recovered, Released, ReleasedSlot, ResetResult, TableRows,
    advance, drop_checked, recover, release, reset,
};
use walrelay_relay::settings::Settings;
use walrelay_relay::shutdown::Shutdown;

use super::shared::operator::{StopMode, Terminal, run_protocol};

/// Carries out the action and prints the result.
///
/// # Errors
///
/// Postgres cannot be reached or refuses, the slot does not exist, or the slot is in use.
pub(crate) async fn execute(config: SlotConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let SlotConfig { database, action, options, selection } = config;
    let terminal = Terminal { options, shutdown, selection: &selection };
    match action {
        SlotAction::Drop { discard_rows } => drop_slot(&database, discard_rows, terminal).await,
        SlotAction::Advance(order) => advance_slot(&database, &order, terminal).await,
        SlotAction::Reset(order) => reset_slot(&database, &order, terminal).await,
        SlotAction::Release(settings) => release_slot(&settings, terminal).await,
        SlotAction::Recover(order) => recover_slot(&database, &order, terminal).await,
    }
}

#[derive(Debug, Serialize)]
struct SlotDropJson<'a> {
    slot: &'a str,
    discarded_rows: u64,
    anchors: &'a [String],
}

impl<'a> SlotDropJson<'a> {
    fn new(slot: &'a str, dropped: &'a DroppedSlot) -> Self {
        let DroppedSlot { rows, anchors } = dropped;
        Self { slot, discarded_rows: *rows, anchors }
    }
}

async fn drop_slot(
    DatabaseConfig { connect, outbox }: &DatabaseConfig,
    discard_rows: u64,
    terminal: Terminal<'_>,
) -> Result<(), Error> {
    let slot = &outbox.slot;
    let dropped = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
        drop_checked(session, outbox, discard_rows).await
    });
    let dropped = dropped.await?;
    let text = |it: &DroppedSlot| drop_text(slot, it);
    terminal.print_result(dropped.as_ref(), text, |it| SlotDropJson::new(slot, it))
}

fn drop_text(slot: &str, DroppedSlot { rows, anchors }: &DroppedSlot) -> String {
    let mut text = format!("dropped: slot {slot}, with {rows} unconfirmed row(s)\n");
    for anchor in anchors {
        text.push_str(&format!(
            "anchor {anchor} stays and retains WAL: `walrelay anchor drop {anchor}` releases it\n"
        ));
    }
    text
}

#[derive(Debug, Serialize)]
struct SlotAdvanceJson<'a> {
    slot: &'a str,
    result: &'static str,
    lsn: String,
    skipped_rows: u64,
    skipped_transactions: u64,
    republishable_event_ids: Vec<&'a str>,
}

impl<'a> SlotAdvanceJson<'a> {
    fn new(slot: &'a str, advanced: &'a AdvancedSlot) -> Self {
        let AdvancedSlot { at, skipped, is_earlier } = advanced;
        Self {
            slot,
            result: if *is_earlier { "advanced_before" } else { "advanced" },
            lsn: at.to_string(),
            skipped_rows: skipped.inserts,
            skipped_transactions: skipped.transactions,
            republishable_event_ids: skipped.publishable_ids(),
        }
    }
}

async fn advance_slot(
    DatabaseConfig { connect, outbox }: &DatabaseConfig,
    order: &AdvanceOrder,
    terminal: Terminal<'_>,
) -> Result<(), Error> {
    let slot = &outbox.slot;
    let AdvanceOrder { to, discard_rows, columns } = order;
    let past = Advance { to: *to, discard_rows: *discard_rows, columns };
    let advanced = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
        advance(session, outbox, past).await
    });
    let advanced = advanced.await?;
    let text = |it: &AdvancedSlot| match it.is_earlier {
        true => format!("slot {slot} was moved past these rows before, and is at {}\n", it.at),
        false => format!("slot {slot} is now at {}\n", it.at),
    };
    terminal.print_result(advanced.as_ref(), text, |it| SlotAdvanceJson::new(slot, it))
}

#[derive(Debug, Serialize)]
struct SlotResetJson<'a> {
    slot: &'a str,
    result: &'static str,
    lsn: Option<String>,
}

impl<'a> SlotResetJson<'a> {
    fn new(slot: &'a str, reset: &ResetResult) -> Self {
        let (result, lsn) = match reset {
            ResetResult::Done { target, is_earlier: false } => ("reset", Some(target.to_string())),
            ResetResult::Done { target, is_earlier: true } => {
                ("earlier_reset_finished", Some(target.to_string()))
            }
            ResetResult::ByOther => ("finished_elsewhere", None),
        };
        Self { slot, result, lsn }
    }
}

async fn reset_slot(
    DatabaseConfig { connect, outbox }: &DatabaseConfig,
    order: &ResetOrder,
    terminal: Terminal<'_>,
) -> Result<(), Error> {
    let slot = &outbox.slot;
    let done = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
        reset(session, outbox, order).await
    });
    let text = |it: &ResetResult| reset_text(slot, it);
    let json = |it: &ResetResult| SlotResetJson::new(slot, it);
    terminal.print_result(done.await?.as_ref(), text, json)
}

fn reset_text(slot: &str, done: &ResetResult) -> String {
    match done {
        ResetResult::Done { target, is_earlier } => {
            let whose = match is_earlier {
                true => ": the earlier reset is finished; run the command again for another",
                false => "",
            };
            format!(
                "slot {slot} starts at {target} again{whose}\nrows after it are published again, to the same topics; a \
                 running relay continues by itself\n"
            )
        }
        ResetResult::ByOther => "the reset is finished: another process has done it\n".to_owned(),
    }
}

#[derive(Debug, Serialize)]
struct SlotReleaseJson<'a> {
    slot: &'a str,
    result: &'static str,
    dropped_anchors: usize,
    settled_xid: Option<u64>,
    other_slots: &'a [String],
}

impl<'a> SlotReleaseJson<'a> {
    fn new(slot: &'a str, released: &'a Released) -> Self {
        let (result, anchors, settled_xid, other_slots) = match released {
            Released::OnAnotherServer => ("server_replaced", 0, None, &[][..]),
            Released::Dropped(ReleasedSlot { anchors, settled_xid, other_slots }) => {
                ("released", *anchors, Some(*settled_xid), other_slots.as_slice())
            }
        };
        Self { slot, result, dropped_anchors: anchors, settled_xid, other_slots }
    }
}

async fn release_slot(settings: &Settings, terminal: Terminal<'_>) -> Result<(), Error> {
    let slot = &settings.relay.outbox.slot;
    let released = run_protocol(&settings.connect, terminal, StopMode::Graceful, async |session| {
        release(session, settings).await
    });
    let released = released.await?;
    let text = |it| release_text(slot, it);
    terminal.print_result(released.as_ref(), text, |it| SlotReleaseJson::new(slot, it))
}

fn release_text(slot: &str, released: &Released) -> String {
    let ReleasedSlot { anchors, settled_xid, other_slots } = match released {
        Released::OnAnotherServer => {
            return format!(
                "slot {slot} was released on another server: this one is upgraded\nnext: {RECOVER}"
            );
        }
        Released::Dropped(dropped) => dropped,
    };
    let others = match other_slots.is_empty() {
        true => String::new(),
        false => format!("other slots block an upgrade: {}\n", other_slots.join(", ")),
    };
    format!(
        "drained: everything committed before is published\ndropped: slot {slot} and {anchors} anchor(s)\n\
         on record: every transaction below {settled_xid} is settled\n{others}\
         next: upgrade the server, or leave it as it is; producers need not stop, and relays wait\n\
         then: {RECOVER}"
    )
}

/// The next step after a release.
const RECOVER: &str = "walrelay slot recover. After an upgrade, relays with --on-slot-lost recover do it by themselves\n";

#[derive(Debug, Serialize)]
struct SlotRecoverJson<'a> {
    slot: &'a str,
    result: &'static str,
    operation: Option<String>,
    rows_to_publish: &'a [TableRows],
}

impl<'a> SlotRecoverJson<'a> {
    fn new(slot: &'a str, recovered: &'a Recovered) -> Self {
        let (result, operation, rows) = match recovered {
            Recovered::ReleaseCancelled => ("release_cancelled", None, &[][..]),
            Recovered::NewSlot { operation, rows } => {
                ("slot_created", Some(operation.describe(slot)), rows.as_slice())
            }
            Recovered::Finished(done) => ("operation_finished", Some(done.describe(slot)), &[][..]),
            Recovered::ByRelay => ("finished_by_relay", None, &[][..]),
        };
        Self { slot, result, operation, rows_to_publish: rows }
    }
}

async fn recover_slot(
    DatabaseConfig { connect, outbox }: &DatabaseConfig,
    RecoverOrder { since, columns }: &RecoverOrder,
    terminal: Terminal<'_>,
) -> Result<(), Error> {
    let slot = &outbox.slot;
    let recovered = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
        recover(session, outbox, *since, columns).await
    });
    let recovered = recovered.await?;
    let text = |it| recover_text(slot, it);
    terminal.print_result(recovered.as_ref(), text, |it| SlotRecoverJson::new(slot, it))
}

fn recover_text(slot: &str, recovered: &Recovered) -> String {
    match recovered {
        Recovered::ReleaseCancelled => {
            format!("slot {slot} still exists: its release is cancelled, and relays continue\n")
        }
        Recovered::NewSlot { operation, rows } => {
            format!("slot {slot}: {}\n{}{START_RELAY}", operation.describe(slot), rows_text(rows))
        }
        Recovered::Finished(done) => format!("finished: {}\n", done.describe(slot)),
        Recovered::ByRelay => "the slot is recovered: a relay has done it\n".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use pgoutput_parser::Lsn;
    use walrelay_outbox_admin::lookahead::SkippedRow;
    use walrelay_outbox_admin::protocols::SkippedRows;
    use walrelay_outbox_replay::{Resharding, SlotOperation};
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_each_result_are_documented() {
        let dropped = DroppedSlot { rows: 1, anchors: vec!["a".to_owned()] };
        assert_documented("slot drop", &SlotDropJson::new("s", &dropped));
        let row = SkippedRow {
            event_id: Some("a".to_owned()),
            at: "0/64#0".to_owned(),
            is_sendable: true,
        };
        let skipped = SkippedRows {
            target: Lsn::new(108),
            transactions: 1,
            inserts: 1,
            other_changes: 0,
            rows: vec![row],
            notes: Vec::new(),
        };
        let advanced = AdvancedSlot { at: Lsn::new(108), skipped, is_earlier: false };
        assert_documented("slot advance", &SlotAdvanceJson::new("s", &advanced));
        let reset = ResetResult::Done { target: Lsn::new(1), is_earlier: false };
        assert_documented("slot reset", &SlotResetJson::new("s", &reset));
        let released = Released::Dropped(ReleasedSlot {
            anchors: 1,
            settled_xid: 7,
            other_slots: vec!["other".to_owned()],
        });
        assert_documented("slot release", &SlotReleaseJson::new("s", &released));
        let operation = SlotOperation::Resharding(Resharding { from: 1, to: 2 });
        let rows = vec![TableRows { table: "public.app_outbox".to_owned(), rows: 1 }];
        let recovered = Recovered::NewSlot { operation, rows };
        assert_documented("slot recover", &SlotRecoverJson::new("s", &recovered));
    }
}
