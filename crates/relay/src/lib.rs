//! The relay: publishes the rows of one slot to Pub/Sub, one session after the other.
//!
//! This crate knows nothing of flags, files or HTTP. The caller passes in [`settings`].
//!
//! | Module | Contents |
//! | --- | --- |
//! | [`stream`] | the data path of one session: event loop, publish calls, dispatch writes |
//! | [`lifecycle`] | the start and the sequence of sessions: preflight check, supervisor |
//! | [`recovery`] | a lost slot: publishes unsettled rows from the table, before the new slot |
//! | [`replay`] | the same event loop over a copy of an anchor, into another topic |
//! | [`observe`] | reports for operators: metrics, health, the status report |

pub mod error;
pub mod failpoint;
pub mod lifecycle;
pub mod lookahead;
pub mod observe;
pub mod recovery;
pub mod replay;
pub mod seed;
pub mod settings;
pub mod shutdown;
pub mod stream;
