//! The outbox as the server knows it: its tables, their publication, and the slot that is read.

use crate::names::QualifiedName;

/// Which outbox a command is about. Said once in the configuration, and passed on whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox {
    /// The replication slot; also the name of its rows in dispatch state.
    pub slot: String,
    /// The publication the slot is read through.
    pub publication: String,
    /// The tables producers insert into, without repetition.
    pub tables: Vec<QualifiedName>,
}
