//! Log messages about dead rows: one full message for the first row of a topic and code, then a
//! count.
//!
//! Twenty thousand rows that die of one cause are one event for an operator. Dispatch state has the
//! list of the rows.

use std::time::{Duration, Instant};

use walrelay_core::limits::is_topic_name;
use walrelay_core::{FailureCode, Message, PublishFailure, Topic};
use walrelay_errors::Code;

/// The time between two log messages about the same cause.
const QUIET: Duration = Duration::from_mins(1);

/// The maximum number of causes that are counted separately.
const CAUSES_MAX: usize = 64;

/// The longest topic name that is stored and logged, in bytes.
const TOPIC_BYTES_MAX: usize = 1 << 10;

/// The maximum number of evictions within [`QUIET`]. Without it, rows of many causes would log one
/// message each.
const EVICTIONS_MAX: u32 = 64;

/// The usual time until a dead row is recorded. An earlier count may not include the row.
const RECORDED: Duration = Duration::from_secs(10);

/// The dead rows per cause since the last log message.
#[derive(Debug, Default)]
pub(super) struct DeadRows {
    causes: Vec<Cause>,
    /// Rows of causes that are not counted separately.
    others: Option<Tally>,
    pushes: Option<Evictions>,
    counted: Option<Counted>,
}

/// The number of dead rows in dispatch state, and the time of the count.
#[derive(Debug, Clone, Copy)]
struct Counted {
    rows: u64,
    at: Instant,
}

/// The number of causes that evicted another cause.
#[derive(Debug, Clone, Copy)]
struct Evictions {
    count: u32,
    since: Instant,
}

#[derive(Debug)]
struct Cause {
    topic: Topic,
    code: FailureCode,
    tally: Tally,
}

/// Dead rows that were not logged yet.
#[derive(Debug, Clone, Copy)]
struct Tally {
    untold: u64,
    logged_at: Instant,
    died_at: Instant,
}

/// Dead rows of one cause, or of all other causes, that were not logged yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnloggedDeadRows {
    /// The full topic name and the code. `None` for rows of several causes.
    pub(super) cause: Option<(Topic, FailureCode)>,
    pub(super) rows: u64,
    /// The number of dead rows of all causes. `None` if no count was made since.
    pub(super) dead: Option<u64>,
}

impl DeadRows {
    /// Counts a dead row. Returns whether it is the first of its cause and needs a log message of
    /// its own.
    pub(super) fn died(&mut self, topic: &Topic, code: FailureCode, now: Instant) -> bool {
        let known =
            self.causes.iter_mut().find(|cause| cause.topic == *topic && cause.code == code);
        if let Some(cause) = known {
            cause.tally.add(1, now);
            return false;
        }
        // An invalid topic name may be as long as a row.
        let is_long = topic.len() > TOPIC_BYTES_MAX;
        if is_long || (self.causes.len() >= CAUSES_MAX && !self.evict_cause(topic, now)) {
            self.others.get_or_insert(Tally::begun(now)).add(1, now);
            return false;
        }
        self.causes.push(Cause { topic: Topic::clone(topic), code, tally: Tally::begun(now) });
        true
    }

    /// Evicts a cause in favour of a new one. A valid topic must be reported even among many
    /// invalid topic names. Invalid names evict no other cause, and are evicted first.
    fn evict_cause(&mut self, newcomer: &Topic, now: Instant) -> bool {
        let pushes = self
            .pushes
            .filter(|pushes| now.saturating_duration_since(pushes.since) < QUIET)
            .unwrap_or(Evictions { count: 0, since: now });
        if !is_topic_name(newcomer) || pushes.count >= EVICTIONS_MAX {
            return false;
        }
        let causes = self.causes.iter().enumerate();
        let last = causes.min_by_key(|(_, c)| (is_topic_name(&c.topic), c.tally.died_at));
        let Some((index, _)) = last else { return false };
        let Tally { untold, died_at, .. } = self.causes.remove(index).tally;
        if untold > 0 {
            self.others.get_or_insert(Tally::begun(now)).add(untold, died_at);
        }
        self.pushes = Some(Evictions { count: pushes.count + 1, ..pushes });
        true
    }

    /// Records the number of dead rows. An operator may have settled some of them since their
    /// death.
    pub(super) fn counted(&mut self, rows: u64, now: Instant) {
        self.counted = Some(Counted { rows, at: now });
    }

