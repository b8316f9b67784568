//! Limits the WAL that the slot retains for the relay. Rows that cannot be published are recorded
//! near the limit, so that the slot can move on (I10).
//!
//! ```text
//!           held ≥ ¾ of the budget                held ≥ ¾, and nothing is stored at all
//!  Off ─────────────────────────────▶ Failing ─────────────────────────────▶ Everything
//!   ▲ ◀──────── held ≤ ½ ──────────────┘ ▲ ◀────── something is stored ──────────┘ │
//!   └──────────────────────── held ≤ ½, or it is futile ───────────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pgoutput_parser::Lsn;

use crate::lanes::lane::Batch;
use crate::publish_health::Delivery;
use crate::tracker::Watermark;

/// The rows that are recorded in dispatch state because the slot retains too much WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SpillMode {
    /// No rows. The slot retains their WAL.
    #[default]
    Off,
    /// Refused rows. Pub/Sub stores other rows, so those need no recording.
    Failing,
    /// All rows, because Pub/Sub stores nothing at all.
    Everything,
}

/// The WAL that the slot retains for the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The end of the server's WAL.
    pub wal_end: Lsn,
    /// The position up to which everything is settled.
    pub watermark: Lsn,
}

impl Held {
    /// Retained WAL, in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.wal_end.as_u64().saturating_sub(self.watermark.as_u64())
    }
}

/// The server's limit on retained WAL. A slot beyond the limit is invalidated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalRetentionLimit {
    /// No limit but the disk (`max_slot_wal_keep_size = -1`).
    Unlimited,
    /// The limit in bytes. A slot that retains more WAL is lost.
    Bytes(u64),
}

