//! Every decision of walrelay: routing, lanes, tracking, back-off; no I/O and no clock.
//!
//! Time comes in as an argument, randomness too, and nothing iterates in hash order, so a seed
//! replays a run exactly.
//!
//! ```text
//!  insert ─▶ Router ─▶ Message ─▶ Lanes ─▶ Batch ─▶ (publish) ─▶ Lanes::settle ─┬─▶ settled
//!               │                  ▲                                            ├─▶ park
//!               └─ fault ─▶ park   └──────────── rows claimed back ◀────────────┘
//!
//!  Tracker: begin · open ─▶ Ticket · seal · settle(Ticket) · observe ─▶ Watermark
//! ```
//!
//! # Invariants
//!
//! Asserts and tests cite these by number.
//!
//! - **I1 Confirm nothing early.** Only a [`Watermark`], made by [`Tracker`] alone, reaches the
//!   standby status update. It is the `end_lsn` of the last transaction of the contiguous settled
//!   prefix; when nothing at all is outstanding, the highest keepalive, as far as the publication is
//!   known to have published the outbox until then. Never beyond what the connection has received. Asserted in release builds: stopping only delays, confirming too far
//!   destroys.
//! - **I2 Settled** means stored by Pub/Sub (reply received) or committed to dispatch state.
//! - **I3 One publish outstanding per (topic, ordering key)**, and one key per request. Rows
//!   without a key are free. It holds across reconnects of the slot.
//! - **I4 Order per key.** No row of a key is published while an earlier one is neither stored nor
//!   dead: through retries, parking, redelivery, restart and reconnect.
//! - **I5 Status updates wait for nobody.** They flow when Pub/Sub is down, when the pipeline is
//!   full, and inside a transaction of any size.
//! - **I6 One byte budget** for rows read and not settled, parked rows reloaded and requests out.
//!   When it is full the socket is not read.
//! - **I7 Nothing becomes nothing.** What cannot be decoded is an error with its position.
//! - **I8 A row's position** is its `commit_lsn` and index within the transaction, equal on every
//!   delivery. The LSN in the XLogData header is no position: rows share it and it goes backwards.
//! - **I9 Nothing is created or destroyed in passing.** The relay uses what `init` made.
//! - **I10 What we hold back of the log stays within a budget**, for as long as dispatch state can be
//!   written, whatever Pub/Sub does; beside it the largest outbox transaction and what recording writes.
//! - **I11 A write belongs to its history.** Dispatch state and the relay's row are written only in a
//!   session proven to be on the server of the replication session: same system, timeline and start.

#![warn(clippy::iter_over_hash_type)]

mod attributes;
mod backoff;
mod budget;
mod columns;
mod effects;
mod failing_topics;
mod failure;
mod fault;
mod fit;
mod heavy_keys;
mod incomplete;
mod lane;
mod lane_table;
mod lanes;
mod left_out;
pub mod limits;
mod message;
mod pauses;
mod picked;
mod pulse;
mod random;
mod resting_keys;
mod router;
mod selection;
mod template;
mod timestamp;
mod topic_weather;
mod tracker;
mod wal_budget;
mod weather;
mod window;
mod wire;

pub use attributes::{LogName, Style as AttributeStyle};
pub use backoff::Backoff;
pub use budget::{Budget, BudgetLimits};
pub use columns::{ColumnNames, Field, MissingColumn, Names};
pub use effects::{Blame, Effects, Finished, Outcome, Reason, RowToRecord};
pub use failure::{FailureClass, PublishFailure};
pub use fault::{Fault, RouteError};
pub use fit::{Misfit, Part as MessagePart};
pub use heavy_keys::{HOT_KEY_BYTES_PER_SECOND, HeavyKey, HeavyKeys, KEY_BYTES_PER_SECOND_MAX};
pub use incomplete::IncompleteMessage;
pub use lane::{Batch, Behind, LaneId, Origin, Row};
pub use lanes::{ClaimKey, Claimed, LanePolicy, Lanes, OnDead};
pub use limits::{ATTRIBUTE_VALUE_BYTES_MAX, REQUEST_BYTES_MAX, REQUEST_MESSAGES_MAX};
pub use message::{Message, NotAMessage, Topic};
pub use pauses::Pause as WeatherPause;
pub use pulse::Pulse;
pub use random::Random;
pub use router::{EditedMessages, Routed, Router, RouterConfig};
pub use selection::{Matching, Selection};
pub use template::{Template, TemplateError};
pub use tracker::{Evidence, Ticket, Tracker, Watermark};
pub use wal_budget::{Held, Retention, Spill, WalBudget, WalBudgetLimit};
pub use weather::{Change as WeatherChange, Delivery, Weather};
pub use window::{Window, WindowLimits};
