//! Reports anchors to operators. Anchors retain WAL on purpose, and are easily forgotten.

use walrelay_errors::Code;
use walrelay_outbox_store::{AnchorStatus, Reason, ReasonKind};
use walrelay_pg_replication::SlotState;

use crate::observe::health::{Health, Problem};
use crate::observe::metrics::Metrics;

/// The alarm threshold: the bytes of WAL until an anchor or the slot is lost, if the server's limit
/// is larger. On a busy database this is a matter of minutes.
const SAFE_WAL_BYTES_LOW: i64 = 256 << 20;

/// Reports each anchor to the metrics. Anchors that may be lost soon make the relay not ready.
pub(super) fn observe(anchors: &[AnchorStatus], metrics: &Metrics, health: &Health) {
    metrics.set_anchors(anchors);
    let at_risk = anchors
        .iter()
        .filter_map(|it| Some((Problem::AnchorAtRisk(it.name.clone()), risk_of(it)?)));
    health.replace(|it| matches!(it, Problem::AnchorAtRisk(_)), at_risk);
}

/// Returns the reason why the slot may be lost soon.
pub(super) fn risk_of_slot(slot: &SlotState) -> Option<Reason> {
    let left = slot.safe_wal_size.filter(|_| slot.has_less_room_than(SAFE_WAL_BYTES_LOW))?;
    let risk =
        format!("slot at risk: {left} bytes of WAL until it is lost (max_slot_wal_keep_size)");
    Some(Reason::new(ReasonKind::SlotAtRisk, risk))
}

fn risk_of(AnchorStatus { name, slot, age }: &AnchorStatus) -> Option<Reason> {
    let left = slot.safe_wal_size.filter(|_| slot.has_less_room_than(SAFE_WAL_BYTES_LOW))?;
    let retained = slot.retained_bytes().unwrap_or(0);
    let since = age.map_or_else(String::new, |age| format!(" of the last {} s", age.as_secs()));
    let risk = format!(
        "anchor at risk: {name} retains {retained} bytes of WAL{since}, and is lost after {left} bytes more \
         (max_slot_wal_keep_size)"
    );
    let reason = Reason::new(ReasonKind::AnchorAtRisk, risk).about(name);
    Some(reason.with_code(Code::AnchorAtRisk.name()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::health::Phase;
    use pgoutput_parser::Lsn;
    use walrelay_pg_replication::SlotType;

    fn anchor(name: &str, safe_wal_size: Option<i64>, age: Option<Duration>) -> AnchorStatus {
        let slot = SlotState {
            name: format!("walrelay_anchor_{name}"),
            plugin: Some("pgoutput".into()),
            slot_type: SlotType::Logical,
            database: Some("app".into()),
            active_pid: None,
            restart_lsn: Some(Lsn::new(1_000)),
            confirmed_flush_lsn: Some(Lsn::new(1_100)),
            wal_status: None,
            safe_wal_size,
            two_phase: false,
            failover: None,
            invalidation_reason: None,
            conflicting: None,
            wal_end: Lsn::new(1_000 + (512 << 20)),
        };
        AnchorStatus { name: name.into(), slot, age }
    }

    #[test]
    fn a_forgotten_anchor_is_named_with_its_age_and_what_it_retains() {
        let (metrics, health) = (Metrics::new(), Health::new());
        health.set_phase(Phase::Streaming);
        let day = Some(Duration::from_hours(24));
        let all = [anchor("old", Some(22 << 20), day), anchor("free", None, None)];
        observe(&all, &metrics, &health);
        let text = metrics.encode().unwrap();
        for line in [
            "walrelay_anchor_retained_bytes{anchor=\"old\"} 536870912",
            "walrelay_anchor_safe_wal_bytes{anchor=\"old\"} 23068672",
            "walrelay_anchor_age_seconds{anchor=\"old\"} 86400.0",
            "walrelay_anchor_retained_bytes{anchor=\"free\"} 536870912",
            "walrelay_anchor_safe_wal_bytes{anchor=\"free\"} -1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("age_seconds{anchor=\"free\"}"), "its age is not known");
        let reasons = health.reasons_not_ready();
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert_eq!(reasons[0].kind, ReasonKind::AnchorAtRisk);
        assert_eq!(reasons[0].code.as_deref(), Some("anchor-at-risk"));
        for word in ["anchor at risk: old", "536870912", "86400 s"] {
            assert!(reasons[0].text.contains(word), "{word}: {reasons:?}");
        }
        observe(&[], &metrics, &health);
        assert!(health.reasons_not_ready().is_empty());
        assert!(!metrics.encode().unwrap().contains("anchor_retained_bytes{"));
    }
}
