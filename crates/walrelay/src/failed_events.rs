//! Events that were not published, or not applied, at the first attempt.

mod event;
mod page;

pub(crate) use self::event::{EventDetail, EventMessage, FailedEvent, MissingPart, PageBegin};
pub(crate) use self::page::{EventGroup, detail_text, table};
