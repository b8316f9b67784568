//! The status report: the headline and the next step first, then the slot, its WAL and dispatch
//! state.

mod anchors;
mod consumers;
mod sections;
mod stall_cause;
mod summary;

pub use self::sections::{report_text, sections};
pub use self::stall_cause::{Cause, recorded_stop};
pub use self::summary::{Summary, finishing_step, tone_of};
