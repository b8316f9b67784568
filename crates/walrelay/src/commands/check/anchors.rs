//! Findings about anchors: each with its age and the WAL it retains.

use crate::output::text::{human_age, human_bytes};
use walrelay_errors::Code;
use walrelay_outbox_admin::{Finding, HEADROOM_BYTES_MIN};
use walrelay_outbox_store::{AnchorStatus, read_anchor_states};
use walrelay_pg_client::SqlClient;

/// Returns a finding for each anchor of a slot. If the slots cannot be read, other findings report
/// that.
pub(super) async fn of(client: &SqlClient, slot: &str) -> Vec<Finding> {
    let anchors = read_anchor_states(client, slot).await.unwrap_or_default();
    anchors.iter().map(of_one).collect()
}

fn of_one(AnchorStatus { name, slot, age }: &AnchorStatus) -> Finding {
    let subject = format!("anchor {name}");
    if slot.is_lost() {
        let fix = format!("walrelay anchor drop {name}");
        return Finding::warning(Code::AnchorLost, subject, "is lost: its WAL was removed")
            .fix(fix);
    }
    let age =
        age.map_or_else(String::new, |age| format!(", reaches back {}", human_age(age.as_secs())));
    let retains = format!("retains {}{age}", human_bytes(slot.retained_bytes().unwrap_or(0)));
    match slot.safe_wal_size.filter(|_| slot.has_less_room_than(HEADROOM_BYTES_MIN)) {
        None => Finding::passed("anchor", subject, retains),
        Some(left) => {
            let left = human_bytes(u64::try_from(left).unwrap_or(0));
            let message =
                format!("{retains}, and is lost after {left} more (max_slot_wal_keep_size)");
            let fix = format!("walrelay anchor advance {name}, or walrelay anchor drop {name}");
            Finding::warning(Code::AnchorAtRisk, subject, message).fix(fix)
        }
    }
}
