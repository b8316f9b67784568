//! Selects the messages of the next batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::{Intake, IsolatedTurns, Line, Out, State, Turn};
use crate::batch::{Batch, Standing};
use crate::leases::Ticket;
use crate::poison_isolation::IsolationStep;

/// The maximum bytes of messages in a batch. More would make one transaction long, and gain
/// nothing.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Turns that failed alone get one of so many doubtful batches. The other doubtful turns may be
/// healthy. Turns that failed alone still need a share, because some may be due to be stored.
const TRIED_EVERY: u64 = 4;

/// One of the two queues of doubtful turns.
type OfDoubtful = fn(&mut IsolatedTurns) -> &mut VecDeque<Turn>;

impl<M> Intake<M> {
    /// Returns the next batch, if one may start now.
    pub fn next_batch(&mut self, now: Instant) -> Option<Batch<M>> {
        self.wake_rested(now);
        let (tickets, standing) = match self.last {
            Line::Doubtful => self.next_trusted(now).or_else(|| self.next_doubtful(now)),
            Line::Trusted => self.next_doubtful(now).or_else(|| self.next_trusted(now)),
        }?;
        let messages =
            tickets.iter().filter_map(|ticket| Some(Arc::clone(&self.held.get(ticket)?.message)));
        let messages = messages.collect();
        let id = self.next_batch;
        self.next_batch += 1;
        self.batches.insert(id, Out { line: self.last, began: now, tickets });
        Some(Batch { id, messages, standing })
    }

    fn next_trusted(&mut self, now: Instant) -> Option<(Vec<Ticket>, Standing)> {
        let out = self.batches.len() - self.doubtful_out();
        if !self.pace.may_begin(now, out) || self.batches.len() >= self.bounds.workers {
            return None;
        }
        let mut tickets = Vec::new();
        let (mut bytes, most) = (0, self.pace.batch_size());
        while tickets.len() < most && bytes < BATCH_BYTES_MAX {
            let Some(turn) = self.ready.pop_front() else { break };
            match turn {
                Turn::Single(ticket) => bytes += self.take_out(ticket, &mut tickets),
                Turn::Key(key) => bytes += self.take_key(&key, &mut tickets, most, bytes),
            }
        }
        self.last = Line::Trusted;
        (!tickets.is_empty()).then_some((tickets, Standing::Unknown))
    }

    /// Selects doubtful messages. They never get all workers, because one that waits for a lock
    /// blocks its worker for the others.
    fn next_doubtful(&mut self, now: Instant) -> Option<(Vec<Ticket>, Standing)> {
        let workers = if self.pace.is_outage() { 1 } else { self.bounds.workers.div_ceil(2) };
        if self.doubtful_out() >= workers || self.batches.len() >= self.bounds.workers {
            return None;
        }
        let is_others_time = self.doubtful_after.is_some_and(|at| at > now);
        if is_others_time && !self.ready.is_empty() {
            return None;
        }
        self.last = Line::Doubtful;
        self.doubtful.turns += 1;
        let lines: [OfDoubtful; 2] = match self.doubtful.turns.is_multiple_of(TRIED_EVERY) {
            true => [|doubtful| &mut doubtful.tried, |doubtful| &mut doubtful.untried],
            false => [|doubtful| &mut doubtful.untried, |doubtful| &mut doubtful.tried],
        };
        lines.into_iter().find_map(|line| self.next_of(line, now))
    }

    fn next_of(&mut self, line: OfDoubtful, now: Instant) -> Option<(Vec<Ticket>, Standing)> {
        let mut together = Vec::new();
        while together.len() < self.doubts.together()
            && let Some(turn) = line(&mut self.doubtful).front().cloned()
        {
            let first = self.first_of(&turn);
            let Some(first) = first.filter(|first| self.doubts.contains(*first)) else {
                // The lease was lost, and another message is first by now.
                line(&mut self.doubtful).pop_front();
                self.ready.extend(first.map(|_| turn));
                continue;
            };
            let Some(trial) = self.trial(first, now) else { break };
            if trial != IsolationStep::Together && !together.is_empty() {
                break;
            }
            line(&mut self.doubtful).pop_front();
            self.take_first(&turn, &mut together);
            let standing = match trial {
                IsolationStep::Together => continue,
                IsolationStep::Alone => Standing::Doubtful,
                IsolationStep::Last => Standing::ToBeStored,
            };
            return Some((together, standing));
        }
        (!together.is_empty()).then_some((together, Standing::Unknown))
    }

