//! An independent checker: compares the committed rows with the messages that the topic stored.
//!
//! The checker shares no code with walrelay and compares two lists in the simplest way. Duplicates
//! are legal and counted. Every other finding is a violation of the promise.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A row whose commit its producer saw. The rows of one key are given in commit order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    pub event_id: String,
    /// The row's ordering key. An empty key means that the order does not matter.
    pub key: String,
    /// The payload that the consumer should receive.
    pub data: Vec<u8>,
}

/// A message that the topic stored, given in the order of storing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Attribute `event_id`.
    pub event_id: String,
    pub key: String,
    /// Attribute `commit_lsn`, as `16/B374D848`.
    pub commit_lsn: String,
    /// Attribute `tx_index`.
    pub tx_index: String,
    pub data: Vec<u8>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Event ids that were committed and never stored.
    pub lost: Vec<String>,
    /// First occurrences out of commit order within a key: (earlier row, later row stored before
    /// it).
    pub reordered: Vec<(String, String)>,
    /// Event ids that were stored and never committed, such as rows of a rolled-back transaction.
    pub unknown: Vec<String>,
    /// Messages with a wrong key, payload or position: event id and the part that differs.
    pub altered: Vec<(String, &'static str)>,
    /// Positions that do not rise along a key's commit order: (earlier row, later row).
    pub misplaced: Vec<(String, String)>,
    /// The number of messages beyond the first of their row. Duplicates are legal after a crash, a
    /// lost reply or a replay.
    pub duplicates_count: usize,
}

impl Verdict {
    /// Reports whether the promise was kept. Duplicates do not break it.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let Self { lost, reordered, unknown, altered, misplaced, duplicates_count: _ } = self;
        lost.is_empty()
            && reordered.is_empty()
            && unknown.is_empty()
            && altered.is_empty()
            && misplaced.is_empty()
    }

    /// Panics with the first findings of each kind if the promise was broken.
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }

    /// As [`assert_clean`](Self::assert_clean), for runs in which duplicates are also illegal.
    pub fn assert_exactly_once(&self) {
        self.assert_clean();
        assert_eq!(self.duplicates_count, 0, "rows were published more than once");
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_findings(out, "lost", &self.lost)?;
        write_findings(out, "reordered within a key", &self.reordered)?;
        write_findings(out, "never committed", &self.unknown)?;
        write_findings(out, "altered", &self.altered)?;
        write_findings(out, "at a position that does not rise", &self.misplaced)?;
        write!(out, "duplicates: {}", self.duplicates_count)
    }
}

fn write_findings<T: fmt::Debug>(
    out: &mut fmt::Formatter<'_>,
    what: &str,
    found: &[T],
) -> fmt::Result {
    let shown = &found[..found.len().min(5)];
    if found.is_empty() { Ok(()) } else { writeln!(out, "{what}: {} {shown:?}", found.len()) }
}

#[must_use]
pub fn check(committed: &[Committed], stored: &[Stored]) -> Verdict {
    let expected: BTreeMap<&str, &Committed> =
        committed.iter().map(|row| (row.event_id.as_str(), row)).collect();
    let mut verdict = Verdict::default();

    // The index at which each row was first stored, with the first message.
    let mut first: BTreeMap<&str, (usize, &Stored)> = BTreeMap::new();
    for (place, message) in stored.iter().enumerate() {
        let id = message.event_id.as_str();
        let Some(row) = expected.get(id) else {
            verdict.unknown.push(id.to_owned());
            continue;
        };
        verdict.altered.extend(differences(row, message).map(|what| (id.to_owned(), what)));
        if let Some((_, earlier)) = first.get(id) {
            verdict.duplicates_count += 1;
            if position(earlier) != position(message) {
                verdict.altered.push((id.to_owned(), "position differs between duplicates"));
            }
        } else {
            first.insert(id, (place, message));
        }
    }

    let lost = committed.iter().filter(|row| !first.contains_key(row.event_id.as_str()));
    verdict.lost = lost.map(|row| row.event_id.clone()).collect();
    check_positions_are_unique(&first, &mut verdict);
    check_order(committed, &first, &mut verdict);
    verdict
}

fn differences(row: &Committed, message: &Stored) -> impl Iterator<Item = &'static str> {
    let key = (row.key != message.key).then_some("key");
    let data = (row.data != message.data).then_some("data");
    let position = position(message).is_none().then_some("position cannot be read");
    [key, data, position].into_iter().flatten()
}

/// Checks that no two different rows share a position.
fn check_positions_are_unique(first: &BTreeMap<&str, (usize, &Stored)>, verdict: &mut Verdict) {
    let mut seen = BTreeSet::new();
    for (id, (_, message)) in first {
        if position(message).is_some_and(|position| !seen.insert(position)) {
            verdict.altered.push(((*id).to_owned(), "position belongs to another row too"));
        }
    }
}

