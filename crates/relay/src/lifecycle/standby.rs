//! Waits for the slot while another relay holds it, and ends the session of a dead holder.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::RelayError;
use crate::lifecycle::server::{Database, Holder};

/// The interval at which a standby checks the slot. The standby continues within a second of a
/// release.
const STANDBY_PAUSE: Duration = Duration::from_millis(300);

/// The longest silence of a living slot client. Status updates of this relay and of Postgres' own
/// tools are at most ten seconds apart.
const SILENCE_MAX: Duration = Duration::from_secs(11);

/// Waits until the slot is free. Ends the session of a holder that gave no sign of life for
/// `take_over_after`.
///
/// # Errors
///
/// The role may not end the holder's session.
pub async fn stand_by<D: Database>(
    database: &mut D,
    first: Holder,
    take_over_after: Option<Duration>,
    mut told: impl FnMut(&Holder),
) -> Result<(), RelayError> {
    let mut watch = HolderWatch::new(first, Instant::now());
    tracing::info!(holder = %watch.holder, "standing by: the slot is held");
    loop {
        told(&watch.holder);
        if let Some(limit) = take_over_after
            && watch.is_dead(limit, Instant::now())
        {
            let silent_for = watch.silence(Instant::now());
            tracing::warn!(holder = %watch.holder, ?silent_for, "taking the slot over: ending the session that holds it");
            database.end_holder(&watch.holder).await?;
            watch = HolderWatch::new(watch.holder, Instant::now());
        }
        sleep(STANDBY_PAUSE).await;
        let Some(holder) = database.holder().await? else { return Ok(()) };
        if holder.pid != watch.holder.pid {
            tracing::info!(%holder, "standing by: the slot is held by another");
        }
        watch.saw(holder, Instant::now());
    }
}

/// The observed signs of life of a holder: the time of the last sign, and the usual interval.
#[derive(Debug)]
struct HolderWatch {
    holder: Holder,
    /// The time of the last sign, or the start of the watch.
    since: Instant,
    /// The longest time between two observed signs.
    longest_gap: Option<Duration>,
    signs: u32,
}

impl HolderWatch {
    fn new(holder: Holder, now: Instant) -> Self {
        Self { holder, since: now, longest_gap: None, signs: 0 }
    }

    /// Records a new observation. The wait restarts if the holder has changed.
    fn saw(&mut self, holder: Holder, now: Instant) {
        if holder.pid != self.holder.pid {
            *self = Self::new(holder, now);
            return;
        }
        if holder.signs != self.holder.signs {
            // The first sign has no predecessor, so its interval is unknown.
            let gap = (self.signs > 0).then(|| now.duration_since(self.since));
            self.longest_gap = self.longest_gap.max(gap);
            self.signs += 1;
            self.since = now;
        }
        self.holder = holder;
    }

    fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Returns whether the holder was silent for `limit` and for longer than a living holder could
    /// be. That is twice its longest observed interval, or [`SILENCE_MAX`] while no interval is
    /// known.
    fn is_dead(&self, limit: Duration, now: Instant) -> bool {
        let usual = self.longest_gap.map_or(SILENCE_MAX, |gap| (gap * 2).min(SILENCE_MAX));
        self.silence(now) >= limit.max(usual)
    }
}

#[cfg(test)]
mod tests {
    use pgoutput_parser::Lsn;

    use super::*;
    use crate::lifecycle::server::SignsOfLife;

    const LIMIT: Duration = Duration::from_secs(3);

    fn holder(pid: i32, flush: u64) -> Holder {
        let signs = SignsOfLife { confirmed_flush: Some(Lsn::new(flush)), replied_at: None };
        Holder { pid, application_name: None, signs }
    }

    fn second(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_holder_that_makes_progress_is_never_dead() {
        let start = Instant::now();
        let mut watch = HolderWatch::new(holder(1, 0), start);
        for seconds in 1..100 {
            watch.saw(holder(1, seconds), second(start, seconds));
            assert!(!watch.is_dead(LIMIT, second(start, seconds)));
        }
        assert!(watch.is_dead(LIMIT, second(start, 99 + 3)));
    }

    #[test]
    fn a_holder_that_speaks_less_often_than_the_limit_is_given_its_time() {
        let start = Instant::now();
        let mut watch = HolderWatch::new(holder(1, 0), start);
        for turn in 1..5 {
            assert!(!watch.is_dead(LIMIT, second(start, 5 * turn)));
            watch.saw(holder(1, turn), second(start, 5 * turn));
        }
        assert!(!watch.is_dead(LIMIT, second(start, 20 + 9)));
        assert!(watch.is_dead(LIMIT, second(start, 20 + 10)));
    }

    #[test]
    fn the_wait_starts_anew_when_the_holder_changes() {
        let start = Instant::now();
        let mut watch = HolderWatch::new(holder(1, 0), start);
        watch.saw(holder(2, 0), second(start, 10));
        assert!(!watch.is_dead(LIMIT, second(start, 20)));
        assert!(watch.is_dead(LIMIT, second(start, 21)));
    }
}
