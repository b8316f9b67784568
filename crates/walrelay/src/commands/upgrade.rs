//! `walrelay upgrade`: prepares, finishes and cancels an upgrade of Postgres.

use pgoutput_parser::Lsn;
use serde::Serialize;
use walrelay_command_line::config::{DatabaseConfig, UpgradeAction, UpgradeConfig};
use walrelay_outbox_admin::protocols::{
    DroppedForUpgrade, UpgradePrepared, cancel_upgrade, finish_upgrade, prepare_upgrade,
};
use walrelay_relay::settings::Settings;
use walrelay_relay::shutdown::Shutdown;
use walrelay_reports::error::Error;

use super::shared::operator::{StopMode, Terminal, run_protocol};

/// Carries out the action and prints the next step.
///
/// # Errors
///
/// The slot is missing or lost, an operation is unfinished, or a relay does not release the slot.
/// Also if Postgres or Pub/Sub refuses, or the command was interrupted.
pub async fn execute(config: UpgradeConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let UpgradeConfig { action, options } = config;
    let terminal = Terminal::new(options, shutdown);
    match action {
        UpgradeAction::Prepare(settings) => prepare(&settings, terminal).await,
        UpgradeAction::Finish(database) => finish(&database, terminal).await,
        UpgradeAction::Cancel(database) => cancel(&database, terminal).await,
    }
}

#[derive(Debug, Serialize)]
struct UpgradePrepareJson<'a> {
    slot: &'a str,
    result: &'static str,
    dropped_anchors: usize,
    settled_xid: Option<u64>,
    other_slots: &'a [String],
}

impl<'a> UpgradePrepareJson<'a> {
    fn new(slot: &'a str, prepared: &'a UpgradePrepared) -> Self {
        match prepared {
            UpgradePrepared::Upgraded => Self {
                slot,
                result: "upgraded",
                dropped_anchors: 0,
                settled_xid: None,
                other_slots: &[],
            },
            UpgradePrepared::Dropped(dropped) => Self {
                slot,
                result: "prepared",
                dropped_anchors: dropped.anchors,
                settled_xid: Some(dropped.settled_xid),
                other_slots: &dropped.other_slots,
            },
        }
    }
}

async fn prepare(settings: &Settings, terminal: Terminal<'_>) -> Result<(), Error> {
    let slot = &settings.relay.outbox.slot;
    let connect = &settings.connect;
    let prepared = run_protocol(connect, terminal, StopMode::Graceful, async |session| {
        prepare_upgrade(session, settings).await
    });
    let prepared = prepared.await?;
    let text = |it| prepared_text(slot, it);
    terminal.print_result(prepared.as_ref(), text, |it| UpgradePrepareJson::new(slot, it))
}

fn prepared_text(slot: &str, prepared: &UpgradePrepared) -> String {
    let DroppedForUpgrade { anchors, settled_xid, other_slots } = match prepared {
        UpgradePrepared::Upgraded => return UPGRADED.to_owned(),
        UpgradePrepared::Dropped(dropped) => dropped,
    };
    let others = match other_slots.is_empty() {
        true => String::new(),
        false => {
            format!("other slots stand in the way of an upgrade too: {}\n", other_slots.join(", "))
        }
    };
    format!(
        "drained: everything committed before is published\ndropped: slot {slot} and {anchors} anchor(s)\n\
         on record: every transaction below {settled_xid} is settled\n{others}\
         next: upgrade the server; producers need not stop, and relays wait\n\
         then: walrelay slot recover, unless relays run with --on-slot-lost recover, which do it by themselves\n\
         instead of an upgrade: walrelay slot recover continues here\n"
    )
}

/// Printed when the server is already upgraded.
const UPGRADED: &str = "the server is not the one that was prepared: it is upgraded\n\
     next: walrelay slot recover, unless relays run with --on-slot-lost recover, which do it by themselves\n";

#[derive(Debug, Serialize)]
struct UpgradeFinishJson<'a> {
    slot: &'a str,
    lsn: String,
}

async fn finish(
    DatabaseConfig { connect, outbox }: &DatabaseConfig,
    terminal: Terminal<'_>,
) -> Result<(), Error> {
    let slot = &outbox.slot;
    let at = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
        finish_upgrade(session, outbox).await
    });
    let text = |lsn: &Lsn| format!("adopted: slot {slot}, which streams from {lsn}\n");
    let json = |lsn: &Lsn| UpgradeFinishJson { slot, lsn: lsn.to_string() };
    terminal.print_result(at.await?.as_ref(), text, json)
}

#[derive(Debug, Serialize)]
struct UpgradeCancelJson<'a> {
    slot: &'a str,
}

async fn cancel(
    DatabaseConfig { connect, outbox }: &DatabaseConfig,
    terminal: Terminal<'_>,
) -> Result<(), Error> {
    let slot = &outbox.slot;
    let cancelled = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
        cancel_upgrade(session, outbox).await
    });
    let cancelled = cancelled.await?;
    let text = |(): &()| {
        format!("slot {slot} is still there: the upgrade is cancelled, and relays continue\n")
    };
    terminal.print_result(cancelled.as_ref(), text, |()| UpgradeCancelJson { slot })
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_each_result_are_documented() {
        let dropped =
            DroppedForUpgrade { anchors: 1, settled_xid: 7, other_slots: vec!["other".to_owned()] };
        let prepared = UpgradePrepared::Dropped(dropped);
        assert_documented("upgrade prepare", &UpgradePrepareJson::new("s", &prepared));
        let finished = UpgradeFinishJson { slot: "s", lsn: "0/1".to_owned() };
        assert_documented("upgrade finish", &finished);
        assert_documented("upgrade cancel", &UpgradeCancelJson { slot: "s" });
    }
}
