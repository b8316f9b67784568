//! Decides whether an event itself is at fault when its batch fails with an error that says nothing
//! about an event.
//!
//! Examples are a missing permission, or a lock that is not granted. If every event fails, the
//! cause is elsewhere and usually temporary. If one event fails while others are applied ("pass"),
//! that event is at fault. A failed event therefore goes alone from then on, so that healthy events
//! do not fail with it:
//!
//! ```text
//!            its batch fails              fails again, others have passed since
//! trusted ───────────────────▶ in doubt ───────────────────────────────────────▶ to be stored
//!    ▲                            │  ▲                                                │
//!    └──────── passes ────────────┘  └─ fails again, nothing has passed since ───┐    └─▶ stored, or passes
//!                                 └──────────────────────────────────────────────┘
//! ```
//!
//! Each state belongs to a message that is the first of its key, or has no key.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use walrelay_core::{Backoff, Random};

use crate::adaptive_concurrency::AdaptiveBatchSize;
use crate::failure::Failure;
use crate::leases::Ticket;

/// The wait between probes of doubtful messages while no event passes. The wait grows.
const PROBE_WAIT: Backoff =
    Backoff { base: Duration::from_millis(100), cap: Duration::from_secs(5) };
/// Conflicts after which a message is in doubt. Batches halve with each conflict, so the message
/// has conflicted in batches of several sizes by then.
const CONFLICTS_MAX: u32 = 4;
/// The period in which at most as many messages as may be held are stored without proof. The
/// consumer then reaches the messages behind them. An operator's mistake does not move a whole
/// backlog into the table at once.
const UNPROVEN_EVERY: Duration = Duration::from_mins(1);
/// The accidents that a message may have alone: conflicts, or sessions terminated by somebody else.
const ACCIDENTS_MAX: u32 = 3;
/// The accidents after which a message is stored without proof. No other message may exist that
/// could pass.
const UNPROVEN_ACCIDENTS: u32 = 10;

#[derive(Debug, Clone, Copy)]
struct IsolationRecord {
    failure: Failure,
    times: u32,
    /// The number of failures in a batch of one key.
    alone: u32,
    /// The value of [`PoisonIsolation::passed`] at the last failure.
    passed: u64,
}

/// The way a doubtful message is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IsolationStep {
    /// With other doubtful messages. The server tries the handler on each, and one that passes
    /// proves that the others are at fault.
    Together,
    /// Alone, because the message would make all others fail with it.
    Alone,
    /// Alone, and if the message fails again, the database stores it.
    Last,
}

/// The messages in doubt.
#[derive(Debug)]
pub(crate) struct PoisonIsolation {
    /// The number of batches in which an event passed, since the start.
    passed: u64,
    of: BTreeMap<Ticket, IsolationRecord>,
    /// The number of messages stored without proof since `unproven_since`, to free capacity while
    /// no event passed.
    unproven: usize,
    unproven_since: Option<Instant>,
    /// Consecutive batches of doubtful messages that failed.
    failed_probes: u32,
    not_before: Option<Instant>,
    /// The number of doubtful messages tried together. The number shrinks when failures are slow.
    together: AdaptiveBatchSize,
}

impl PoisonIsolation {
    pub(crate) const fn new(batch: usize) -> Self {
        Self {
            together: AdaptiveBatchSize::of(batch),
            passed: 0,
            of: BTreeMap::new(),
            unproven: 0,
            unproven_since: None,
            failed_probes: 0,
            not_before: None,
        }
    }

    /// Notes that an event passed.
    pub(crate) fn others_passed(&mut self) {
        self.passed += 1;
        self.unproven_since = None;
        self.failed_probes = 0;
        self.not_before = None;
    }

    /// Notes the failure of a message that was the first of its key. Its batch had `keys` keys.
    pub(crate) fn note(&mut self, first: Ticket, failure: Failure, keys: usize) {
        let before = self.of.get(&first).copied();
        let IsolationRecord { times, alone, .. } =
            before.unwrap_or(IsolationRecord { failure, times: 0, alone: 0, passed: 0 });
        // If the server refuses the handler's actions, the database has tried each event of the
        // batch alone.
        let is_tried = keys == 1 || failure == Failure::Operator;
        let alone = alone + u32::from(is_tried);
        let doubt = IsolationRecord { failure, times: times + 1, alone, passed: self.passed };
        self.of.insert(first, doubt);
    }

    /// Removes a message that is no longer held.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        self.of.remove(&ticket);
    }

    pub(crate) fn contains(&self, ticket: Ticket) -> bool {
        self.of.get(&ticket).is_some_and(IsolationRecord::is_serious)
    }

    /// Returns whether the message has failed alone, or its next attempt probes whether the
    /// database is reachable.
    pub(crate) fn was_tried(&self, ticket: Ticket) -> bool {
        self.of.get(&ticket).is_some_and(IsolationRecord::was_tried)
    }

    /// Returns the way to send the message. `None` while it has to wait, because nothing suggests a
    /// better result yet.
    pub(crate) fn trial(&self, ticket: Ticket, now: Instant) -> Option<IsolationStep> {
        let doubt = self.of.get(&ticket)?;
        let enough = if doubt.failure.may_be_transient() { ACCIDENTS_MAX } else { 1 };
        let is_proven = doubt.passed < self.passed && doubt.alone >= enough;
        let is_hopeless = doubt.failure.may_be_transient() && doubt.alone >= UNPROVEN_ACCIDENTS;
        if is_proven || is_hopeless && self.may_probe(now) {
            return Some(IsolationStep::Last);
        }
        // If others have passed since, the message may go at once. A message that failed only in a
        // batch with others may also go at once. It may be healthy, and the database has answered.
        let has_to_wait = doubt.was_tried() && doubt.passed == self.passed;
        if has_to_wait && !self.may_probe(now) {
            return None;
        }
        Some(if doubt.failure == Failure::Operator {
            IsolationStep::Together
        } else {
            IsolationStep::Alone
        })
    }

    /// Returns whether one message may be stored without proof. All held messages are in doubt, and
    /// no capacity is left for a message that could prove the fault.
    pub(crate) fn store_without_proof(&mut self, at_most: usize, now: Instant) -> bool {
        if self.unproven_since.is_none_or(|since| now >= since + UNPROVEN_EVERY) {
            (self.unproven, self.unproven_since) = (0, Some(now));
        }
        let may = self.unproven < at_most;
        self.unproven += usize::from(may);
        may
    }

    pub(crate) const fn together(&self) -> usize {
        self.together.size()
    }

    /// Notes that a batch of `size` doubtful messages ended after `time`.
    pub(crate) fn took(&mut self, size: usize, time: Duration) {
        self.together.took(size, time);
    }

    /// Notes that a batch of `size` doubtful messages failed. One of them may make the others
    /// fail, so fewer are tried together next.
    pub(crate) fn failed(&mut self, size: usize, now: Instant, random: &mut Random) {
        self.together.failed(size);
        self.failed_probes = self.failed_probes.saturating_add(1);
        self.not_before = Some(now + PROBE_WAIT.delay(self.failed_probes, random.next_u32()));
    }

    fn may_probe(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }

    /// Returns the time at which doubtful messages may be tried again, if that is not now.
    pub(crate) fn wake_at(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now)
    }
}

impl IsolationRecord {
    fn was_tried(&self) -> bool {
        self.alone > 0 || self.failure == Failure::Outage
    }

    fn is_serious(&self) -> bool {
        self.failure != Failure::Conflict || self.alone > 0 || self.times >= CONFLICTS_MAX
    }
}
