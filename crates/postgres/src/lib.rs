//! The Postgres side of walrelay: replication connection, slot, preflight checks, dispatch state.
//!
//! ```text
//! ConnectConfig ─┬─ connect_sql ───────────────────▶ SqlClient              ordinary SQL
//!                └─ ReplicationConnection::connect ─▶ start ─┬─▶ Frames      the reading half
//!                                                            └─▶ Feedback    the writing half
//! ```

mod anchor;
mod blocked;
mod carried_over;
mod condition;
mod connect;
mod conninfo;
mod dispatch;
mod encoding;
mod error;
mod feedback;
mod filling_place;
mod frames;
mod gap;
mod gap_row;
mod hidden;
mod holder;
mod incoming;
mod init;
mod large_values;
mod lost;
mod migrations;
mod names;
mod open_replay;
mod operation;
mod outbox;
mod preflight;
mod publication;
mod relay_row;
mod replay_row;
mod replication;
mod report;
mod resharding;
mod retention;
mod secret;
mod server_identity;
mod session_lock;
mod session_store;
mod shard;
mod sharding;
mod slot;
mod store;
mod store_error;
mod stream;
mod stream_settings;
mod tls;
mod unsendable;
mod waiting;
mod wal_time;
mod watch;

pub use anchor::{
    Anchor, AnchorState, SlotLife, SlotRoom, advance_anchor, anchor_slot, copy_slot, find_anchor,
    read_anchor, read_anchor_states, read_anchors, read_history, read_slot_room,
};
pub use blocked::{Blockers, backend_pid, blockers, cancel_statement};
pub use carried_over::{adopt_slot, take_recovery_along};
pub use condition::{Condition, NotedCondition};
pub use connect::{SqlClient, connect_sql};
pub use conninfo::{CONNECT_TIMEOUT_DEFAULT, ConnectConfig, ConninfoProblem, PgEnv};
pub use dispatch::{
    Claim, ClaimLimits, ClaimedRow, Counting, DISPATCH_CHANNEL, DispatchCounts, DispatchDetail,
    DispatchFilter, DispatchPlace, DispatchQuery, DispatchRoute, DispatchRow, DispatchState,
    DispatchStatus, DispatchStore, DispatchWaiting, DueKeys, Head, HeldKey, History, HistorySource,
    Key, OutboxSlots, ParkRow, ParkStatus, ParkedKey, RecordedPage, RecordedRow, Refused,
    ReplayHolds, ReplayedRows, RetrySelection,
};
pub use encoding::{SQL_ASCII_FIX, SQL_ASCII_RISK, read_unchecked_database};
pub use error::{PgError, ServerError, ServerErrorKind, TlsError};
pub use feedback::Feedback;
pub use filling_place::{FillingPlace, note_place, read_place};
pub use frames::Frames;
pub use gap::{AggregateKey, Gap, GapColumn, GapTable, RowPlace, Scope, SettledRows, read_columns};
pub use gap_row::{GapRow, GapValue, read_server_text};
pub use hidden::{RowUse, inbox_tables, refuse_hidden_rows, relay_tables};
pub use holder::{
    SlotUse, SlotUser, describe_unfinished, end_session, new_slot_waits_for, read_slot_user,
};
pub use init::{InitOptions, InitPlan, InitReport, InitStep, Making, OnLost, init};
pub use large_values::ServerText;
pub use lost::{LostSlot, Settled, loss, read_loss, rows_at_risk};
pub use migrations::{
    INBOX_TABLES, Migration, RELAY_TABLES, inbox_migrations, migrate, migrate_inbox, migrations,
};
pub use names::{ParseNameError, QualifiedName, quote_identifier, quote_literal};
pub use open_replay::{
    HoldingReplay, OpenReplay, TopicReplay, open_topic_replays, replay_that_needs,
    replay_to_be_published, replays_that_hold, unfinished_replay,
};
pub use operation::{
    Again, Bound, Filling, Recovery, Reset, Resharding, SlotOperation, Upgrade, UpgradeStage,
    begin_backfill, begin_recovery, begin_reset, begin_upgrade, finish_recovery, finish_reset,
    give_up_operation, is_operation_taken, note_filling, read_operation, release_operation,
    take_operation, try_decoding,
};
pub use outbox::Outbox;
pub use preflight::{
    ColumnRole, ExpectedColumn, Facts, Finding, FoundTable, Neighbours, PreflightRequest,
    RelationKind, RoleFacts, ServerFacts, ServerHost, ServerMode, Severity, TableFacts,
    UpgradeFacts, assess, code, gather, preflight,
};
pub use publication::{
    Operation, PublicationScope, PublicationState, PublishedTable, drop_publication,
    read_publication,
};
pub use relay_row::{
    Horizon, OwnRow, RelayRow, Written, advance_relay_row, delete_relay_row, is_same_origin,
    read_horizon, read_relay_row, read_wal_end, recovering_slot, take_relay_row,
};
pub use replay_row::{
    ReplayEnd, ReplayRow, advance_replay, begin_replay, finish_replay, give_up_replay,
    note_resumption, note_skip_dead, read_replay, take_replay,
};
pub use replication::{
    NetworkFeedback, NetworkFrames, ReplicationConnection, Startup, SystemIdentity,
};
pub use report::read_survey;
pub use resharding::{
    Begun, ReshardingPhase, ReshardingRefusal, ReshardingStep, begin_resharding, choose_switch,
    hold_shards, read_resharding, release_shards, switch_shards,
};
pub use retention::{RETENTION, read_retention, retention_of};
pub use secret::Secret;
pub use server_identity::{ServerIdentity, read_server_identity};
pub use session_store::SessionStore;
pub use shard::{KeyPiece, ParseShardError, Shard, ShardKey};
pub use sharding::{FoundShards, Sharding, expected_filter, read_sharding};
pub use slot::{
    Failover, PLUGIN, SlotState, SlotType, WalStatus, Writer, advance_slot, create_slot, drop_slot,
    is_little_room, read_slot, read_version,
};
pub use store::{
    DUE_KEYS_MAX, Due, HEADS_MAX, HOLDS_MAX, NEXT_STEP, Store, StoreFailure, Survey, TABLE_REASON,
};
pub use store_error::{LOST_SLOT_FIX, StoreError, UPGRADE_FIX, grant_on};
pub use stream::Stream;
pub use stream_settings::{FRAME_BYTES_MAX_DEFAULT, StreamSettings, VALUE_BYTES_MAX_DEFAULT};
pub use unsendable::{TransactionRow, TransactionRows, rows_of_transaction};
pub use waiting::{WaitingTransaction, rows_since, waiting_transactions};
pub use wal_time::{WalTime, first_position_after, first_time_behind, note_wal_time, position_at};
pub use watch::{PublicationWatch, Watch};