    /// Returns the counts that are due now. A cause without new dead rows is forgotten, so its next
    /// row gets a full log message again.
    pub(super) fn due(&mut self, now: Instant) -> Vec<UnloggedDeadRows> {
        let (mut told, counted) = (Vec::new(), self.counted);
        self.causes.retain_mut(|cause| {
            if now.saturating_duration_since(cause.tally.logged_at) < QUIET {
                return true;
            }
            let untold = cause.untold(counted);
            let goes_on = untold.is_some();
            cause.tally = Tally { untold: 0, logged_at: now, ..cause.tally };
            told.extend(untold);
            goes_on
        });
        let is_due = |tally: &mut Tally| now.saturating_duration_since(tally.logged_at) >= QUIET;
        let others = self.others.take_if(is_due);
        told.extend(others.and_then(|tally| tally.untold(None, counted)));
        told
    }

    /// Returns all remaining counts, for the last log messages.
    fn rest(&mut self) -> Vec<UnloggedDeadRows> {
        let counted = self.counted;
        let others = self.others.take().and_then(|tally| tally.untold(None, counted));
        let causes = self.causes.drain(..).filter_map(|cause| cause.untold(counted));
        causes.chain(others).collect()
    }
}

impl Cause {
    fn untold(&self, counted: Option<Counted>) -> Option<UnloggedDeadRows> {
        self.tally.untold(Some((Topic::clone(&self.topic), self.code)), counted)
    }
}

impl Tally {
    const fn begun(now: Instant) -> Self {
        Self { untold: 0, logged_at: now, died_at: now }
    }

    fn add(&mut self, rows: u64, died_at: Instant) {
        self.untold += rows;
        self.died_at = self.died_at.max(died_at);
    }

    fn untold(
        self,
        cause: Option<(Topic, FailureCode)>,
        counted: Option<Counted>,
    ) -> Option<UnloggedDeadRows> {
        let counted = counted.filter(|counted| counted.at >= self.died_at + RECORDED);
        let dead = counted.map(|counted| counted.rows);
        (self.untold > 0).then_some(UnloggedDeadRows { cause, rows: self.untold, dead })
    }
}

impl UnloggedDeadRows {
    /// Logs one message. It is not an error if no row is dead any more.
    pub(super) fn log(&self) {
        let Self { cause, rows, dead } = self;
        let is_settled = *dead == Some(0);
        match cause {
            Some((topic, code)) if is_settled => tracing::info!(
                topic = &**topic,
                code = code.as_str(),
                rows,
                "more rows died of the same cause, and are settled by now: no row is dead any more"
            ),
            Some((topic, code)) => tracing::error!(
                error_code = Code::DeadRows.name(),
                topic = &**topic,
                code = code.as_str(),
                rows,
                dead,
                "more rows are dead of the same cause"
            ),
            None if is_settled => tracing::info!(
                rows,
                "more rows died, of other topics and causes, and are settled by now: no row is dead any more"
            ),
            None => tracing::error!(
                error_code = Code::DeadRows.name(),
                rows,
                dead,
                "more rows are dead, of other topics and causes"
            ),
        }
    }
}

impl Drop for DeadRows {
    fn drop(&mut self) {
        self.rest().iter().for_each(UnloggedDeadRows::log);
    }
}

/// Logs the first row that dies of a cause.
pub(super) fn log_dead_row(
    dead_rows: Option<&mut DeadRows>,
    (message, failure): (&Message, &PublishFailure),
    attempts: Option<u32>,
) {
    let is_first = |rows: &mut DeadRows| {
        rows.died(message.topic(), failure.code, tokio::time::Instant::now().into_std())
    };
    if !dead_rows.is_some_and(is_first) {
        return;
    }
    tracing::error!(
        error_code = Code::DeadRows.name(),
        event_id = message.event_id(),
        topic = &**message.topic(),
        position = %message.position(),
        attempts,
        code = failure.code.as_str(),
        error = failure.message,
        "row is dead: it is recorded in dispatch state and needs an operator"
    );
}

#[cfg(test)]
mod tests {
    use walrelay_core::CallCode;

    use super::*;

