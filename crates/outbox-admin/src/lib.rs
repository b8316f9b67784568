//! The commands of an operator: set-up, preflight check, anchors, resharding, upgrades, retention.
//!
//! | Module | Contents |
//! | --- | --- |
//! | [`lifecycle`] | the server of a relay: preflight check, WAL monitor, anchors of the relay |
//! | [`protocols`] | what an operator's command does step by step, without printing |
//! | [`archive`] | where deleted rows are kept: a directory or a bucket |
//! | [`partitions`] | partitions of the outbox: registered, created ahead, reported |
//! | [`lookahead`] | the rows that a moved slot would skip |

pub mod archive;
mod init;
pub mod lifecycle;
pub mod lookahead;
pub mod maintenance;
pub mod partitions;
mod preflight;
pub mod protocols;
mod resharding;
mod sharding;
mod status_report;
mod table_sizes;

pub use init::{EarlierRows, InitOptions, InitPlan, InitReport, InitStep, SlotCreation, init};
pub use preflight::{
    CheckResult, ColumnRole, ExistingNames, ExpectedColumn, Facts, Finding, FoundTable,
    HEADROOM_BYTES_MIN, LeftoverRecord, PreflightRequest, RelationKind, ReleaseFacts, RoleFacts,
    ServerFacts, ServerHost, ServerMode, TableFacts, TimeWarning, assess, gather, preflight,
};
pub use resharding::{
    ReshardingPhase, ReshardingRefusal, ReshardingStep, ShardSlots, UnfinishedResharding,
    begin_resharding, block_shards, choose_switch, read_resharding, release_shards, switch_shards,
};
pub use sharding::{FoundShards, Sharding, expected_filter, read_sharding};
pub use status_report::{
    CommandOf, ConsumerBacklog, FailingTopic, NextStep, OperationKind, OperationReport,
    RebuildReport, RelayAnswer, ReportError, Severity, StatusReport, StepScope, read_status,
};
pub use table_sizes::{TableSize, read_table_sizes};
