//! The front end of `dispatch` and `inbox`: lists, shows, retries, edits and discards events that
//! were not published, or not applied, at the first attempt. Each command is an adapter.

pub(super) mod attributes;
mod bulk;
mod changed;
mod event;
pub(super) mod files;
mod list;
mod page;
mod show;
mod side;

pub(super) use bulk::{BulkAction, EventSelection, act};
pub(super) use changed::{Edited, options_of_edit};
pub(super) use event::{EventDetail, EventMessage, FailedEvent, MissingPart, PageBegin};
pub(super) use list::{EventList, list};
pub(super) use page::EventGroup;
pub(super) use show::show;
pub(super) use side::{EventChange, FailedEvents, PREFIX_MIN, meant, whole_id};
