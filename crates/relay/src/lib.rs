//! The relay itself: one slot's rows into Pub/Sub, one session after the other.
//!
//! Knows nothing of flags, files or HTTP: whoever runs it hands over [`settings`]. What it owns:
//!
//! | Folder | Holds |
//! | --- | --- |
//! | [`stream`] | the data path of one session: loop, publishes, recorder, recorded rows, and the publisher's seam |
//! | [`lifecycle`] | how sessions begin and follow each other: the gate, opening, the supervisor |
//! | [`recovery`] | a lost slot: what it may not have settled, from the table, before the new slot streams |
//! | [`replay`] | the same loop over a copy of an anchor, into another topic |
//! | [`observe`] | what operators are told: metrics, health, the status report |

pub mod error;
pub mod failpoint;
pub mod lifecycle;
pub mod lookahead;
pub mod observe;
pub mod policy;
pub mod recovery;
pub mod replay;
pub mod seed;
pub mod settings;
pub mod shutdown;
pub mod stream;
