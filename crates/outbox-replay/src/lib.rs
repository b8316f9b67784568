//! Rows that are published again, and the operations on record that lead to it.
//!
//! | Module | Contents |
//! | --- | --- |
//! | [`recovery`] | a lost slot: publishes unsettled rows from the table, before the new slot |
//! | [`replay`] | rows published again, from the WAL or the tables, to a topic or in place |
//! | [`operator`] | the traits that receive the steps of a protocol, and answer its questions |
//! | [`operation_resumer`] | finishes an operation on the slot, however far an earlier process came |

mod admin_error;
mod lost_slot;
mod operation;
pub mod operation_resumer;
pub mod operator;
mod outbox_state;
mod pg_upgrade;
mod positions;
pub mod recovery;
mod recovery_cursor;
mod relay_connection;
mod release;
pub mod replay;
mod rows;
mod slot_holder;
mod unconfirmed;
mod unfinished_replay;

pub use admin_error::{AdminError, describe_shards};
pub use lost_slot::{
    LostSlot, SettledRecord, existing_slot, loss, named_definition, read_loss, read_loss_with_wal,
    read_settled, refuse_lost, refuse_other_outbox, refuse_other_slot, rows_at_risk,
};
pub use operation::{
    Again, Reset, Resharding, SettledBound, SlotOperation, SlotRecovery, SlotSnapshot,
    begin_backfill, begin_recovery, begin_reset, cancel_operation, extend_recovery, finish_part,
    finish_recovery, finish_reset, is_operation_taken, read_operation, release_operation,
    store_slot_snapshot, take_operation, try_decoding,
};
pub use outbox_state::{LeftOutRows, OutboxSlots, TopicRows};
pub use pg_upgrade::move_recovery_to_server;
pub use recovery_cursor::{RecoveryCursor, note_place, read_recovery_cursor};
pub use relay_connection::{lease_of, open_replication};
pub use release::{ReleaseStage, SlotRelease, begin_release};
pub use rows::encoding::{
    SQL_ASCII_FIX, SQL_ASCII_RISK, UNCHECKED_ENCODING, read_unchecked_database,
};
pub use rows::large_values::ServerEncoding;
pub use rows::row_filter::read_row_filter;
pub use rows::source_row::{SourceRow, SourceValue, read_server_text};
pub use rows::unsendable::{TransactionRow, TransactionRows, rows_of_transaction};
pub use rows::unsettled_rows::{
    AggregateKey, RowCursor, Scope, SettledRows, SourceTable, UnsettledRows,
};
pub use slot_holder::{
    HolderActivity, SlotUser, describe_slot_blockers, describe_unfinished, end_session,
    read_slot_holder,
};
pub use unconfirmed::{UnconfirmedTransaction, count_unsettled_rows, unconfirmed_transactions};
pub use unfinished_replay::{
    AnchorReads, PausingReplay, ReplayReads, TopicReplay, UnfinishedReplay, unfinished_replays,
    visible_replays,
};
