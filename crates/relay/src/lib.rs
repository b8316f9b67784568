//! The relay: publishes the rows of one slot to Pub/Sub, one session after the other.
//!
//! This crate knows nothing of flags, files or HTTP. The caller passes in [`settings`].
//!
//! | Module | Contents |
//! | --- | --- |
//! | [`stream`] | the data path of one session: event loop, publish calls, dispatch writes |
//! | [`lifecycle`] | the start and the sequence of sessions: preflight check, supervisor |
//! | [`observe`] | reports for operators: metrics, health, the status report |

pub mod error;
pub mod failpoint;
pub mod lifecycle;
pub mod observe;
pub mod seed;
pub mod settings;
pub mod shutdown;
pub mod stream;
