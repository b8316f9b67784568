//! Shows one event.

use walrelay_pg_client::SqlClient;

use super::page::detail_text;
use super::side::{FailedEvents, whole_id};
use crate::config::OutputFormat;
use crate::error::Error;
use crate::output::json::json_text;

pub(in crate::commands) async fn show<S: FailedEvents>(
    side: &S,
    client: &SqlClient,
    id: &str,
    format: OutputFormat,
) -> Result<String, Error> {
    let id = whole_id(side, client, id).await?;
    let detail = side.show(client, &id).await?;
    match format {
        OutputFormat::Json => json_text(&detail),
        OutputFormat::Text => Ok(detail_text(&detail)),
    }
}
