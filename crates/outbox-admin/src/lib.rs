//! Everything that an operator starts: set-up, preflight check, recovery, replay, resharding, upgrades.
//!
//! | Module | Contents |
//! | --- | --- |
//! | [`lifecycle`] | the server of a relay: preflight check, operations on the slot, anchors of the relay |
//! | [`recovery`] | a lost slot: publishes unsettled rows from the table, before the new slot |
//! | [`protocols`] | what an operator's command does step by step, without printing |
//! | [`replay`] | rows published again, from the WAL or the tables, to a topic or in place |
//! | [`lookahead`] | the rows that a moved slot would skip |

mod admin_error;
mod init;
pub mod lifecycle;
pub mod lookahead;
mod lost_slot;
mod operation;
mod outbox_state;
mod pg_upgrade;
mod positions;
mod preflight;
pub mod protocols;
pub mod recovery;
mod recovery_cursor;
pub mod replay;
mod resharding;
pub mod retention;
mod rows;
mod sharding;
mod slot_holder;
mod status_report;
mod unconfirmed;
mod unfinished_replay;

pub use admin_error::{AdminError, LOST_SLOT_FIX, UPGRADE_FIX};
pub use init::{
    EarlierRows, InitOptions, InitPlan, InitReport, InitStep, LostSlotPolicy, SlotCreation, init,
};
pub use lost_slot::{LostSlot, SettledRecord, loss, read_loss, rows_at_risk};
pub use operation::{
    Again, Filling, Reset, Resharding, SettledBound, SlotOperation, SlotRecovery,
    UpgradePreparation, UpgradeStage, begin_backfill, begin_recovery, begin_reset, begin_upgrade,
    finish_recovery, finish_reset, give_up_operation, is_operation_taken, read_operation,
    release_operation, store_slot_snapshot, take_operation, try_decoding,
};
pub use outbox_state::{LeftOutRows, OutboxSlots};
pub use pg_upgrade::{adopt_slot, move_recovery_to_server};
pub use preflight::{
    CheckResult, ColumnRole, ExistingNames, ExpectedColumn, Facts, Finding, FoundTable,
    PreflightRequest, RelationKind, RoleFacts, ServerFacts, ServerHost, ServerMode, TableFacts,
    UpgradeFacts, assess, gather, preflight,
};
pub use recovery_cursor::{RecoveryCursor, note_place, read_recovery_cursor};
pub use resharding::{
    ReshardingPhase, ReshardingRefusal, ReshardingStep, UnfinishedResharding, begin_resharding,
    block_shards, choose_switch, read_resharding, release_shards, switch_shards,
};
pub use rows::encoding::{SQL_ASCII_FIX, SQL_ASCII_RISK, read_unchecked_database};
pub use rows::large_values::ServerEncoding;
pub use rows::source_row::{SourceRow, SourceValue, read_server_text};
pub use rows::unsendable::{TransactionRow, TransactionRows, rows_of_transaction};
pub use rows::unsettled_rows::{
    AggregateKey, RowCursor, Scope, SettledRows, SourceTable, UnsettledRows,
};
pub use sharding::{FoundShards, Sharding, expected_filter, read_sharding};
pub use slot_holder::{
    HolderActivity, SlotUser, describe_slot_blockers, describe_unfinished, end_session,
    read_slot_holder,
};
pub use status_report::{
    ConsumerBacklog, FailingTopic, NextStep, OWN_WAL_BYTES, OperationKind, OperationReport,
    RebuildReport, RelayAnswer, ReportError, Severity, StatusReport, StepScope, read_status,
};
pub use unconfirmed::{UnconfirmedTransaction, count_unsettled_rows, unconfirmed_transactions};
pub use unfinished_replay::{
    OpenReplay, PausingReplay, TopicReplay, open_replay_of_tables, open_topic_replays,
    pausing_replays, replay_that_needs_anchor, replay_to_be_published, unfinished_replay,
};