    #[test]
    fn twenty_thousand_rows_of_one_cause_are_a_line_and_a_number() {
        let mut dead = DeadRows::default();
        let (topic, other): (Topic, Topic) =
            ("projects/p/topics/a".into(), "projects/p/topics/b".into());
        let began = Instant::now();
        let lines = (0..20_000)
            .filter(|_| dead.died(&topic, CallCode::InvalidArgument.into(), began))
            .count();
        assert_eq!(lines, 1);
        assert!(
            dead.died(&topic, FailureCode::LocalLimit, began),
            "another cause has a line of its own"
        );
        assert!(dead.died(&other, CallCode::InvalidArgument.into(), began), "another topic too");
        assert_eq!(dead.due(began), []);

        let later = began + QUIET;
        let cause = Some((Topic::clone(&topic), CallCode::InvalidArgument.into()));
        let untold = UnloggedDeadRows { cause, rows: 19_999, dead: None };
        assert_eq!(dead.due(later), [untold]);
        assert!(!dead.died(&topic, CallCode::InvalidArgument.into(), later), "it still goes on");
        assert!(dead.died(&other, CallCode::InvalidArgument.into(), later), "that one had ended");
    }

    #[test]
    fn rows_that_were_settled_since_are_told_as_settled() {
        let began = Instant::now();
        let topic: Topic = "projects/p/topics/a".into();
        let told = |counted: &[(u64, Duration)]| {
            let mut dead = DeadRows::default();
            dead.died(&topic, CallCode::InvalidArgument.into(), began);
            dead.died(&topic, CallCode::InvalidArgument.into(), began);
            counted.iter().for_each(|(rows, after)| dead.counted(*rows, began + *after));
            dead.due(began + QUIET)[0].dead
        };
        assert_eq!(told(&[]), None, "nobody has counted");
        assert_eq!(told(&[(0, RECORDED / 2)]), None, "they may not have been recorded by then");
        assert_eq!(told(&[(2, RECORDED)]), Some(2));
        assert_eq!(told(&[(2, RECORDED), (0, RECORDED * 2)]), Some(0));
    }

    #[test]
    fn causes_beyond_the_bound_share_a_line_and_none_is_lost() {
        let mut dead = DeadRows::default();
        let now = Instant::now();
        for number in 0..CAUSES_MAX + 10 {
            let topic: Topic = format!("projects/p/topics/bad topic {number}").into();
            dead.died(&topic, FailureCode::Unroutable, now);
        }
        assert_eq!(dead.causes.len(), CAUSES_MAX);
        assert_eq!(dead.due(now + QUIET), [UnloggedDeadRows { cause: None, rows: 10, dead: None }]);
    }

    #[test]
    fn the_first_death_on_a_topic_is_told_however_many_names_no_topic_can_have() {
        let mut dead = DeadRows::default();
        let now = Instant::now();
        for number in 0..1_000 {
            let topic: Topic = format!("projects/p/topics/bad topic {number}").into();
            dead.died(&topic, FailureCode::Unroutable, now);
            dead.died(&topic, FailureCode::Unroutable, now);
        }
        let topic: Topic = "projects/p/topics/order.events".into();
        assert!(dead.died(&topic, FailureCode::LocalLimit, now), "it has a line of its own");
        assert!(!dead.died(&topic, FailureCode::LocalLimit, now));
        let rest = dead.rest();
        let own =
            UnloggedDeadRows { cause: Some((topic, FailureCode::LocalLimit)), rows: 1, dead: None };
        assert!(rest.contains(&own), "{rest:?}");
        let lines = CAUSES_MAX as u64 + 2;
        assert_eq!(rest.iter().map(|untold| untold.rows).sum::<u64>() + lines, 2_003);
    }

    #[test]
    fn more_topics_than_are_told_apart_are_no_line_a_row() {
        let mut dead = DeadRows::default();
        let now = Instant::now();
        let topics: Vec<Topic> =
            (0..200).map(|number| format!("projects/p/topics/topic-{number}").into()).collect();
        let mut died = |at| -> usize {
            let rows = (0..20).flat_map(|_| &topics);
            rows.filter(|topic| dead.died(topic, FailureCode::LocalLimit, at)).count()
        };
        assert_eq!(died(now), CAUSES_MAX + EVICTIONS_MAX as usize);
        assert_eq!(died(now + QUIET), EVICTIONS_MAX as usize, "those of the next minute");
    }
}
