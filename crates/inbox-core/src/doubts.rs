//! Whose trouble it is when a batch fails for what says nothing about an event.
//!
//! A missing right, a lock that is not to be had: where everything fails it is nobody's fault, and passes. Where one
//! fails and others pass, it is that one's own. What has failed so goes by itself from then on, or it would take what
//! is healthy along each time:
//!
//! ```text
//!            its batch fails              fails again, others have passed since
//! trusted ───────────────────▶ in doubt ───────────────────────────────────────▶ to be stored
//!    ▲                            │  ▲                                                │
//!    └──────── passes ────────────┘  └─ fails again, nothing has passed since ───┐    └─▶ stored, or passes
//!                                 └──────────────────────────────────────────────┘
//! ```
//!
//! Each of these is the state of a message that stands first in its key, or has none.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use walrelay_core::Random;

use crate::backoff::Backoff;
use crate::failure::Failure;
use crate::leases::Ticket;
use crate::pace::Portion;

/// While nothing passes, what is in doubt asks whether it is over, less and less often.
const PROBE_WAIT_FIRST: Duration = Duration::from_millis(100);
const PROBE_WAIT_LONGEST: Duration = Duration::from_secs(5);
/// Batches halve with each conflict, and who has met others so often has done so in batches of every size.
const CONFLICTS_MAX: u32 = 4;
/// As many as may be held are stored without proof in so long: what is behind them is reached, though an operator's
/// mistake does not move a backlog into the table at once.
const UNPROVEN_EVERY: Duration = Duration::from_mins(1);
/// So often may one meet others by accident, alone, or have its session ended from elsewhere.
const ACCIDENTS_MAX: u32 = 3;

#[derive(Debug, Clone, Copy)]
struct Doubt {
    /// The last one.
    failure: Failure,
    /// How often.
    times: u32,
    /// How often by itself.
    alone: u32,
    /// What had passed by then.
    passed: u64,
}

/// How a message that is in doubt goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trial {
    /// With others of its kind: the handler is tried on each of them, and one that passes tells.
    Together,
    /// By itself: it would take all others along.
    Alone,
    /// By itself, and if it fails again it is stored.
    Last,
}

/// Everything that is in doubt.
#[derive(Debug)]
pub(crate) struct Doubts {
    /// Batches of which something has passed, ever.
    passed: u64,
    of: BTreeMap<Ticket, Doubt>,
    /// Stored since then, while nothing has passed: without proof, because there was no room for others.
    unproven: usize,
    unproven_since: Option<Instant>,
    wait: Backoff,
    not_before: Option<Instant>,
    /// How many are tried together: few of those that fail slowly.
    together: Portion,
}

impl Doubts {
    pub(crate) const fn new(batch: usize) -> Self {
        Self {
            together: Portion::of(batch),
            passed: 0,
            of: BTreeMap::new(),
            unproven: 0,
            unproven_since: None,
            wait: Backoff::new(PROBE_WAIT_FIRST, PROBE_WAIT_LONGEST),
            not_before: None,
        }
    }

    /// Something has passed.
    pub(crate) fn others_passed(&mut self) {
        self.passed += 1;
        self.unproven_since = None;
        self.wait.worked();
        self.not_before = None;
    }

    /// It stood first in its key, in a batch of so many keys, which has failed.
    pub(crate) fn note(&mut self, first: Ticket, failure: Failure, keys: usize) {
        let before = self.of.get(&first).copied();
        let Doubt { times, alone, .. } =
            before.unwrap_or(Doubt { failure, times: 0, alone: 0, passed: 0 });
        // Where the server refuses what a handler does, each event of the batch has been tried by itself.
        let is_tried = keys == 1 || failure == Failure::Operator;
        let alone = alone + u32::from(is_tried);
        let doubt = Doubt { failure, times: times + 1, alone, passed: self.passed };
        self.of.insert(first, doubt);
    }

    /// It is not held any more.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        self.of.remove(&ticket);
    }

    pub(crate) fn contains(&self, ticket: Ticket) -> bool {
        self.of.get(&ticket).is_some_and(Doubt::is_serious)
    }

    /// Whether it has shown by itself that it fails, or its turn says whether the database is there again.
    pub(crate) fn was_tried(&self, ticket: Ticket) -> bool {
        self.of.get(&ticket).is_some_and(Doubt::was_tried)
    }

    /// How it goes out; `None` while it has to wait, because nothing tells that it would fare better.
    pub(crate) fn trial(&self, ticket: Ticket, now: Instant) -> Option<Trial> {
        let doubt = self.of.get(&ticket)?;
        let enough = if doubt.failure.may_be_an_accident() { ACCIDENTS_MAX } else { 1 };
        let is_proven = doubt.passed < self.passed && doubt.alone >= enough;
        if is_proven {
            return Some(Trial::Last);
        }
        // Once others have passed since, it may go at once. So may what was only with others that failed: it may be
        // healthy, and the database has answered.
        let has_to_wait = doubt.was_tried() && doubt.passed == self.passed;
        if has_to_wait && self.not_before.is_some_and(|at| at > now) {
            return None;
        }
        Some(if doubt.failure == Failure::Operator { Trial::Together } else { Trial::Alone })
    }

    /// One is to be stored without proof, if that may be: all that is held is in doubt, and there is no room
    /// for anything that could prove it.
    pub(crate) fn give_up_one(&mut self, at_most: usize, now: Instant) -> bool {
        if self.unproven_since.is_none_or(|since| now >= since + UNPROVEN_EVERY) {
            (self.unproven, self.unproven_since) = (0, Some(now));
        }
        let may = self.unproven < at_most;
        self.unproven += usize::from(may);
        may
    }

    /// How many are tried together at most.
    pub(crate) const fn together(&self) -> usize {
        self.together.size()
    }

    /// A batch of so many that are in doubt has ended, after so long.
    pub(crate) fn took(&mut self, size: usize, time: Duration) {
        self.together.took(size, time);
    }

    /// A batch of what is in doubt has failed.
    pub(crate) fn failed(&mut self, now: Instant, random: &mut Random) {
        self.not_before = Some(now + self.wait.failed(random));
    }

    /// When what is in doubt may ask again, if that is not now.
    pub(crate) fn wake_at(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now)
    }
}

impl Doubt {
    fn was_tried(&self) -> bool {
        self.alone > 0 || self.failure == Failure::Outage
    }

    fn is_serious(&self) -> bool {
        self.failure != Failure::Conflict || self.alone > 0 || self.times >= CONFLICTS_MAX
    }
}
