//! The tables of the outbox: dispatch state, the relay's own row, shards and migrations.

mod anchor;
mod definition;
mod dispatch;
mod migrations;
mod outbox;
mod publication_watch;
mod relay_condition;
mod relay_row;
mod session_store;
mod shard;
mod slot_figures;
mod store;
mod store_error;
mod unstreamed;
mod wal_time;

pub use anchor::{
    Anchor, AnchorStatus, CopyLifetime, SlotCapacity, advance_anchor, anchor_of, anchor_slot,
    copy_slot, find_anchor, read_anchor, read_anchor_states, read_anchors,
    read_recorded_system_identifier, read_slot_capacity,
};
pub use definition::{Definition, free_slot, read_definition, read_definitions};
pub use dispatch::{
    Claim, ClaimLimits, ClaimedRow, DISPATCH_CHANNEL, DispatchCounts, DispatchDetail,
    DispatchFilter, DispatchQuery, DispatchRow, DispatchStatus, DispatchStore, DueKeys, Head,
    HeldKey, History, HistoryRow, HistorySource, IncrementalCount, Key, KeyPauseCounts,
    NewDestination, OperatorFailure, PageStart, ParkRow, ParkStatus, ParkedKey, RecordedPage,
    RecordedRow, ReplayedRows, RetrySelection, RetryingReasons, StateFilter,
};
pub use migrations::{
    DEFINITION_TABLE, Migration, RELAY_TABLES, REPLAY_TABLES, UNLOGGED, migrate, migrations,
    relay_tables,
};
pub use outbox::{Outbox, read_table_ids};
pub use publication_watch::{
    PublicationCheck, PublicationWatch, read_publication_gap, read_recorded_row_filters,
};
pub use relay_condition::{Condition, Reason, ReasonKind, StoredCondition};
pub use relay_row::{
    Horizon, PublishedRows, RelayRow, RelayRowOwner, RelayRowWritten, SLOT_WITH_OLDEST,
    advance_relay_row, delete_relay_row, is_same_origin, note_wait, read_horizon,
    read_last_skipped, read_relay_row, read_wal_end, record_skipped, slots_with_operations,
    take_relay_row,
};
pub use session_store::SessionStore;
pub use shard::{KeyPiece, ParseShardError, Shard, ShardKey};
pub use slot_figures::read_survey;
pub use store::{DUE_KEYS_MAX, Due, HEADS_MAX, HOLDS_MAX, SlotFigures, Store, StoreFailure};
pub use store_error::{StoreError, grant_on};
pub use unstreamed::{UNSTREAMED_SQL, Unstreamed, UnstreamedKind};
pub use wal_time::{WalTime, first_position_after, first_time_at, note_wal_time, position_at};
