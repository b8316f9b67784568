//! What the loop has to remember about itself.

use std::time::Duration;

use tokio::time::Instant;

/// What the server has refused for so long is no migration that is under way: who is to catch up gives up.
pub(crate) const REFUSED_LASTS: Duration = Duration::from_secs(30);

/// The shortest sleep of the loop, and that of one which applies nothing.
pub(crate) const TURN: Duration = Duration::from_millis(1);
pub(crate) const PAUSED_TURN: Duration = Duration::from_millis(100);
/// Nothing has come for so long: everything has.
pub(crate) const QUIET: Duration = Duration::from_secs(3);

/// A job that is done from time to time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chore {
    Due(Instant),
    Running,
}

impl Chore {
    pub(crate) fn is_due(self, now: Instant) -> bool {
        matches!(self, Self::Due(at) if at <= now)
    }

    pub(crate) fn wake_at(self) -> Option<Instant> {
        match self {
            Self::Due(at) => Some(at),
            Self::Running => None,
        }
    }
}

/// Something that goes wrong for a while, and is told when it lasts.
#[derive(Debug, Default)]
pub(crate) struct Spell(Option<Instant>);

impl Spell {
    /// It goes wrong: whether it has for so long.
    pub(crate) fn lasts(&mut self, now: Instant, patience: Duration) -> bool {
        now - *self.0.get_or_insert(now) >= patience
    }

    /// It goes wrong.
    pub(crate) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// It went right.
    pub(crate) fn over(&mut self) {
        self.0 = None;
    }
}

/// Lines of one kind in the log: a few each second, however many there could be.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    second: Option<Instant>,
    told: u32,
    untold: u64,
}

/// So many lines of a kind in a second are read by somebody.
const LINES_MAX: u32 = 5;

impl Lines {
    /// Whether one may be written now; with how many have not been since the last one.
    pub(crate) fn may_go(&mut self, now: Instant) -> Option<u64> {
        if self.second.is_none_or(|began| now - began >= Duration::from_secs(1)) {
            (self.second, self.told) = (Some(now), 0);
        }
        if self.told == LINES_MAX {
            self.untold += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

/// How far the end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Course {
    /// Going on.
    On,
    /// Nothing new begins; what is out may finish until then.
    Draining { until: Instant },
}

/// What the inbox holds that is to be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Something may wait for its time.
    Perhaps,
    /// The last look found nothing, and nothing has failed since.
    Nothing,
}

/// Why the loop has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It was asked to, or is caught up.
    Over,
    /// The consumer has another subscription.
    Moved,
    /// It was to catch up, and nothing is applied before somebody resumes it.
    Paused,
    /// It was to catch up, and the server refuses every event for what only a person mends.
    Refused,
}

/// What differs between processes: jitter and the stream's client id.
pub(crate) fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_right_in_between_does_not_last() {
        let (mut spell, start, patience) =
            (Spell::default(), Instant::now(), Duration::from_secs(2));
        assert!(!spell.lasts(start, patience));
        assert!(spell.lasts(start + patience, patience));
        spell.over();
        assert!(!spell.lasts(start + patience, patience), "it begins anew");
    }
}