impl WalRetentionLimit {
    /// The limit in bytes, or `None` without a limit.
    #[must_use]
    pub const fn bytes(self) -> Option<u64> {
        match self {
            Self::Unlimited => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

/// `--wal-budget`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalBudgetLimit {
    /// Half of the server's limit, at most 4 GiB. 1 GiB if the server has no limit.
    Auto,
    /// A fixed number of bytes.
    Bytes(u64),
    /// No budget: the slot retains WAL without a limit from the relay.
    Off,
}

impl WalBudgetLimit {
    const AUTO_MAX: u64 = 4 << 30;
    const UNLIMITED: u64 = 1 << 30;

    /// The budget on a server with this limit, in bytes. `None` for no budget.
    #[must_use]
    pub fn bytes(self, retention: WalRetentionLimit) -> Option<u64> {
        match (self, retention) {
            (Self::Off, _) => None,
            (Self::Bytes(bytes), _) => Some(bytes),
            (Self::Auto, WalRetentionLimit::Unlimited) => Some(Self::UNLIMITED),
            (Self::Auto, WalRetentionLimit::Bytes(room)) => Some((room / 2).min(Self::AUTO_MAX)),
        }
    }
}

/// The WAL budget of one session.
#[derive(Debug)]
pub struct WalBudget {
    setting: WalBudgetLimit,
    /// The budget on this server now, in bytes.
    limit: Option<u64>,
    /// The server's limit as last read. An operator may change it at any time.
    retention: WalRetentionLimit,
    /// The start of the stream. The relay retains no WAL before this position, even if no watermark
    /// is known yet.
    from: Lsn,
    spill: SpillMode,
    effort: SpillCost,
    /// The WAL cost of recorded rows, by the section of WAL in which the rows were committed.
    /// Sections behind the watermark are removed.
    recorded: BTreeMap<u64, u64>,
    /// The end of the WAL when spilling paused because it wrote more WAL than it released.
    ///
    /// Spilling resumes when a row is stored, or when enough WAL has been written since. Other
    /// tables may have written that WAL, and then only the earlier outbox rows retain it.
    paused_at: Option<Lsn>,
}

/// The cost of spilling so far, and the WAL that it released. Both cover the same sections of the
/// WAL. They can therefore be compared at any time, however far ahead of the watermark rows are
/// recorded.
#[derive(Debug, Clone, Copy)]
struct SpillCost {
    /// The first section that counts.
    from: u64,
    /// The end of the WAL when spilling began. Later WAL is partly written by the relay itself.
    to: Lsn,
    written: u64,
    /// The excess of cost over released WAL that is allowed, in bytes.
    allowed: u64,
}

impl SpillCost {
    const NONE: Self = Self { from: 0, to: Lsn::ZERO, written: 0, allowed: 0 };

    /// The excess of cost over released WAL in bytes, after all sections before `passed` were
    /// released.
    const fn loss(&self, passed: u64, stretch: u64) -> u64 {
        self.written.saturating_sub(passed.saturating_sub(self.from) * stretch)
    }
}

/// The WAL that one recorded row writes in addition to its message, in bytes: the row, its index
/// entries, and its deletion.
const ROW_WAL_BYTES: u64 = 1_500;

/// The number of WAL sections in a budget: the resolution at which cost and released WAL are
/// compared.
const SECTIONS: u64 = 256;

impl WalBudget {
    /// Creates the budget for a server with this limit and a stream that starts at `from`.
    #[must_use]
    pub fn new(setting: WalBudgetLimit, retention: WalRetentionLimit, from: Lsn) -> Self {
        Self {
            setting,
            limit: setting.bytes(retention),
            retention,
            from,
            spill: SpillMode::Off,
            effort: SpillCost::NONE,
            recorded: BTreeMap::new(),
            paused_at: None,
        }
    }

    /// Applies the server's limit as just read. Returns the previous limit if it was different.
    pub fn follow(&mut self, retention: WalRetentionLimit) -> Option<WalRetentionLimit> {
        if retention == self.retention {
            return None;
        }
        self.limit = self.setting.bytes(retention);
        // Both were counted in sections of the previous budget.
        self.recorded.clear();
        self.effort = SpillCost::NONE;
        Some(std::mem::replace(&mut self.retention, retention))
    }

    /// The server's limit as last read.
    #[must_use]
    pub const fn retention(&self) -> WalRetentionLimit {
        self.retention
    }

    /// The budget in bytes.
    #[must_use]
    pub const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// The retained WAL, if everything before the watermark is settled.
    #[must_use]
    pub fn held(&self, wal_end: Lsn, watermark: Watermark) -> Held {
        Held { wal_end, watermark: watermark.lsn().max(self.from) }
    }

    /// Whether the retained WAL is near the budget, so that all rows are recorded.
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.spill == SpillMode::Everything
    }

    /// Whether spilling is paused because it writes more WAL than it releases.
    #[must_use]
    pub const fn is_futile(&self) -> bool {
        self.paused_at.is_some()
    }

    /// The time after which a call that retains WAL near the budget may be abandoned. Google's own
    /// publishers wait as long for the first answer.
    pub const PATIENCE: Duration = Duration::from_secs(5);

    /// Whether to abandon an unanswered call, with the stream read up to `read_to`.
    ///
    /// Either nothing is stored at all, or others are answered and this call alone retains half of
    /// the budget. WAL that has not been read yet does not count against outstanding calls.
    #[must_use]
    pub fn must_abandon(&self, call: &Batch, read_to: Lsn, now: Instant) -> bool {
        let holds_back = |from: Lsn| read_to.as_u64().saturating_sub(from.as_u64());
        let is_meant = match (self.spill, self.limit) {
            (SpillMode::Off, _) | (_, None) => false,
            (SpillMode::Failing, Some(limit)) => {
                call.committed_from().is_some_and(|from| holds_back(from) >= limit / 2)
            }
            (SpillMode::Everything, Some(_)) => true,
        };
        is_meant && now.saturating_duration_since(call.sent_at()) >= Self::PATIENCE
    }

    /// Notes that a row committed at this position was recorded with a message of this size.
    pub fn recorded(&mut self, commit_lsn: Lsn, message_bytes: usize) {
        let Some(stretch) = self.stretch() else { return };
        let cost = ROW_WAL_BYTES + message_bytes as u64;
        *self.recorded.entry(commit_lsn.as_u64() / stretch).or_default() += cost;
    }

    /// The size of a WAL section in bytes, if the cost of recording matters. The cost does not
    /// matter on a server that would drop the slot, because using disk is better than losing the
    /// slot.
    fn stretch(&self) -> Option<u64> {
        let limit = self.limit.filter(|_| self.retention == WalRetentionLimit::Unlimited)?;
        Some((limit / SECTIONS).max(1))
    }

    /// Adds up the cost of rows that the watermark has passed.
    fn pass(&mut self, watermark: Lsn) {
        let Some(stretch) = self.stretch() else { return };
        let ahead = self.recorded.split_off(&(watermark.as_u64() / stretch));
        let passed = std::mem::replace(&mut self.recorded, ahead);
        let of_effort = passed.range(self.effort.from..).map(|(_, cost)| *cost);
        self.effort.written += of_effort.sum::<u64>();
    }

    /// Decides which rows to record from now on.
    pub fn judge(&mut self, held: Held, delivery: Delivery) -> SpillMode {
        let Some(limit) = self.limit else { return SpillMode::Off };
        self.pass(held.watermark);
        let bytes = held.bytes();
        let before = self.spill;
        let is_near = bytes >= limit / 4 * 3;
        let is_relieved = bytes <= limit / 2;
        let rested_since = self.paused_at.take();
        // After a pause, spilling may lose as much more as the WAL grew during the pause. The total
        // is then at most about twice the WAL alone, and the watermark still passes the WAL of
        // other tables in the end.
        let grown = rested_since.map_or(0, |since| held.wal_end.bytes_since(since));
        let paused_at = rested_since
            .filter(|_| delivery == Delivery::Stalled && !is_relieved && grown < limit / 8);
        self.spill = match (before, delivery) {
            (_, _) if is_relieved => SpillMode::Off,
            (SpillMode::Off, _) if !is_near => SpillMode::Off,
            (SpillMode::Failing, Delivery::Stalled) if !is_near => SpillMode::Failing,
            (_, Delivery::Stalled) if paused_at.is_some() => SpillMode::Off,
            (_, Delivery::Stalled) => SpillMode::Everything,
            (_, Delivery::Flowing) => SpillMode::Failing,
        };
        self.paused_at = paused_at;
        if let (SpillMode::Everything, Some(stretch)) = (self.spill, self.stretch()) {
            let passed = held.watermark.as_u64() / stretch;
            let (is_new, goes_on) = (before != SpillMode::Everything, rested_since.is_some());
            if is_new && !goes_on || held.watermark >= self.effort.to {
                self.effort =
                    SpillCost { from: passed, to: held.wal_end, written: 0, allowed: limit / 8 };
            } else if is_new {
                self.effort.allowed = self.effort.loss(passed, stretch) + grown;
            }
            // If outbox rows are most of the WAL, recording them writes more WAL than it releases.
            if self.effort.loss(passed, stretch) > self.effort.allowed {
                self.paused_at = Some(held.wal_end);
                self.spill = SpillMode::Off;
            }
        }
        self.spill
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use pgoutput_parser::{PgTimestamp, Position};

    use super::*;
    use crate::lanes::lane::{LaneId, Origin, Row};
    use crate::message::Message;
    use crate::tracker::Tracker;

    const MIB: u64 = 1 << 20;

    fn budget(limit: u64) -> WalBudget {
        WalBudget::new(WalBudgetLimit::Bytes(limit), WalRetentionLimit::Unlimited, Lsn::ZERO)
    }

    fn held(bytes: u64) -> Held {
        held_at(1 << 40, bytes)
    }

    fn held_at(watermark: u64, bytes: u64) -> Held {
        Held { wal_end: Lsn::new(watermark + bytes), watermark: Lsn::new(watermark) }
    }

    #[test]
    fn spilling_begins_at_three_quarters_and_ends_at_half() {
        let mut budget = budget(64 * MIB);
        let steps = [
            (47, SpillMode::Off),
            (48, SpillMode::Everything),
            (33, SpillMode::Everything),
            (32, SpillMode::Off),
            (47, SpillMode::Off),
            (70, SpillMode::Everything),
        ];
        for (mebibytes, spill) in steps {
            assert_eq!(
                budget.judge(held(mebibytes * MIB), Delivery::Stalled),
                spill,
                "{mebibytes} MiB"
            );
        }
    }

    #[test]
    fn while_something_is_stored_only_what_fails_is_recorded() {
        let mut budget = budget(64 * MIB);
        assert_eq!(budget.judge(held(60 * MIB), Delivery::Flowing), SpillMode::Failing);
        assert_eq!(budget.judge(held(60 * MIB), Delivery::Stalled), SpillMode::Everything);
        assert_eq!(budget.judge(held(60 * MIB), Delivery::Flowing), SpillMode::Failing);
        assert_eq!(budget.judge(held(40 * MIB), Delivery::Stalled), SpillMode::Failing);
        assert_eq!(budget.judge(held(30 * MIB), Delivery::Stalled), SpillMode::Off);
    }

    /// Records rows with messages of 200 bytes, evenly distributed over the mebibytes of WAL in the
    /// range.
    fn record(budget: &mut WalBudget, mebibytes: std::ops::Range<u64>, rows_per_mebibyte: u64) {
        for mebibyte in mebibytes {
            for row in 0..rows_per_mebibyte {
                let at = mebibyte * MIB + row * (MIB / rows_per_mebibyte);
                budget.recorded(Lsn::new(at), 200);
            }
        }
    }

    #[test]
    fn rows_that_write_more_than_they_let_go_are_left_in_the_log_until_something_is_stored() {
        let mut budget = budget(64 * MIB);
        assert_eq!(budget.judge(held_at(0, 60 * MIB), Delivery::Stalled), SpillMode::Everything);
        // 1,850 rows of 1,700 bytes: each released byte costs three written bytes.
        record(&mut budget, 0..8, 1_850);
        assert_eq!(
            budget.judge(held_at(3 * MIB, 57 * MIB), Delivery::Stalled),
            SpillMode::Everything
        );
        assert_eq!(budget.judge(held_at(5 * MIB, 55 * MIB), Delivery::Stalled), SpillMode::Off);
        assert!(budget.is_futile());
        assert_eq!(budget.judge(held_at(5 * MIB, 62 * MIB), Delivery::Stalled), SpillMode::Off);
        assert_eq!(budget.judge(held_at(5 * MIB, 62 * MIB), Delivery::Flowing), SpillMode::Failing);
        assert!(!budget.is_futile());
        assert_eq!(
            budget.judge(held_at(5 * MIB, 62 * MIB), Delivery::Stalled),
            SpillMode::Everything
        );
    }

    #[test]
    fn log_of_others_behind_a_burst_of_rows_is_passed_in_the_end() {
        let mut budget = budget(64 * MIB);
        // 40 MiB full of rows, followed only by WAL of other tables.
        let rows_at = |mebibyte: u64| if mebibyte < 40 { 1_850 } else { 1 };
        let (mut passed, mut wal_end, mut held_most) = (0, 50, 0);
        while wal_end < 1_000 {
            let held = held_at(passed * MIB, (wal_end - passed) * MIB);
            match budget.judge(held, Delivery::Stalled) {
                SpillMode::Everything => {
                    record(&mut budget, passed..passed + 1, rows_at(passed));
                    passed += 1;
                }
                SpillMode::Off | SpillMode::Failing => wal_end += 1,
            }
            held_most = held_most.max(wal_end - passed);
        }
        assert!(wal_end - passed <= 48, "{} MiB in the end", wal_end - passed);
        // The rows write 80 MB more than the WAL that they release.
        assert!((64..=128).contains(&held_most), "{held_most} MiB");
    }

    #[test]
    fn an_outage_in_which_all_log_are_rows_takes_about_twice_the_room_at_most() {
        let mut budget = budget(64 * MIB);
        let (mut passed, mut written) = (0, 0);
        for wal_end in 48..1_000 {
            let held = |from| held_at(from * MIB, (wal_end - from) * MIB);
            while budget.judge(held(passed), Delivery::Stalled) == SpillMode::Everything {
                record(&mut budget, passed..passed + 1, 1_850);
                written += 1_850 * 1_700;
                passed += 1;
            }
            let takes = written / MIB + wal_end - passed;
            // The test records one mebibyte of rows at a time, which exceeds the allowance by two
            // each time.
            assert!(takes <= wal_end / 4 * 9 + 8, "{takes} MiB of {wal_end}");
        }
        assert!(passed > 100, "it goes on");
    }

    #[test]
    fn what_is_recorded_ahead_of_the_watermark_is_compared_with_the_log_it_lies_in() {
        let mut budget = budget(64 * MIB);
        assert_eq!(budget.judge(held_at(0, 60 * MIB), Delivery::Stalled), SpillMode::Everything);
        // Recording writes 16 MB for 48 MiB of WAL, and the watermark waits for one row at the
        // beginning.
        record(&mut budget, 0..48, 200);
        assert_eq!(budget.judge(held_at(0, 60 * MIB), Delivery::Stalled), SpillMode::Everything);
        assert_eq!(
            budget.judge(held_at(24 * MIB, 36 * MIB), Delivery::Stalled),
            SpillMode::Everything
        );
        assert_eq!(budget.effort.written, 24 * 200 * 1_700);
        assert!(!budget.is_futile());
    }

    #[test]
    fn rows_are_most_of_the_log_from_about_six_hundred_in_a_mebibyte_on() {
        for (rows_per_mebibyte, is_futile) in [(100, false), (600, false), (800, true)] {
            let mut budget = budget(64 * MIB);
            let mut watermark = 0;
            assert_eq!(
                budget.judge(held_at(0, 60 * MIB), Delivery::Stalled),
                SpillMode::Everything
            );
            while watermark < 59 && !budget.is_futile() {
                record(&mut budget, watermark..watermark + 1, rows_per_mebibyte);
                watermark += 1;
                budget.judge(held_at(watermark * MIB, 60 * MIB), Delivery::Stalled);
            }
            assert_eq!(budget.is_futile(), is_futile, "{rows_per_mebibyte} rows in a mebibyte");
        }
    }

    #[test]
    fn a_slot_that_would_be_lost_is_relieved_whatever_it_costs() {
        let mut budget = WalBudget::new(
            WalBudgetLimit::Bytes(64 * MIB),
            WalRetentionLimit::Bytes(128 * MIB),
            Lsn::ZERO,
        );
        assert_eq!(budget.judge(held_at(0, 60 * MIB), Delivery::Stalled), SpillMode::Everything);
        record(&mut budget, 0..4, 100_000);
        assert_eq!(
            budget.judge(held_at(4 * MIB, 56 * MIB), Delivery::Stalled),
            SpillMode::Everything
        );
    }

    #[test]
    fn a_pass_through_the_log_is_judged_by_the_log_it_began_with() {
        let mut budget = budget(64 * MIB);
        assert_eq!(budget.judge(held_at(0, 50 * MIB), Delivery::Stalled), SpillMode::Everything);
        record(&mut budget, 0..51, 200);
        assert_eq!(
            budget.judge(held_at(51 * MIB, 40 * MIB), Delivery::Stalled),
            SpillMode::Everything
        );
        assert_eq!(budget.effort.written, 0);
    }

    #[test]
    fn what_is_remembered_of_recorded_rows_does_not_grow_with_their_number() {
        let mut budget = budget(64 * MIB);
        record(&mut budget, 0..64, 5_000);
        assert_eq!(budget.recorded.len() as u64, SECTIONS);
        budget.judge(held_at(64 * MIB, MIB), Delivery::Flowing);
        assert!(budget.recorded.is_empty());
    }

    /// A call sent at `sent_at`, with a row committed at the given position or claimed from
    /// dispatch state.
    fn call(committed: Option<Lsn>, sent_at: Instant) -> Batch {
        let position = Position { commit_lsn: committed.unwrap_or(Lsn::new(1)), tx_index: 0 };
        let message = Message::from_encoded("t".into(), position, "e", b"\x0A\x01x").unwrap();
        let origin = match committed {
            Some(_) => {
                let mut tracker = Tracker::new();
                tracker.begin(PgTimestamp::from_micros(0));
                Origin::Live(tracker.open())
            }
            None => Origin::Claimed { attempts: 0 },
        };
        Batch {
            lane: LaneId(0),
            rows: VecDeque::from([Row::new(message, origin)]),
            failed_before: 0,
            sent_at,
        }
    }

    #[test]
    fn a_call_without_an_answer_is_given_up_when_nobody_answers_or_it_alone_holds_back_the_log() {
        let start = Instant::now();
        let mut budget = budget(64 * MIB);
        let read_to = Lsn::new(100 * MIB);
        let holds_back = |mebibytes: u64| call(Some(Lsn::new((100 - mebibytes) * MIB)), start);
        let all = [holds_back(33), holds_back(32), holds_back(31), call(None, start)];
        let early = start + WalBudget::PATIENCE - Duration::from_millis(1);
        let late = start + WalBudget::PATIENCE;
        for (held_mebibytes, delivery, given_up) in [
            (47, Delivery::Flowing, [false; 4]),
            (48, Delivery::Flowing, [true, true, false, false]),
            (48, Delivery::Stalled, [true; 4]),
            (32, Delivery::Stalled, [false; 4]),
        ] {
            budget.judge(held(held_mebibytes * MIB), delivery);
            let found = |now| all.each_ref().map(|call| budget.must_abandon(call, read_to, now));
            assert_eq!(found(late), given_up, "{held_mebibytes} MiB, {delivery:?}");
            assert_eq!(found(early), [false; 4], "{held_mebibytes} MiB, {delivery:?}");
        }
    }

    #[test]
    fn the_default_leaves_half_of_what_the_server_allows() {
        let auto = |retention| WalBudgetLimit::Auto.bytes(retention);
        assert_eq!(auto(WalRetentionLimit::Unlimited), Some(1 << 30));
        assert_eq!(auto(WalRetentionLimit::Bytes(2 << 30)), Some(1 << 30));
        assert_eq!(auto(WalRetentionLimit::Bytes(100 << 30)), Some(4 << 30));
        assert_eq!(WalBudgetLimit::Off.bytes(WalRetentionLimit::Unlimited), None);
        assert_eq!(WalBudgetLimit::Bytes(5).bytes(WalRetentionLimit::Unlimited), Some(5));
    }

    #[test]
    fn the_default_follows_the_server_when_its_bound_changes() {
        let bound = WalRetentionLimit::Bytes(512 * MIB);
        let mut budget = WalBudget::new(WalBudgetLimit::Auto, bound, Lsn::ZERO);
        assert_eq!(budget.limit(), Some(256 * MIB));
        assert_eq!(budget.judge(held(60 * MIB), Delivery::Stalled), SpillMode::Off);
        assert_eq!(budget.follow(bound), None);
        assert_eq!(budget.follow(WalRetentionLimit::Bytes(96 * MIB)), Some(bound));
        assert_eq!(budget.limit(), Some(48 * MIB));
        assert_eq!(budget.judge(held(60 * MIB), Delivery::Stalled), SpillMode::Everything);
        budget.follow(WalRetentionLimit::Unlimited);
        assert_eq!(budget.limit(), Some(1 << 30));
        assert_eq!(budget.judge(held(60 * MIB), Delivery::Stalled), SpillMode::Off);
        let mut fixed = WalBudget::new(WalBudgetLimit::Bytes(5), bound, Lsn::ZERO);
        fixed.follow(WalRetentionLimit::Unlimited);
        assert_eq!(fixed.limit(), Some(5));
    }

    #[test]
    fn without_a_budget_nothing_is_spilled() {
        let mut budget =
            WalBudget::new(WalBudgetLimit::Off, WalRetentionLimit::Unlimited, Lsn::ZERO);
        assert_eq!(budget.judge(held(1 << 40), Delivery::Stalled), SpillMode::Off);
    }

    #[test]
    fn before_anything_is_settled_the_stream_holds_what_lies_behind_its_start() {
        let limit = WalBudgetLimit::Bytes(MIB);
        let budget = WalBudget::new(limit, WalRetentionLimit::Unlimited, Lsn::new(1 << 40));
        let held = budget.held(Lsn::new((1 << 40) + 5), Tracker::new().watermark());
        assert_eq!(held.bytes(), 5);
    }
}
