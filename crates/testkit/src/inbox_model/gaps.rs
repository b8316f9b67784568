//! Finds messages with a missing preceding version, as `app_inbox_gaps` does.

use std::collections::BTreeMap;

use super::{Code, From, Inbox, Message, OnDead, Outcome, PlantedBug};

#[derive(Debug, Clone, Copy)]
struct Reached {
    version: Option<i64>,
    has_gap: bool,
}

impl Inbox {
    /// Returns an outcome for each message whose preceding version is missing. For a key without
    /// any applied event, every version is accepted as the first.
    pub(super) fn gaps(&self, messages: &[Message], from: From) -> Vec<Option<Outcome>> {
        let planted = self.rules.planted;
        if planted == Some(PlantedBug::RedeliversOverGaps) && from == From::Inbox {
            return vec![None; messages.len()];
        }
        let mut keys: BTreeMap<&str, Reached> = BTreeMap::new();
        let mut outcomes = Vec::new();
        for message in messages {
            let begin = || Reached { version: self.keys[&message.key].version, has_gap: false };
            let reached = keys.entry(&message.key).or_insert_with(begin);
            let outcome = self.gap_before(message, from, *reached);
            reached.has_gap |= outcome.is_some();
            if outcome.is_none() || planted == Some(PlantedBug::CountsWhatWaits) {
                reached.version = reached.version.max(message.version);
            }
            outcomes.push(outcome);
        }
        outcomes
    }

    fn gap_before(&self, message: &Message, from: From, reached: Reached) -> Option<Outcome> {
        let passes = if self.rules.planted == Some(PlantedBug::OverlooksOne) { 2 } else { 1 };
        let (version, last) = (message.version?, reached.version?);
        let is_retryable = !reached.has_gap && self.is_let_through(message, from);
        if version <= last + passes || is_retryable {
            return None;
        }
        Some(match reached.has_gap {
            true => Outcome::Held(Some(Code::VersionGap)),
            false => Outcome::Failed(Code::VersionGap),
        })
    }

    /// Reports whether the message is applied despite a version gap. If dead events do not block
    /// their key, the last attempt ignores the gap, so that no event waits for ever.
    fn is_let_through(&self, message: &Message, from: From) -> bool {
        let row = &self.rows[&message.event];
        let attempts = if from == From::Inbox { row.attempts } else { 0 };
        let is_last = attempts + 1 >= self.rules.max_attempts;
        row.code == Some(Code::GapAccepted) || self.rules.on_dead == OnDead::Continue && is_last
    }

    /// Makes messages with a version gap wait behind failed predecessors, as
    /// `app_inbox_gaps_behind` does.
    pub(super) fn wait_behind(
        messages: &[Message],
        gaps: &[Option<Outcome>],
        outcomes: &mut [Outcome],
    ) {
        for (index, message) in messages.iter().enumerate() {
            let stands_before = |other: usize| {
                let (its, own) = (messages[other].version, message.version);
                other < index || its.is_some_and(|its| own.is_some_and(|own| its < own))
            };
            let waits = (0..messages.len()).any(|other| {
                messages[other].key == message.key
                    && gaps[other].is_none()
                    && outcomes[other] != Outcome::Applied
                    && stands_before(other)
            });
            if waits && gaps[index].is_some() {
                outcomes[index] = Outcome::Held(Some(Code::VersionGap));
            }
        }
    }
}
