//! The steps of protocols, and the changes that a user agrees to.

pub(crate) mod protocol;
pub(crate) mod rebuild;
