//! The fix of an error, with the names of the case.

pub(crate) mod names;
pub mod protocol;
pub(crate) mod rebuild;
pub mod relay;