    fn trial(&mut self, first: Ticket, now: Instant) -> Option<IsolationStep> {
        let trial = self.doubts.trial(first, now);
        if trial.is_some() || !self.is_full_of_doubtful() {
            return trial;
        }
        // No healthy message can arrive, and prove the fault.
        self.is_freeing_capacity = self.doubts.store_without_proof(self.bounds.messages, now);
        self.is_freeing_capacity.then_some(IsolationStep::Last)
    }

    fn doubtful_out(&self) -> usize {
        self.batches.values().filter(|out| out.line == Line::Doubtful).count()
    }

    /// Returns whether all held messages are in doubt, and hardly any capacity is left for others.
    fn is_full_of_doubtful(&self) -> bool {
        let is_idle = self.ready.is_empty() && self.batches.is_empty();
        self.is_nearly_full() && is_idle && !self.pace.is_away()
    }

    /// Returns the first message of a turn. `None` if the turn is over.
    fn first_of(&self, turn: &Turn) -> Option<Ticket> {
        match turn {
            Turn::Single(ticket) => self.held.contains_key(ticket).then_some(*ticket),
            Turn::Key(key) => {
                let lane = self.lanes.get(key).filter(|lane| lane.state == State::Ready)?;
                lane.queue.front().copied()
            }
        }
    }

    fn take_first(&mut self, turn: &Turn, tickets: &mut Vec<Ticket>) {
        match turn {
            Turn::Single(ticket) => self.take_out(*ticket, tickets),
            Turn::Key(key) => self.take_key(key, tickets, tickets.len() + 1, 0),
        };
    }

    /// Takes as many messages of a key as the batch has capacity for. Returns their bytes.
    fn take_key(
        &mut self,
        key: &Arc<str>,
        tickets: &mut Vec<Ticket>,
        most: usize,
        before: usize,
    ) -> usize {
        let mut bytes = 0;
        let room = most - tickets.len();
        let Some(lane) = self.lanes.get_mut(key) else { return 0 };
        // A key may be queued twice, after its lease was lost and its message was redelivered.
        if lane.state != State::Ready || lane.queue.is_empty() {
            return 0;
        }
        lane.state = State::Out;
        let mut taken = Vec::new();
        while taken.len() < room && before + bytes < BATCH_BYTES_MAX {
            let Some(ticket) = lane.queue.pop_front() else { break };
            bytes += self.held.get(&ticket).map_or(0, |held| held.bytes);
            taken.push(ticket);
        }
        for ticket in taken {
            self.take_out(ticket, tickets);
        }
        bytes
    }

    fn take_out(&mut self, ticket: Ticket, tickets: &mut Vec<Ticket>) -> usize {
        let Some(held) = self.held.get_mut(&ticket) else { return 0 };
        held.is_out = true;
        tickets.push(ticket);
        held.bytes
    }

    fn wake_rested(&mut self, now: Instant) {
        while self.resting.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.resting.pop_first() else { return };
            self.make_ready(&key);
        }
    }

    /// Queues a key again after its batch or its pause. Removes a key that holds no message.
    pub(super) fn make_ready(&mut self, key: &Arc<str>) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if lane.queue.is_empty() {
            self.lanes.remove(key);
            return;
        }
        lane.state = State::Ready;
        let first = lane.queue.front().copied();
        self.enqueue_turn(Turn::Key(Arc::clone(key)), first);
    }

    pub(super) fn enqueue_turn(&mut self, turn: Turn, first: Option<Ticket>) {
        let line = match first.filter(|first| self.doubts.contains(*first)) {
            Some(first) if self.doubts.was_tried(first) => &mut self.doubtful.tried,
            Some(_) => &mut self.doubtful.untried,
            None => &mut self.ready,
        };
        line.push_back(turn);
    }
}
