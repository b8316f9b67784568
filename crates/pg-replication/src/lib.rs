//! The replication side of Postgres: the replication socket, slots, publications and the server's identity.
//!
//! ```text
//! ConnectConfig ── ReplicationConnection::connect ─▶ start ─┬─▶ Frames      the reading half
//!                                                          └─▶ Feedback    the writing half
//! ```

mod feedback;
mod frames;
mod publication;
mod receive_buffer;
mod replication;
mod retention;
mod server_identity;
mod slot;
mod slot_error;
mod stream_settings;

pub use feedback::Feedback;
pub use frames::Frames;
pub use publication::{
    Operation, PublicationScope, PublicationState, PublishedTable, drop_publication,
    read_publication,
};
pub use replication::{
    NetworkFeedback, NetworkFrames, ReplicationConnection, Startup, SystemIdentity,
};
pub use retention::{COMMIT_WAIT, RETENTION, read_retention, retention_of};
pub use server_identity::{ServerIdentity, read_server_identity, read_system_identifier};
pub use slot::{
    Failover, PLUGIN, SlotState, SlotType, WalStatus, Writer, advance_slot, check_failover,
    check_slot_name, create_slot, drop_slot, is_little_headroom, read_slot, read_slots,
    read_version,
};
pub use slot_error::SlotError;
pub use stream_settings::{FRAME_BYTES_MAX_DEFAULT, StreamSettings, VALUE_BYTES_MAX_DEFAULT};
