//! The state of the judge: every row, its key and its status.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::facts::{End, Event, Fault, Row, RowNumber, Rules, Status};
use super::topic_replay::TopicReplay;

#[derive(Debug)]
pub(super) struct RowState {
    pub(super) row: Row,
    pub(super) lane: Option<usize>,
    pub(super) committed_at: Instant,
    pub(super) stored: u32,
    pub(super) repeat: Repeat,
    /// The number of resets when the row last had to be published. Older requests do not count for
    /// it.
    pub(super) round: u64,
    pub(super) recorded: Option<Status>,
    /// Whether rows behind it need not wait for it any more.
    pub(super) is_excused: bool,
    pub(super) kind: RowOf,
}

/// The origin of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowOf {
    /// A producer. The slot sends the row.
    Producer,
    /// A replay in place repeats another row. This row is in the table from the start.
    Replay,
    /// A replay to another topic repeats a row there.
    Copy,
}

/// Whether the row may be stored once more because of an earlier event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Allowed,
    /// Any number of times: a process that had lost the slot published the row.
    Always,
    Forbidden,
}

impl RowState {
    pub(super) fn allow_repeat(&mut self) {
        if self.repeat == Repeat::Forbidden {
            self.repeat = Repeat::Allowed;
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.kind != RowOf::Producer || self.stored > 0 || self.recorded.is_some()
    }
}

/// The rows of one topic and key.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) rows: Vec<usize>,
    /// All rows before this index are stored or excused.
    pub(super) next: usize,
    /// The request in flight by process. Two processes may publish, and each has one request at a
    /// time.
    pub(super) outstanding: BTreeMap<u64, u64>,
    /// The position through which a replay holds the key.
    pub(super) held_through: Option<(u64, i64)>,
}

#[derive(Debug)]
pub(super) struct Call {
    /// Whether a later session of its process has started, so that the slot sends its rows again.
    pub(super) is_late: bool,
    pub(super) process: u64,
    pub(super) lane: Option<usize>,
    pub(super) rows: Vec<usize>,
    /// The number of resets when the session of its process started.
    pub(super) round: u64,
}

pub(super) struct State {
    pub(super) rules: Rules,
    pub(super) started: Instant,
    pub(super) rows: Vec<RowState>,
    /// Rows that Pub/Sub refused as invalid in this session. Rows behind them may be stored, and they
    /// may not be stored behind those, unless they were dead in between.
    pub(super) passed_over: BTreeSet<usize>,
    pub(super) by_number: BTreeMap<RowNumber, usize>,
    pub(super) by_position: BTreeMap<(u64, u32), usize>,
    pub(super) lanes: Vec<Lane>,
    pub(super) lane_of: BTreeMap<(String, String), usize>,
    /// The replays by topic.
    pub(super) replays: BTreeMap<String, TopicReplay>,
    /// The number of resets. `rounds` has the number at the start of each process' session.
    pub(super) round: u64,
    pub(super) rounds: BTreeMap<u64, u64>,
    /// The target of the last reset. Everything before it is settled, and is not published again.
    pub(super) floor: u64,
    /// The settled position that each process last read.
    pub(super) records: BTreeMap<u64, u64>,
    pub(super) calls: BTreeMap<u64, Call>,
    pub(super) calls_count: u64,
    /// Rows before this index were settled when the slot was confirmed over them.
    pub(super) confirmed_rows: usize,
    pub(super) unsettled: BTreeSet<usize>,
    pub(super) unsettled_bytes: usize,
    /// The largest excess over the budget. A session that ends still reads but retains nothing, so
    /// the excess is reported only if the session publishes afterwards.
    pub(super) over_budget: usize,
    pub(super) status_at: Instant,
    pub(super) silence_excused_until: Instant,
    pub(super) last_end: End,
    /// The process that streamed last, and the times at which it started and last moved the slot.
    pub(super) streaming: u64,
    pub(super) streaming_pid: i32,
    pub(super) moved_at: Instant,
    pub(super) confirmed: u64,
    pub(super) stored_count: u64,
    pub(super) repeated_count: u64,
    pub(super) history: Vec<(Duration, Event)>,
    pub(super) findings: Vec<(Fault, String)>,
}

