//! The operation that an operator has begun with the slot, and the generation that sessions
//! compare.

use super::reset_state::Reset;
use super::{Source, State, Table};
use crate::bugs::ResetBug;
use crate::judge::Status;

/// A claim on the reset. Releases it when the process ends in any way.
pub(crate) struct Taken {
    table: Table,
    process: u64,
    pub(crate) target: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut state = self.table.state();
        if let Some(reset) = &mut state.reset
            && reset.taken_by == Some(self.process)
        {
            reset.taken_by = None;
        }
    }
}

impl Table {
    /// Records a reset, unless an earlier reset or a replay in place is on record.
    pub(crate) fn begin_reset(&self, target: u64) -> bool {
        let mut state = self.state();
        let is_replaying = state
            .entries
            .values()
            .any(|entry| entry.source == Source::Replay && entry.status == Status::Retrying);
        if state.reset.is_some() || !state.holds.is_empty() || is_replaying {
            return false;
        }
        state.reset = Some(Reset { target, taken_by: None });
        state.generation += 1;
        true
    }

    pub(crate) fn has_reset(&self) -> bool {
        self.state().reset.is_some()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.state().generation
    }

    /// Claims the reset for this process, if there is one. Fails while another process works on it.
    pub(crate) fn take_reset(&self, process: u64) -> Result<Option<Taken>, Elsewhere> {
        let mut state = self.state();
        let Some(reset) = &mut state.reset else { return Ok(None) };
        if reset.taken_by.is_some_and(|other| other != process) {
            return Err(Elsewhere);
        }
        reset.taken_by = Some(process);
        let target = reset.target;
        drop(state);
        Ok(Some(Taken { table: self.clone(), process, target }))
    }

    /// Ends the reset in one step: the slot is a copy of the anchor.
    pub(crate) fn finish_reset(&self, target: u64, bug: Option<ResetBug>) {
        let mut state = self.state();
        if state.reset.take().is_none() {
            return;
        }
        let State { entries, settled, .. } = &mut *state;
        if bug != Some(ResetBug::KeepsWhatWasPublished) {
            entries.retain(|(commit_lsn, ..), entry| {
                *commit_lsn < target || entry.status != Status::Published
            });
        }
        *settled = match bug {
            Some(ResetBug::KeepsWhatIsSettled) => *settled,
            Some(ResetBug::BeginsAtTheAnchor) => self.server.anchor(),
            Some(
                ResetBug::KeepsWhatWasPublished | ResetBug::BeginsAtTheEnd | ResetBug::IsForgotten,
            )
            | None => target,
        };
        self.judge.reset(target);
    }
}

/// Another process works on the operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elsewhere;
