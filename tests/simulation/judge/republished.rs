//! Rows that are republished on purpose. A reset repeats everything behind its target, on the
//! original topics. A replay repeats a range of WAL on its own topic.

use tokio::time::Instant;

use super::Judge;
use super::facts::{Event, Fault, Hex, Row, RowNumber, Status};
use super::state::{Repeat, RowOf, RowState, State};
use super::topic_replay::TopicReplay;

impl Judge {
    /// Records a reset of the slot: everything behind the target must be published again.
    pub(crate) fn reset(&self, target: u64) {
        self.state().reset(target);
    }

    /// Records the start of a replay of a range of WAL to this topic, with this mark.
    pub(crate) fn replay_begins(&self, topic: &str, id: &str, from: u64, to: u64) {
        self.state().replay_begins(topic, id, from, to);
    }

    /// Records that this process runs the replay from now on.
    pub(crate) fn replay_done_by(&self, topic: &str, process: u64) {
        let mut state = self.state();
        if let Some(replay) = state.replays.get_mut(topic) {
            replay.processes.insert(process);
            replay.process = process;
        }
    }

    /// Records that everything of a replay before this position is on record as published.
    pub(crate) fn replay_noted(&self, topic: &str, settled: u64) {
        self.state().replay_noted(topic, settled);
    }

    /// Returns the number of stored rows of replays to a topic, without duplicates.
    pub(crate) fn copies_count(&self) -> usize {
        let state = self.state();
        let is_so = |row: &&RowState| row.kind == RowOf::Copy && row.stored > 0;
        state.rows.iter().filter(is_so).count()
    }

    /// Returns the number of resets.
    pub(crate) fn resets_count(&self) -> u64 {
        self.state().round
    }
}

impl State {
    /// Returns the row of this message. On the topic of a replay, this is the copy of the row.
    pub(super) fn index_of(&self, topic: &str, number: RowNumber) -> Option<usize> {
        match self.replays.get(topic) {
            Some(replay) => replay.rows.get(&number).copied(),
            None => self.by_number.get(&number).copied(),
        }
    }

    /// Returns the mark of messages to this topic.
    pub(super) fn mark_of(&self, topic: &str) -> Option<&str> {
        self.replays.get(topic).map(|replay| replay.id.as_str())
    }

    /// Returns the replay that this process runs or ran.
    pub(super) fn replay_of(&self, process: u64) -> Option<&TopicReplay> {
        self.replays.values().find(|replay| replay.processes.contains(&process))
    }

    /// Recorded and unpublished rows keep their place. Dead and discarded rows keep their status.
    fn reset(&mut self, target: u64) {
        self.note(Event::Chaos(format!("reset to {:?}", Hex(target))));
        self.round += 1;
        self.floor = target;
        self.confirmed = self.confirmed.min(target);
        for (index, row) in self.rows.iter_mut().enumerate() {
            let is_behind = row.kind == RowOf::Producer && row.row.commit_lsn >= target;
            let comes_again =
                matches!(row.recorded, None | Some(Status::Retrying | Status::Published));
            if !is_behind || !comes_again {
                continue;
            }
            row.recorded = row.recorded.filter(|status| *status == Status::Retrying);
            (row.stored, row.repeat, row.round) = (0, Repeat::Forbidden, self.round);
            self.confirmed_rows = self.confirmed_rows.min(index);
        }
        for lane in &mut self.lanes {
            let first = lane.rows.iter().position(|at| self.rows[*at].round == self.round);
            lane.next = lane.next.min(first.unwrap_or(lane.next));
        }
    }

    fn replay_begins(&mut self, topic: &str, id: &str, from: u64, to: u64) {
        let text = format!("replay {id} of {:?} to {:?} to {topic}", Hex(from), Hex(to));
        self.note(Event::Chaos(text));
        let is_selected = |state: &&RowState| {
            state.kind == RowOf::Producer && (from..=to).contains(&state.row.commit_lsn)
        };
        let selected: Vec<Row> =
            self.rows.iter().filter(is_selected).map(|state| state.row.clone()).collect();
        let mut replay = TopicReplay { id: id.to_owned(), noted: from, ..TopicReplay::default() };
        for row in selected {
            let index = self.rows.len();
            let row = Row { topic: topic.to_owned(), ..row };
            replay.rows.insert(row.number, index);
            let lane = (!row.key.is_empty()).then(|| {
                let lane = self.lane(topic, &row.key);
                self.lanes[lane].rows.push(index);
                lane
            });
            self.rows.push(RowState {
                is_excused: row.is_unroutable,
                row,
                lane,
                committed_at: Instant::now(),
                stored: 0,
                repeat: Repeat::Forbidden,
                round: 0,
                recorded: None,
                kind: RowOf::Copy,
            });
        }
        self.replays.insert(topic.to_owned(), replay);
    }

    fn replay_noted(&mut self, topic: &str, settled: u64) {
        let Some(replay) = self.replays.get_mut(topic) else { return };
        replay.noted = replay.noted.max(settled);
        let rows = replay.rows.values().map(|index| &self.rows[*index]);
        let early =
            |row: &&RowState| row.row.commit_lsn < settled && row.stored == 0 && !row.is_excused;
        if let Some(number) = rows.filter(early).map(|row| row.row.number).next() {
            let text = format!("{:?} of a replay over row {number}", Hex(settled));
            self.find(Fault::ConfirmedEarly, text);
        }
    }

    /// Records that a process streams a copy of the anchor: rows that are not noted may be
    /// published again.
    pub(super) fn copy_started(&mut self, process: u64) {
        let Some(replay) = self.replay_of(process) else {
            let text = format!("process {process} streams a copy, and does no replay");
            return self.find(Fault::Unknown, text);
        };
        let noted = replay.noted;
        let others = replay.processes.clone();
        let indices: Vec<usize> = replay.rows.values().copied().collect();
        for index in indices {
            let row = &mut self.rows[index];
            if row.stored > 0 && row.row.commit_lsn >= noted {
                row.allow_repeat();
            }
        }
        self.excuse_calls_in_flight(process, |other| others.contains(&other));
    }
}
