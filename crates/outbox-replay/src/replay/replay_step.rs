//! The steps of a replay, for display.

use pgoutput_parser::Lsn;

use super::record::ReplayJob;
use super::replay_error::ReplayError;
use super::replay_progress::Tally;
use crate::operator::StepSink;

pub type ReplaySteps<'a> = dyn for<'s> StepSink<ReplayStep<'s>> + Sync + 'a;

pub(super) fn report(steps: &ReplaySteps<'_>, step: &ReplayStep<'_>) -> Result<(), ReplayError> {
    steps.report(step).map_err(ReplayError::Operator)
}

#[derive(Debug)]
pub enum ReplayStep<'a> {
    /// The replay is on record, or a dry run starts to count its rows.
    Begins(&'a ReplayJob),
    Resumes(&'a ReplayJob),
    /// Rows are being read. Sent several times a second.
    Reads(ReadProgress<'a>),
    /// No more rows are read.
    ReadsNoMore(ReadProgress<'a>),
    /// The pauses of the keys are requested.
    RequestsPauses {
        job: &'a ReplayJob,
        keys: usize,
    },
    /// The replay waits for the relay.
    Waits(ReplayWait<'a>),
    /// The history is in dispatch state, and the keys continue.
    LiftsPauses(&'a ReplayJob),
}

/// The progress of a pass over the rows.
#[derive(Debug)]
pub struct ReadProgress<'a> {
    pub start: Lsn,
    pub goal: Lsn,
    pub tally: &'a Tally,
}

/// A wait of a replay in place for the relay.
#[derive(Debug, Clone, Copy)]
pub struct ReplayWait<'a> {
    pub id: &'a str,
    pub slot: &'a str,
    pub work: RelayWork,
    /// Server process of the relay that streams the slot, if there is one.
    pub relay: Option<i32>,
}

/// The work that a replay in place waits for.
#[derive(Debug, Clone, Copy)]
pub enum RelayWork {
    /// Keys to pause.
    PauseKeys(u64),
    /// Bytes of WAL to read.
    ReadBytes(u64),
    /// Rows to publish.
    PublishRows(u64),
}
