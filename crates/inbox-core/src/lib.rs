//! The decisions of a consumer, without I/O, clock or task.
//!
//! ```text
//! delivered ──▶ Intake ──▶ batches, one per key at a time ──▶ applied in the database
//!                 │ ◀───────────────── outcome ────────────────────────┘
//!                 └──▶ acknowledgements in order, renewed leases
//! ```
//!
//! [`Intake`] owns the held messages and keeps C2, C3, C7 and C8 of the consumer's contract:
//!
//! - Only messages that a known commit covers are acknowledged (C2).
//! - A key has one batch in flight at a time (C3).
//! - Acknowledgements of a key leave in order (C7).
//! - Every held message has its lease renewed (C8).
//!
//! The functions in the database keep C1, C4, C5 and C6.

#![warn(missing_docs)]

mod adaptive_concurrency;
mod batch;
mod failure;
mod intake;
mod leases;
mod poison_isolation;
mod version_gaps;

pub use adaptive_concurrency::{AdaptiveBatchSize, PATIENCE};
pub use batch::{Batch, BatchId, Fate, Outcome, Standing};
pub use failure::{Failure, is_of_surroundings, is_uncounted_failure, uncounted_code_prefixes};
pub use intake::{Delivery, DeliveryKind, Intake, IntakeLimits};
pub use version_gaps::VersionGaps;