impl State {
    pub(super) fn new(rules: Rules) -> Self {
        let started = Instant::now();
        Self {
            rules,
            started,
            rows: Vec::new(),
            passed_over: BTreeSet::new(),
            by_number: BTreeMap::new(),
            by_position: BTreeMap::new(),
            lanes: Vec::new(),
            lane_of: BTreeMap::new(),
            replays: BTreeMap::new(),
            round: 0,
            rounds: BTreeMap::new(),
            floor: 0,
            records: BTreeMap::new(),
            calls: BTreeMap::new(),
            calls_count: 0,
            confirmed_rows: 0,
            unsettled: BTreeSet::new(),
            unsettled_bytes: 0,
            over_budget: 0,
            status_at: started,
            silence_excused_until: started,
            last_end: End::Graceful,
            streaming: 0,
            streaming_pid: 0,
            moved_at: started,
            confirmed: 0,
            stored_count: 0,
            repeated_count: 0,
            history: Vec::new(),
            findings: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, event: Event) {
        let at = self.started.elapsed();
        self.history.push((at, event));
    }

    pub(super) fn find(&mut self, fault: Fault, text: String) {
        let at = self.started.elapsed().as_secs_f64();
        self.note(Event::Chaos(format!("FOUND {fault:?}: {text}")));
        self.findings.push((fault, format!("at {at:.3}: {text}")));
    }

    pub(super) fn is_superseded(&self, process: u64) -> bool {
        match self.replay_of(process) {
            Some(replay) => replay.is_over_for(process),
            None => self.streaming != process && self.streaming != 0,
        }
    }

    pub(super) fn add(&mut self, row: Row) {
        let index = self.rows.len();
        let lane = (!row.key.is_empty()).then(|| {
            let lane = self.lane(&row.topic, &row.key);
            self.lanes[lane].rows.push(index);
            lane
        });
        self.by_number.insert(row.number, index);
        self.by_position.insert((row.commit_lsn, row.tx_index), index);
        let is_excused = row.is_unroutable && (!self.rules.dead_rows_hold || lane.is_none());
        let (stored, repeat, recorded) = (0, Repeat::Forbidden, None);
        let committed_at = Instant::now();
        let kind = RowOf::Producer;
        let round = 0;
        self.rows.push(RowState {
            row,
            lane,
            committed_at,
            stored,
            repeat,
            round,
            recorded,
            is_excused,
            kind,
        });
    }

    pub(super) fn lane(&mut self, topic: &str, key: &str) -> usize {
        let count = self.lanes.len();
        let lane = *self.lane_of.entry((topic.to_owned(), key.to_owned())).or_insert(count);
        if lane == count {
            self.lanes.push(Lane::default());
        }
        lane
    }

    pub(super) fn held(&mut self, topic: &str, key: &str, through: Option<(u64, i64)>) {
        let text = format!("{key} of {topic} is held through {through:?}");
        self.note(Event::Chaos(text));
        let lane = self.lane(topic, key);
        self.lanes[lane].held_through = through;
    }

    /// Inserts a row of a replay behind its hold position and its earlier rows, and before all
    /// other rows of the key.
    pub(super) fn replayed(&mut self, row: Row) {
        let (index, lane) = (self.rows.len(), self.lane(&row.topic, &row.key));
        let Lane { rows: in_order, next, held_through, .. } = &mut self.lanes[lane];
        let Some(through) = *held_through else {
            return self.find(Fault::Unknown, format!("row {}: its key is not held", row.number));
        };
        let is_behind = |at: &usize| {
            let other = &self.rows[*at];
            other.kind == RowOf::Producer && !other.row.is_through(through)
        };
        let place = in_order.iter().position(is_behind).unwrap_or(in_order.len());
        in_order.insert(place, index);
        *next = (*next).min(place);
        self.by_number.insert(row.number, index);
        self.rows.push(RowState {
            row,
            lane: Some(lane),
            committed_at: Instant::now(),
            stored: 0,
            repeat: Repeat::Forbidden,
            round: 0,
            recorded: None,
            is_excused: false,
            kind: RowOf::Replay,
        });
    }

    /// Returns the rows of a key that a replay repeats.
    pub(super) fn history(&self, topic: &str, key: &str, through: (u64, i64)) -> Vec<Row> {
        let rows = self.rows.iter().filter(|state| state.kind == RowOf::Producer);
        let rows = rows.map(|state| &state.row).filter(|row| {
            row.topic == topic && row.key == key && row.is_through(through) && !row.is_unroutable
        });
        rows.cloned().collect()
    }

    pub(super) fn recorded(&mut self, number: RowNumber, status: Status) {
        self.note(Event::Recorded { row: number, status });
        let Some(index) = self.by_number.get(&number).copied() else {
            return self.find(Fault::Unknown, format!("row {number} in the table"));
        };
        let row = &mut self.rows[index];
        row.recorded = Some(status);
        row.is_excused |= match status {
            Status::Discarded => true,
            Status::Dead => !self.rules.dead_rows_hold || row.lane.is_none(),
            Status::Retrying | Status::Published => false,
        };
        self.settle(index);
    }

    pub(super) fn settle(&mut self, index: usize) {
        if self.unsettled.remove(&index) {
            self.unsettled_bytes -= self.rows[index].row.payload.len();
        }
    }
}
