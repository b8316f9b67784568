//! The protocols of commands that change the slot, the shards, the anchors or the server.
//!
//! A protocol reports steps to an [`Operator`], asks it before it changes anything, and ends early
//! when the operator asks to stop. It never prints, and names no command.

mod advance;
mod anchor;
mod conflicts;
mod drain;
mod facts;
mod forget;
mod operator;
mod preconditions;
mod protocol_error;
mod prune;
mod release;
mod reset;
mod reshard;
pub mod routes;
mod set_up;
mod skipped_rows;
mod skipping;
mod slot;
mod table_columns;
mod table_rows;
mod topics;

pub use advance::{Advance, AdvancedSlot, advance};
pub use anchor::{
    AdvancedAnchor, AnchorList, CreatedAnchor, create_anchor, drop_anchor, list_anchors,
    move_anchor,
};
pub use conflicts::{ReplayConflict, Wanted};
pub use facts::refuse_conflicts;
pub use forget::{ForgetOrder, ForgottenAggregates, forget_aggregates};
pub use operator::{AdminSession, Change, DroppedShard, Operator, PrunableTable, Step};
pub use preconditions::{
    Place, every_shard, position_of_time, refuse_other_shards, refuse_unrecorded,
    refuse_without_outbox,
};
pub use protocol_error::ProtocolError;
pub(crate) use prune::PruneRun;
pub use prune::{PruneOrder, PrunedTable, prune};
pub use release::{Released, ReleasedSlot, release};
pub use reset::{ResetOrder, ResetResult, reset};
pub use reshard::{Reshard, ReshardEnd, Resharded, Switch};
pub use set_up::{AnsweredRows, ExistingRows, Unpublished, set_up};
pub use skipped_rows::SkippedRows;
pub use slot::{DroppedSlot, Recovered, drop_checked, recover};
pub use table_columns::{column_of, time_column_of};
pub use table_rows::TableRows;
pub use topics::{CreatedTopics, TopicOrder, TopicResult, create_topics};
