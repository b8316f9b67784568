//! The lease of each held message: when to renew it before Pub/Sub gives the message to another
//! subscriber.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use walrelay_core::Random;

/// The number of a message, in the order of arrival.
pub(crate) type Ticket = u64;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Lease {
    /// The time of the first delivery.
    since: Instant,
    until: Instant,
    look_at: Instant,
}

impl Lease {
    pub(crate) fn is_lost(&self, now: Instant) -> bool {
        self.until <= now
    }

    /// Marks the lease as lost, because another subscriber may have the message by now.
    pub(crate) fn lose(&mut self) {
        self.until = self.since;
    }
}

/// The leases of all held messages, sorted by the time of their next check.
#[derive(Debug)]
pub(crate) struct Leases {
    length: Duration,
    /// The maximum time for which a message is held.
    longest: Duration,
    due: BTreeSet<(Instant, Ticket)>,
}

/// The action for a lease that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Renew,
    /// Let the lease run out, because the message was held long enough.
    LetGo,
    /// Drop the message, because its lease has run out.
    Lost,
}

impl Leases {
    pub(crate) const fn new(length: Duration, longest: Duration) -> Self {
        Self { length, longest, due: BTreeSet::new() }
    }

    /// Starts the lease of a message that was delivered at `now`, for the first time or again.
    pub(crate) fn begin(
        &mut self,
        ticket: Ticket,
        since: Instant,
        now: Instant,
        random: &mut Random,
    ) -> Lease {
        let lease = Lease { since, until: now + self.length, look_at: now + self.pause(random) };
        self.due.insert((lease.look_at, ticket));
        lease
    }

    pub(crate) fn end(&mut self, ticket: Ticket, lease: &Lease) {
        self.due.remove(&(lease.look_at, ticket));
    }

    /// Removes the next due lease from the schedule. The caller puts the lease back.
    pub(crate) fn next_due(&mut self, now: Instant) -> Option<Ticket> {
        let (at, ticket) = *self.due.first()?;
        (at <= now).then(|| {
            self.due.pop_first();
            ticket
        })
    }

    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    pub(crate) fn look(&self, lease: &Lease, now: Instant) -> Look {
        if lease.is_lost(now) {
            Look::Lost
        } else if now.saturating_duration_since(lease.since) >= self.longest {
            Look::LetGo
        } else {
            Look::Renew
        }
    }

    pub(crate) fn renew(
        &mut self,
        ticket: Ticket,
        lease: &mut Lease,
        now: Instant,
        random: &mut Random,
    ) {
        lease.until = now + self.length;
        lease.look_at = now + self.pause(random);
        self.due.insert((lease.look_at, ticket));
    }

    /// Schedules the next check for the time at which the lease runs out.
    pub(crate) fn let_expire(&mut self, ticket: Ticket, lease: &mut Lease) {
        lease.look_at = lease.until;
        self.due.insert((lease.look_at, ticket));
    }

    /// Returns a pause between three and five tenths of a lease. A lost renewal then leaves time
    /// for another, and messages that arrived together are not renewed together.
    fn pause(&self, random: &mut Random) -> Duration {
        let share = f64::from(random.next_u32()) / f64::from(u32::MAX);
        self.length.mul_f64(0.3 + 0.2 * share)
    }
}
