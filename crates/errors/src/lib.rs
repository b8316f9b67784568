//! Error codes, and the reaction to each.
//!
//! Every error that asks a person to act has a [`Code`]. The code decides the reaction: stop with
//! an exit code, wait, or retry ([`Code::action`]). No other place decides it, so that `run`,
//! `check` and every other command agree.
//!
//! This crate contains no text for people. The page docs/reference/errors.md has the cause and the
//! fix of each code, and `walrelay explain CODE` prints them.

#![warn(missing_docs)]

mod action;
mod boxed_error;
mod chain;
mod code;
mod coded;

pub use action::{Action, ErrorContext, Exit};
pub use boxed_error::BoxedError;
pub use chain::{Chain, in_a_line};
pub use code::Code;
pub use coded::Coded;
