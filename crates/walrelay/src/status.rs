//! The status report: the headline and the next step first, then the slot, its WAL and dispatch
//! state.

mod anchors;
mod consumers;
mod sections;
mod stall_cause;
mod summary;

pub(crate) use self::sections::{report_text, sections};
pub(crate) use self::stall_cause::recorded_stop;
pub(crate) use self::summary::{Summary, finishing_step, tone_of};
