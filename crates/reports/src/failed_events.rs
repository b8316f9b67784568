//! Events that were not published, or not applied, at the first attempt.

mod event;
mod page;

pub use self::event::{EventDetail, EventMessage, FailedEvent, MissingPart, PageBegin};
pub use self::page::{EventGroup, detail_text, table};
