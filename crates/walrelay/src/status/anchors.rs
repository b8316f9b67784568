//! Anchors of a report: slots that retain WAL on purpose, each with its age, and the anchor that is
//! near its loss.

use walrelay_errors::Code;
use walrelay_outbox_admin::{NextStep, StatusReport};
use walrelay_pg_replication::is_little_headroom;
use walrelay_relay::observe::report::AnchorReport;

use crate::output::text::{human_age, human_bytes, visible};

/// Returns the WAL that may still be written before the anchor is lost, if the server has a limit.
fn headroom(anchor: &AnchorReport) -> Option<i64> {
    anchor.safe_wal_bytes.filter(|_| !anchor.lost)
}

fn text(anchor: &AnchorReport) -> String {
    if anchor.lost {
        return "lost: its WAL was removed".to_owned();
    }
    let age = match anchor.age_seconds {
        Some(seconds) => format!(", reaches back {}", human_age(seconds)),
        None => String::new(),
    };
    let left = headroom(anchor).map(|bytes| human_bytes(u64::try_from(bytes).unwrap_or(0)));
    let left = left.map_or_else(String::new, |left| format!(", is lost after {left} more"));
    format!("retains {}{age}{left}", human_bytes(anchor.retained_bytes.unwrap_or(0)))
}

fn all(report: &StatusReport) -> impl Iterator<Item = &AnchorReport> {
    report.slot.iter().flat_map(|slot| &slot.anchors)
}

/// Returns a line for each anchor, with its name.
pub(super) fn lines(report: &StatusReport) -> Vec<(String, String)> {
    all(report).map(|anchor| (visible(&anchor.anchor), text(anchor))).collect()
}

/// Returns the anchor with the least WAL left, if that is less than `bytes`, and the next step.
pub(super) fn at_risk(report: &StatusReport, bytes: i64) -> Option<(String, NextStep)> {
    let is_at_risk = |anchor: &&AnchorReport| {
        let is_little = |left| is_little_headroom(left, anchor.retained_bytes, bytes);
        headroom(anchor).is_some_and(is_little)
    };
    let first = all(report).filter(is_at_risk).min_by_key(|anchor| headroom(anchor))?;
    let name = visible(&first.anchor);
    let step = format!("walrelay anchor advance {name}, or walrelay anchor drop {name}");
    Some((format!("anchor {name} {}", text(first)), NextStep::of(Code::AnchorAtRisk, step)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn each_anchor_has_a_line_and_the_one_that_is_lost_first_is_told() {
        let anchor = |name: &str, safe: Value, age: Value| {
            json!({ "anchor": name, "lost": false, "retained_bytes": 490 << 20,
                    "safe_wal_bytes": safe, "age_seconds": age })
        };
        let mut gone = anchor("gone", json!(-5), json!(null));
        gone["lost"] = json!(true);
        let report = json!({ "anchors": [
            anchor("daily", json!(22 << 20), json!(93_600)),
            anchor("later", json!(60 << 20), json!(30)),
            anchor("free", json!(null), json!(null)),
            gone,
        ] });
        let report: &StatusReport = &serde_json::from_value(report).unwrap();
        let daily = "retains 490 MiB, reaches back 1 d 2 h, is lost after 22 MiB more";
        let expected = [
            ("daily", daily),
            ("later", "retains 490 MiB, reaches back 30 s, is lost after 60 MiB more"),
            ("free", "retains 490 MiB"),
            ("gone", "lost: its WAL was removed"),
        ];
        assert_eq!(lines(report), expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        let (told, advice) = at_risk(report, 1 << 30).unwrap();
        assert_eq!(told, format!("anchor daily {daily}"));
        assert_eq!(advice.text, "walrelay anchor advance daily, or walrelay anchor drop daily");
        assert!(at_risk(&StatusReport::default(), 1 << 30).is_none());
    }
}
