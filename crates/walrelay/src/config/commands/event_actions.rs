//! The actions of `dispatch` and `inbox`: plain data.

use pgoutput_parser::Position;

use crate::options::choices::{ChangeOptions, OutputFormat};

/// An action on failed events, of `dispatch` and `inbox`.
#[derive(Debug, Clone)]
pub(crate) enum EventAction<Q, E> {
    /// Print events.
    List(EventList<Q>),
    /// Print one event, decoded.
    Show {
        /// Event id.
        id: String,
        /// Output format.
        format: OutputFormat,
    },
    /// Make events due at once.
    Retry(EventSelection<Q>),
    /// Replace parts of a message.
    Edit {
        /// The changes.
        edit: E,
        /// Consent and output.
        options: ChangeOptions,
    },
    /// Discard events for good.
    Discard {
        /// The events.
        chosen: EventSelection<Q>,
        /// The reason, which the table keeps.
        reason: String,
    },
}

/// The events to print, and the output format.
#[derive(Debug, Clone)]
pub(crate) struct EventList<Q> {
    /// Filters.
    pub query: Q,
    /// Only events after this position.
    pub after: Option<Position>,
    /// Most events to print. None prints all.
    pub limit: Option<u32>,
    /// Output format.
    pub format: OutputFormat,
}

/// The events to act on.
#[derive(Debug, Clone)]
pub(crate) struct EventSelection<Q> {
    /// Which events.
    pub events: SelectedEvents<Q>,
    /// Consent and output.
    pub options: ChangeOptions,
}

/// Events by ids or by filters.
#[derive(Debug, Clone)]
pub(crate) enum SelectedEvents<Q> {
    /// Events with these ids.
    Ids(Vec<String>),
    /// Events that match filters.
    Matching(Q),
}
