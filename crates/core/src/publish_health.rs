//! Detectors of outages and of failing topics, from the results of publish calls.

pub(super) mod failing_topics;
pub(super) mod heartbeat;
pub(super) mod outage_detector;
pub(super) mod success_intervals;
pub(super) mod topic_outage_detector;
