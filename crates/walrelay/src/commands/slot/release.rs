//! `walrelay slot release`.

use clap::Args;
use serde::Serialize;
use walrelay_outbox_admin::protocols::{Released, ReleasedSlot, release};
use walrelay_relay::settings::{Settings, Until};
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::operator::{StopMode, Terminal, run_protocol};
use crate::config::Checks;
use crate::error::Error;
use crate::options::{ARGUMENTS, ChangeArgs, ServiceOptions};
use crate::plan::Plan;

/// Publish every row, then drop the slot and its anchors.
///
/// A slot retains WAL, and pg_upgrade refuses a server that has slots. Relays let go of the slot and wait.
/// Producers need not stop: `slot recover` creates the slot again and publishes their rows. Relays with
/// --on-slot-lost recover do so by themselves after an upgrade. While the slot exists, ending this command cancels
/// the release.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay slot release --project my-project"
)]
pub(crate) struct Release {
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    options: ServiceOptions,
}

impl Release {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let settings = checks.settings(&self.options, Until::CaughtUp)?;
        Some(Plan::new(async move |shutdown| Box::pin(self.run(&settings, shutdown)).await))
    }

    async fn run(&self, settings: &Settings, shutdown: &Shutdown) -> Result<(), Error> {
        let (connect, slot) = (&settings.connect, &settings.relay.outbox.slot);
        let terminal = Terminal::new(self.change.options(), shutdown);
        let released = run_protocol(connect, terminal, StopMode::Graceful, async |session| {
            release(session, settings).await
        });
        let released = released.await?;
        let text = |it| release_text(slot, it);
        terminal.print_result(released.as_ref(), text, |it| SlotReleaseJson::new(slot, it))
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

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_the_result_are_documented() {
        let released = Released::Dropped(ReleasedSlot {
            anchors: 1,
            settled_xid: 7,
            other_slots: vec!["other".to_owned()],
        });
        assert_documented("slot release", &SlotReleaseJson::new("s", &released));
    }
}
