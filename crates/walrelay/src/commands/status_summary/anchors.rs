//! Anchors of a report: slots that retain WAL on purpose, each with its age, and the anchor that is
//! near its loss.

use serde_json::{Map, Value};
use walrelay_pg_replication::is_little_headroom;

use crate::output::{human_age, human_bytes, visible};

/// One anchor in a report.
struct Anchor<'a>(&'a Value);

impl Anchor<'_> {
    fn name(&self) -> String {
        self.0["anchor"].as_str().map(visible).unwrap_or_default()
    }

    fn retained(&self) -> u64 {
        self.0["retained_bytes"].as_u64().unwrap_or(0)
    }

    fn is_lost(&self) -> bool {
        self.0["lost"] == true
    }

    /// Returns the WAL that may still be written before the anchor is lost, if the server has a
    /// limit.
    fn room(&self) -> Option<i64> {
        self.0["safe_wal_bytes"].as_i64().filter(|_| !self.is_lost())
    }

    fn has_less_room_than(&self, bytes: i64) -> bool {
        let is_little = |room| is_little_headroom(room, Some(self.retained()), bytes);
        self.room().is_some_and(is_little)
    }

    fn text(&self) -> String {
        if self.is_lost() {
            return "lost: its WAL was removed".to_owned();
        }
        let age = match self.0["age_seconds"].as_u64() {
            Some(seconds) => format!(", reaches back {}", human_age(seconds)),
            None => String::new(),
        };
        let room = self.room().map(|room| human_bytes(u64::try_from(room).unwrap_or(0)));
        let room = room.map_or_else(String::new, |room| format!(", is lost after {room} more"));
        format!("retains {}{age}{room}", human_bytes(self.retained()))
    }
}

fn all(report: &Map<String, Value>) -> impl Iterator<Item = Anchor<'_>> {
    report.get("anchors").and_then(Value::as_array).into_iter().flatten().map(Anchor)
}

/// Returns a line for each anchor, with its name.
pub(super) fn lines(report: &Map<String, Value>) -> Vec<(String, String)> {
    all(report).map(|anchor| (anchor.name(), anchor.text())).collect()
}

/// Returns the anchor with the least WAL left, if that is less than `bytes`, and the next step.
pub(super) fn at_risk(report: &Map<String, Value>, bytes: i64) -> Option<(String, String)> {
    let at_risk = all(report).filter(|anchor| anchor.has_less_room_than(bytes));
    let first = at_risk.min_by_key(Anchor::room)?;
    let name = first.name();
    Some((
        format!("anchor {name} {}", first.text()),
        format!("walrelay anchor advance {name}, or walrelay anchor drop {name}"),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        let report = report.as_object().unwrap();
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
        assert_eq!(advice, "walrelay anchor advance daily, or walrelay anchor drop daily");
        assert!(at_risk(&Map::new(), 1 << 30).is_none());
    }
}
