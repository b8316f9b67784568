//! The steps of protocols, and the changes that a user agrees to.

pub mod protocol;
pub mod rebuild;
