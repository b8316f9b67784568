//! The operation that an operator has begun with the slot.

/// An unfinished reset.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reset {
    pub(super) target: u64,
    pub(super) taken_by: Option<u64>,
}
