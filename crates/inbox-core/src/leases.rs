//! Who has to be told to Pub/Sub again before it gives a message to somebody else.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use walrelay_core::Random;

/// A message's number, in the order of arrival.
pub(crate) type Ticket = u64;

/// The lease of one message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lease {
    /// When it arrived first.
    since: Instant,
    until: Instant,
    look_at: Instant,
}

impl Lease {
    pub(crate) fn is_lost(&self, now: Instant) -> bool {
        self.until <= now
    }

    /// Somebody else may have the message by now.
    pub(crate) fn lose(&mut self) {
        self.until = self.since;
    }
}

/// The leases of everything held, by the time at which each is looked at.
#[derive(Debug)]
pub(crate) struct Leases {
    /// How long a lease is.
    length: Duration,
    /// How long a message is held at most.
    longest: Duration,
    due: BTreeSet<(Instant, Ticket)>,
}

/// What is to be done with a lease that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Renew it.
    Renew,
    /// It has been held long enough: it is left to run out.
    LetGo,
    /// It has run out.
    Lost,
}

impl Leases {
    pub(crate) const fn new(length: Duration, longest: Duration) -> Self {
        Self { length, longest, due: BTreeSet::new() }
    }

    /// A message has been delivered at `now`, for the first time or again.
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

    /// The next lease that is due, taken out until it is put back.
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

    /// It is renewed at `now`.
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

    /// It is looked at again when it runs out.
    pub(crate) fn let_go(&mut self, ticket: Ticket, lease: &mut Lease) {
        lease.look_at = lease.until;
        self.due.insert((lease.look_at, ticket));
    }

    /// Between three and five tenths of a lease: a renewal that is lost leaves time for another, and
    /// what came together is not renewed together.
    fn pause(&self, random: &mut Random) -> Duration {
        let share = f64::from(random.next_u32()) / f64::from(u32::MAX);
        self.length.mul_f64(0.3 + 0.2 * share)
    }
}
