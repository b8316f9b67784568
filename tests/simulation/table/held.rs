//! The state of a key that is held for a replay in place.

/// A position through which a key is held. The index may be negative, before the first row.
pub(super) type HoldPosition = (u64, i64);

/// A key that is held, or will be.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Hold {
    /// `None` until the relay has answered.
    pub(super) through: Option<HoldPosition>,
    /// The number of history rows in the table.
    pub(super) added: usize,
}

/// A held key, to which history can be added.
#[derive(Debug, Clone)]
pub(crate) struct HeldKey {
    pub(crate) topic: String,
    pub(crate) key: String,
    pub(crate) through: HoldPosition,
    pub(crate) added: usize,
}
