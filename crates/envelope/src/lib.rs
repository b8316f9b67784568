//! The metadata of a message: attribute names, positions with their text form, and the filter of a
//! subscription, which selects messages by their attributes.
//!
//! The router writes the metadata and consumers read it. Both use this crate, so they cannot
//! disagree. The crate has no dependencies, so a consumer does not depend on the relay.

#![warn(missing_docs)]

pub mod attribute;
mod filter;
mod position;

pub use filter::{ParseFilterError, SubscriptionFilter};
pub use position::{Lsn, ParseLsnError, ParsePositionError, Position};
