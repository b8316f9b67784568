//! Every decision of a consumer, without I/O, clock or task.
//!
//! ```text
//! delivered ──▶ Intake ──▶ batches, one of a key at a time ──▶ applied in the database
//!                 │ ◀───────────────── outcome ────────────────────────┘
//!                 └──▶ acknowledgements in order, renewed leases
//! ```
//!
//! [`Intake`] owns what is held and keeps C2, C3, C7 and C8 of the consumer's contract: acknowledged
//! is only what a known commit covers, a key has one batch out at a time, acknowledgements of a key
//! leave in order, and everything held has its lease renewed. What C1, C4, C5 and C6 promise is kept
//! by the functions in the database.

mod backoff;
mod batch;
mod doubts;
mod failure;
mod intake;
mod leases;
mod pace;

pub use backoff::Backoff;
pub use batch::{Batch, BatchId, Fate, Outcome, Standing};
pub use failure::{Failure, beginnings_of_no_attempt, is_no_attempt, is_of_surroundings};
pub use intake::{Arrival, Bounds, Delivery, Intake};
pub use pace::{PATIENCE, Portion};
