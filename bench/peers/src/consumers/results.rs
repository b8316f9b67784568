//! The figures of one consumer.

use serde::Serialize;

use crate::consumers::drain::ConsumerDrain;
use crate::consumers::faults::ConsumerFault;
use crate::description::Variant;
use walrelay_bench::failure::Failure;
use walrelay_bench::terminal;

/// One variant of one consumer, as measured.
#[derive(Debug, Serialize)]
pub(crate) struct MeasuredConsumer {
    pub(super) consumer: String,
    pub(super) variant: String,
    pub(super) licence: String,
    pub(super) documentation: Vec<String>,
    pub(super) drains: Vec<ConsumerDrain>,
    pub(super) faults: Vec<ConsumerFault>,
    /// The measurements that failed, each with its reason.
    pub(super) failed: Vec<String>,
}

impl MeasuredConsumer {
    pub(super) fn label(&self) -> String {
        Variant::label(&self.consumer, &self.variant)
    }

    /// Records a measurement that failed.
    pub(super) fn fail(&mut self, measurement: &str, error: &Failure) {
        terminal::complain(&**error);
        self.failed.push(format!("{measurement}: {error}"));
    }
}
