//! What is known of a key that is held for a replay in place.

/// A position up to which a key is held; the index may be before the first.
pub(super) type Through = (u64, i64);

/// A key that is held, or is to be.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Hold {
    /// None until the relay has answered.
    pub(super) through: Option<Through>,
    /// Rows of the history that are in the table.
    pub(super) added: usize,
}

/// A key of which history can be added.
#[derive(Debug, Clone)]
pub(crate) struct HeldKey {
    pub(crate) topic: String,
    pub(crate) key: String,
    pub(crate) through: Through,
    pub(crate) added: usize,
}
