//! Judges the stored messages: which rows are lost, repeated or out of order. The same rules apply
//! to every peer.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

/// A row of the workload, found again in a message by its number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Arrival {
    /// The row's number, counted from 0 over all keys.
    pub(crate) row: u64,
    /// The time of the insert, in Unix seconds.
    pub(crate) inserted_at: f64,
    /// The time when the sink stored the message, in Unix seconds.
    pub(crate) stored_at: f64,
}

impl Arrival {
    /// Finds the row in a message's text. Some peers quote or wrap the payload.
    pub(crate) fn parse(text: &str, stored_at: f64) -> Option<Self> {
        let row = number_of(text, "n")?.parse().ok()?;
        let inserted_at = number_of(text, "at")?.parse().ok()?;
        Some(Self { row, inserted_at, stored_at })
    }
}

/// Returns the number of a JSON member, also inside a JSON string.
fn number_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let plain = format!("\"{name}\":");
    let quoted = format!("\\\"{name}\\\":");
    let (at, member) = match (text.find(&plain), text.find(&quoted)) {
        (Some(at), _) => (at, plain),
        (None, Some(at)) => (at, quoted),
        (None, None) => return None,
    };
    let rest = text[at + member.len()..].trim_start();
    let end = rest.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(rest.len());
    Some(&rest[..end])
}

/// The verdict on one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Verdict {
    /// Rows that were committed and never stored.
    pub(crate) lost: u64,
    /// Messages beyond the first of each row.
    pub(crate) repeated: u64,
    /// Rows whose first message follows the first message of a later row of the same key.
    pub(crate) out_of_order: u64,
}

/// Compares the arrivals, in the order in which they were stored, with the rows that must arrive.
/// `key_of` returns the key of a row.
pub(crate) fn judge(
    expected: impl Iterator<Item = u64>,
    arrivals: &[Arrival],
    key_of: impl Fn(u64) -> u64,
) -> Verdict {
    let mut seen = BTreeSet::new();
    let mut latest: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut repeated, mut out_of_order) = (0, 0);
    for arrival in arrivals {
        if !seen.insert(arrival.row) {
            repeated += 1;
            continue;
        }
        let latest = latest.entry(key_of(arrival.row)).or_insert(arrival.row);
        if arrival.row < *latest {
            out_of_order += 1;
        }
        *latest = arrival.row.max(*latest);
    }
    let lost = expected.filter(|row| !seen.contains(row)).count();
    Verdict { lost: u64::try_from(lost).unwrap_or(u64::MAX), repeated, out_of_order }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(rows: &[u64]) -> Vec<Arrival> {
        let arrival = |row: &u64| Arrival { row: *row, inserted_at: 0.0, stored_at: 0.0 };
        rows.iter().map(arrival).collect()
    }

    #[test]
    fn a_row_is_found_in_plain_quoted_and_wrapped_json() {
        let plain = r#"{"n": 17, "at": 5.25, "text": "x"}"#;
        let quoted = r#""{\"n\": 17, \"at\": 5.25, \"text\": \"x\"}""#;
        let wrapped = format!(r#"{{"after": {plain}}}"#);
        let expected = Some(Arrival { row: 17, inserted_at: 5.25, stored_at: 6.0 });
        for text in [plain, quoted, &wrapped] {
            assert_eq!(Arrival::parse(text, 6.0), expected, "{text}");
        }
        assert_eq!(Arrival::parse("{}", 6.0), None);
    }

    #[test]
    fn lost_repeated_and_misplaced_rows_are_counted_apart() {
        let key_of = |row| row % 2;
        let clean = judge(0..4, &arrivals(&[1, 0, 2, 3]), key_of);
        assert_eq!(clean, Verdict { lost: 0, repeated: 0, out_of_order: 0 });
        let bad = judge(0..6, &arrivals(&[2, 0, 1, 3, 3, 0]), key_of);
        assert_eq!(bad, Verdict { lost: 2, repeated: 2, out_of_order: 1 });
    }

    #[test]
    fn a_repeated_row_is_not_out_of_order() {
        let verdict = judge(0..3, &arrivals(&[0, 1, 2, 0, 1, 2]), |_| 0);
        assert_eq!(verdict, Verdict { lost: 0, repeated: 3, out_of_order: 0 });
    }
}
