//! The decisions of walrelay, without I/O and without a clock: routing, lanes, tracking, back-off.
//!
//! The caller passes in the time and the random seed. Nothing iterates in hash order, so a seed
//! reproduces a run exactly.
//!
//! ```text
//!  insert ─▶ Router ─▶ Message ─▶ Lanes ─▶ Batch ─▶ (publish) ─▶ stored/refused ┬─▶ settled
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
//!   prefix. When nothing is outstanding, it is the highest keepalive position up to which the
//!   publication is known to have published every outbox row. It never exceeds the WAL that this
//!   connection has received. Release builds assert this: stopping only delays rows, confirming too
//!   far loses them.
//! - **I2 Settled** means stored by Pub/Sub (reply received) or committed to dispatch state.
//! - **I3 One outstanding publish per (topic, ordering key)**, and one key per request. Rows
//!   without a key are not restricted. This holds across reconnects of the slot.
//! - **I4 Order per key.** No row of a key is published while an earlier row of that key is neither
//!   stored nor dead. This holds across retries, parking, redelivery, restart and reconnect.
//! - **I5 Status updates never wait.** They flow when Pub/Sub is down, when the pipeline is full,
//!   and inside a transaction of any size.
//! - **I6 One byte budget** covers unsettled rows, reloaded parked rows and outstanding requests.
//!   When the budget is full, the socket is not read.
//! - **I7 Nothing is skipped silently.** A frame or column that cannot be decoded is an error with
//!   its position.
//! - **I8 A row's position** is its `commit_lsn` and its index within the transaction, equal on
//!   every delivery. The LSN in the XLogData header is not a position: rows share it and it goes
//!   backwards.
//! - **I9 The relay creates and drops nothing implicitly.** It uses the objects that `init`
//!   created.
//! - **I10 Retained WAL stays within a budget** for as long as dispatch state can be written,
//!   even in a Pub/Sub outage. The largest outbox transaction and the WAL of recording come on top.
//! - **I11 A write belongs to its history.** Only a session on the server of the replication
//!   session writes dispatch state and the relay's row. Equal system identifier, timeline and
//!   postmaster start time prove that the server is the same.

#![warn(missing_docs)]
#![warn(clippy::iter_over_hash_type)]

mod backoff;
mod failure;
mod failure_code;
mod fault;
mod flow_control;
mod heartbeat;
mod lanes;
pub mod limits;
mod message;
mod publish_health;
mod random;
mod routing;
mod selection;
mod tracker;

pub use backoff::Backoff;
pub use failure::{FailureClass, PublishFailure};
pub use failure_code::{CallCode, FailureCode, UnknownCallCode};
pub use fault::{Fault, RouteError};
pub use flow_control::budget::{Budget, BudgetLimits};
pub use flow_control::heavy_keys::{HeavyKey, HeavyKeys, KEY_BYTES_PER_SECOND_MAX};
pub use flow_control::rate_limit::RateLimit;
pub use flow_control::wal_budget::{Held, SpillMode, WalBudget, WalBudgetLimit, WalRetentionLimit};
pub use flow_control::window::{ConcurrencyLimits, ConcurrencyWindow};
pub use heartbeat::Heartbeat;
pub use lanes::lane::{Batch, Behind, LaneId, Origin, Row};
pub use lanes::outputs::{FailureCause, Finished, LaneOutputs, Outcome, RecordReason, RowToRecord};
pub use lanes::{ClaimAnswer, ClaimKey, LanePolicy, Lanes, OnDead};
pub use limits::{
    ATTRIBUTE_VALUE_BYTES_MAX, REQUEST_BYTES_MAX, REQUEST_MESSAGES_MAX, is_topic_name,
};
pub use message::{Message, NotAMessage, Topic};
pub use publish_health::Delivery;
pub use random::Random;
pub use routing::attribute_columns::{AttributeColumns, AttributeColumnsError};
pub use routing::attributes::{Style as AttributeStyle, SystemIdentifierMode};
pub use routing::columns::{ColumnAliases, ColumnNames, ColumnUse, Field, MissingColumn};
pub use routing::incomplete_message::IncompleteMessage;
pub use routing::limit_violation::{LimitViolation, Part as MessagePart};
pub use routing::router::{EditedMessages, Routed, Router, RouterConfig};
pub use routing::template::{Template, TemplateError};
pub use selection::{ColumnFilter, ReplaySelection};
pub use tracker::{ContinuityProof, Ticket, Tracker, Watermark};
