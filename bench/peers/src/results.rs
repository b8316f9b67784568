//! All figures of a comparison.

use serde::Serialize;

use crate::consumers::results::MeasuredConsumer;
use crate::description::Variant;
use crate::drain::DrainFigures;
use crate::faults::FaultFigures;
use crate::live::LiveFigures;
use walrelay_bench::machine::Machine;
use walrelay_bench::size::Size;

/// A run is marked when other programs used more than this share of the processors.
pub(super) const FOREIGN_SHARE_MAX: f64 = 0.05;

/// All figures of one run.
#[derive(Debug, Serialize)]
pub(super) struct PeersResults {
    pub(super) machine: Machine,
    pub(super) size: Size,
    pub(super) note: Option<String>,
    /// The share of the processors, from 0 to 1, that other programs used during the run.
    pub(super) foreign_share: f64,
    pub(super) reply_millis: u64,
    pub(super) measured: Vec<Measured>,
    pub(super) skipped: Vec<Skipped>,
    pub(super) consumers: Vec<MeasuredConsumer>,
}

/// One variant of one peer, as measured.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) peer: String,
    pub(super) variant: String,
    pub(super) licence: String,
    pub(super) documentation: Vec<String>,
    pub(super) note: Option<String>,
    pub(super) installation_mebibytes: f64,
    pub(super) drains: Vec<DrainFigures>,
    pub(super) lives: Vec<LiveFigures>,
    /// Empty for the variants that are not the peer's last: faults are injected only once.
    pub(super) faults: Vec<FaultFigures>,
    /// The measurements that failed, each with its reason.
    pub(super) failed: Vec<String>,
}

impl Measured {
    pub(super) fn label(&self) -> String {
        Variant::label(&self.peer, &self.variant)
    }
}

/// A peer that could not be measured.
#[derive(Debug, Serialize)]
pub(super) struct Skipped {
    pub(super) peer: String,
    pub(super) reason: String,
}
