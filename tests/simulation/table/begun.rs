//! What an operator has begun with the slot.

/// A reset that is not finished.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reset {
    pub(super) target: u64,
    pub(super) taken_by: Option<u64>,
}
