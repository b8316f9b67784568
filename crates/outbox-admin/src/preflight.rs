//! Checks that the database is set up for the relay. Reports all findings at once, each with its
//! fix.
//!
//! [`gather`] reads facts from the server. [`assess`] converts the facts into findings without I/O.
//! The code of a finding decides the exit code.

mod assess;
mod facts;
mod finding;
mod gather;
mod limits;
mod request;
mod shards;
mod similar_names;
mod tables;
#[cfg(test)]
mod tests;

use tokio_postgres::Client;

use walrelay_outbox_replay::AdminError;

pub use assess::{HEADROOM_BYTES_MIN, assess};
pub use facts::{
    ExistingNames, Facts, FoundTable, LeftoverRecord, RelationKind, ReleaseFacts, RoleFacts,
    ServerFacts, ServerHost, ServerMode, TableFacts,
};
pub use finding::{CheckResult, Finding};
pub use gather::gather;
pub(crate) use gather::time_warnings;
pub use request::{ColumnRole, ExpectedColumn, PreflightRequest};
pub use tables::TimeWarning;

pub async fn preflight(
    client: &Client,
    request: &PreflightRequest,
) -> Result<Vec<Finding>, AdminError> {
    Ok(assess(request, &gather(client, request).await?))
}
