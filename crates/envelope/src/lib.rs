//! What travels beside a payload: attribute names, and positions with their text form.
//!
//! The router writes these, a consumer reads them; both use this crate, so they cannot disagree.
//! It depends on nothing, so that reading a message brings nothing of the relay along.

pub mod attribute;
mod position;

pub use position::{Lsn, ParseLsnError, ParsePositionError, Position};
