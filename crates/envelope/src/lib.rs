//! The metadata of a message: attribute names, and positions with their text form.
//!
//! The router writes the metadata and consumers read it. Both use this crate, so they cannot
//! disagree. The crate has no dependencies, so a consumer does not depend on the relay.

pub mod attribute;
mod position;

pub use position::{Lsn, ParseLsnError, ParsePositionError, Position};
