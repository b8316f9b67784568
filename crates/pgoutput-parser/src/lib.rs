//! A decoder of Postgres logical replication: frames and pgoutput messages, without I/O.
//!
//! The crate turns bytes into borrowed values. It has no socket, task or clock, and allocates nothing
//! per row. It works under any runtime, in a test, or over a file of captured bytes.
//!
//! Postgres wraps every change twice. [`Frame`] parses the outer layer, [`Decoder`] the inner one:
//!
//! ```text
//! CopyData payload, after START_REPLICATION ... LOGICAL
//! ┌─────┬───────────┬─────────┬─────────┬────────────────────────────────────────────┐
//! │ 'w' │ wal_start │ wal_end │ sent_at │ data: one pgoutput message                 │  XLogData
//! └─────┴───────────┴─────────┴─────────┴────────────────────────────────────────────┘
//! ┌─────┬─────────┬─────────┬─────────────────┐        │
//! │ 'k' │ wal_end │ sent_at │ reply_requested │        │                               Keepalive
//! └─────┴─────────┴─────────┴─────────────────┘        ▼
//!                               ┌─────┬──────────────────────────────┐
//!                               │ tag │ fields, see `message`        │
//!                               └─────┴──────────────────────────────┘
//!  B ─ (O | R | Y | M)* ─ (I | U | D | T | R | Y | M)* ─ C      one transaction, proto_version 1
//! ```
//!
//! The client sends a [`StandbyStatusUpdate`] in the other direction.
//!
//! A frame that is too large to keep goes through a [`Condenser`] first, part by part.
//!
//! The decoder never skips bytes. Bytes that cannot be decoded are a [`DecodeError`] with the message,
//! the byte offset, the expected bytes and the bytes found. No input makes this crate panic or exceed
//! [`limits`].
//!
//! ```
//! use pgoutput_parser::{Change, Column, Decoder, Frame};
//!
//! # fn next_copy_data() -> Vec<u8> {
//! #     use pgoutput_parser::{Begin, Lsn, PgTimestamp, XLogData, encode};
//! #     let sent_at = PgTimestamp::from_micros(0);
//! #     let data = encode::begin(&Begin { final_lsn: Lsn::new(9), commit_timestamp: sent_at, xid: 1 });
//! #     encode::xlog_data(&XLogData { wal_start: Lsn::new(9), wal_end: Lsn::new(9), sent_at, data: &data })
//! # }
//! # fn main() -> Result<(), pgoutput_parser::DecodeError> {
//! // One decoder per connection: it knows the relations the server has described on it.
//! let mut decoder = Decoder::new();
//! let copy_data = next_copy_data();
//! match Frame::parse(&copy_data)? {
//!     Frame::Keepalive(keepalive) => {
//!         // None inside a transaction: then its position must not be confirmed.
//!         let _boundary = decoder.boundary(&keepalive);
//!     }
//!     Frame::XLogData(frame) => match decoder.decode(frame.data)? {
//!         Change::Insert(insert) => {
//!             for (column, value) in insert.relation.columns.iter().zip(insert.tuple.columns()) {
//!                 if let Column::Text(text) = value {
//!                     println!("{} {}: {} bytes", insert.position, column.name, text.len());
//!                 }
//!             }
//!         }
//!         Change::Commit(commit) => println!("may be confirmed: {}", commit.boundary().lsn()),
//!         other => println!("{other:?}"),
//!     },
//! }
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::string_slice,
    clippy::panic,
    clippy::expect_used
)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod condense;
mod cursor;
mod decoder;
pub mod encode;
mod error;
mod frame;
pub mod limits;
mod lsn;
mod message;
mod relations;
mod time;
mod tuple;

pub use condense::{CondenseLimits, Condenser};
pub use decoder::{Change, Decoder};
pub use error::{DecodeError, MessageKind};
pub use frame::{Frame, Keepalive, StandbyStatusUpdate, XLogData};
pub use lsn::{Boundary, Lsn, ParseLsnError, Position};
pub use message::{
    Begin, Commit, Delete, Insert, LogicalMessage, OldTuple, Origin, Truncate, TruncateOptions,
    Type, Update,
};
pub use relations::{Generation, Relation, RelationColumn, ReplicaIdentity};
pub use time::PgTimestamp;
pub use tuple::{Column, Columns, Tuple};