/// Checks that the index in the topic and the position both rise along a key's commit order.
fn check_order(
    committed: &[Committed],
    first: &BTreeMap<&str, (usize, &Stored)>,
    verdict: &mut Verdict,
) {
    let mut latest: BTreeMap<&str, (usize, &Stored)> = BTreeMap::new();
    for row in committed.iter().filter(|row| !row.key.is_empty()) {
        let Some((place, message)) = first.get(row.event_id.as_str()) else { continue };
        if let Some((latest_place, previous)) = latest.get(row.key.as_str()) {
            let pair = || (previous.event_id.clone(), message.event_id.clone());
            if latest_place > place {
                verdict.reordered.push(pair());
            }
            if position(previous) >= position(message) {
                verdict.misplaced.push(pair());
            }
        }
        latest.insert(&row.key, (*place, message));
    }
}

fn position(message: &Stored) -> Option<(u64, u32)> {
    let (high, low) = message.commit_lsn.split_once('/')?;
    let high = u64::from(u32::from_str_radix(high, 16).ok()?);
    let low = u64::from(u32::from_str_radix(low, 16).ok()?);
    Some(((high << 32) | low, message.tx_index.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Committed> {
        let row = |id: &str, key: &str| Committed {
            event_id: id.into(),
            key: key.into(),
            data: id.as_bytes().to_vec(),
        };
        vec![row("a1", "a"), row("b1", "b"), row("a2", "a"), row("a3", "a"), row("u1", "")]
    }

    /// Returns a topic with every row stored once, in commit order. The positions cross a power of
    /// sixteen.
    fn topic() -> Vec<Stored> {
        let stored = |(place, row): (usize, &Committed)| Stored {
            event_id: row.event_id.clone(),
            key: row.key.clone(),
            commit_lsn: format!("1/{:X}", 0xF + place),
            tx_index: "0".into(),
            data: row.data.clone(),
        };
        rows().iter().enumerate().map(stored).collect()
    }

    #[test]
    fn a_faithful_topic_is_clean() {
        let verdict = check(&rows(), &topic());
        verdict.assert_exactly_once();
        assert_eq!(verdict, Verdict::default());
    }

    #[test]
    fn a_missing_row_is_lost() {
        let mut topic = topic();
        topic.remove(2);
        assert_eq!(check(&rows(), &topic).lost, ["a2"]);
    }

    #[test]
    fn swapped_rows_of_one_key_are_reordered_and_of_two_keys_are_not() {
        let mut swapped = topic();
        swapped.swap(2, 3);
        assert_eq!(check(&rows(), &swapped).reordered, [("a2".into(), "a3".into())]);

        let mut across = topic();
        across.swap(0, 1);
        check(&rows(), &across).assert_exactly_once();
    }

    #[test]
    fn a_repeated_suffix_is_only_duplicates() {
        let mut topic = topic();
        topic.extend_from_within(2..);
        let verdict = check(&rows(), &topic);
        verdict.assert_clean();
        assert_eq!(verdict.duplicates_count, 3);
    }

    #[test]
    fn an_early_duplicate_does_not_hide_a_reordering() {
        // a3 is stored before a2, and a second time after a2.
        let mut topic = topic();
        let overtaking = topic[3].clone();
        topic.insert(2, overtaking);
        assert_eq!(check(&rows(), &topic).reordered, [("a2".into(), "a3".into())]);
    }

    #[test]
    fn a_row_nobody_committed_is_unknown() {
        let mut topic = topic();
        topic.push(Stored { event_id: "rolled-back".into(), ..topic[0].clone() });
        assert_eq!(check(&rows(), &topic).unknown, ["rolled-back"]);
    }

    #[test]
    fn changed_keys_payloads_and_positions_are_altered() {
        let mut topic = topic();
        topic[0].data = b"other".to_vec();
        topic[1].key = "a".into();
        topic[4].commit_lsn = "nonsense".into();
        let expected = [("a1", "data"), ("b1", "key"), ("u1", "position cannot be read")];
        let expected = expected.map(|(id, what)| (id.to_owned(), what));
        assert_eq!(check(&rows(), &topic).altered, expected);
    }

    #[test]
    fn a_duplicate_at_another_position_is_altered() {
        let mut topic = topic();
        topic.push(Stored { commit_lsn: "9/0".into(), ..topic[0].clone() });
        let verdict = check(&rows(), &topic);
        assert_eq!(verdict.altered, [("a1".to_owned(), "position differs between duplicates")]);
    }

    #[test]
    fn positions_that_fall_or_repeat_within_a_key_are_found() {
        let mut falling = topic();
        falling[3].commit_lsn = "0/1".into();
        assert_eq!(check(&rows(), &falling).misplaced, [("a2".into(), "a3".into())]);

        let mut repeated = topic();
        repeated[1].commit_lsn = repeated[0].commit_lsn.clone();
        let verdict = check(&rows(), &repeated);
        assert_eq!(verdict.altered, [("b1".to_owned(), "position belongs to another row too")]);
    }
}
