//! Is this database set up for the relay? All findings at once, each with its fix.
//!
//! [`gather`] asks the server a few read-only questions; [`assess`] turns the answers into findings
//! and touches nothing. The caller maps codes to exit codes; a code never changes its meaning.

mod assess;
mod facts;
mod finding;
mod gather;
mod request;
mod resemble;
mod shards;
mod tables;
#[cfg(test)]
mod tests;

use tokio_postgres::Client;

use crate::admin_error::AdminError;

pub use assess::assess;
pub use facts::{
    Facts, FoundTable, Neighbours, RelationKind, RoleFacts, ServerFacts, ServerHost, ServerMode,
    TableFacts, UpgradeFacts,
};
pub use finding::{Finding, Severity, code};
pub use gather::gather;
pub use request::{ColumnRole, ExpectedColumn, PreflightRequest};

/// Gathers and assesses.
///
/// # Errors
///
/// The server refused a question, or the connection ended.
pub async fn preflight(
    client: &Client,
    request: &PreflightRequest,
) -> Result<Vec<Finding>, AdminError> {
    Ok(assess(request, &gather(client, request).await?))
}
