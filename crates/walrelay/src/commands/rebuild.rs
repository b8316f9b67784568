//! `walrelay consumer rebuild`: rebuilds a read model from the topic or from the outbox.

mod notes;
pub(super) mod reset_key;
mod result;

use std::path::{Path, PathBuf};

use crate::config::{Rebuild, RebuildIntoConfig, Source};
use crate::error::Error;
use walrelay_inbox_admin::{ConsumerRebuild, RebuildSession, SchemaRebuild};
use walrelay_pg_client::{ConnectConfig, SqlClient};
use walrelay_relay::shutdown::Shutdown;

use self::result::RebuildTerminal;
use super::dispatch::edit::read;
use super::shared::operator::Terminal;

/// Runs a rebuild, or cancels one.
///
/// # Errors
///
/// The rebuild refused to begin, ended early, or a file of SQL cannot be read.
pub(super) async fn execute(
    connect: &ConnectConfig,
    client: &mut SqlClient,
    order: &Rebuild,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let operator = &RebuildTerminal::new(Terminal::new(order.options, shutdown), &order.name);
    let session = RebuildSession { connect, operator, stop: shutdown };
    let consumer = &order.name;
    match &order.source {
        Source::Topic(since) => {
            let order = with_reset(order)?;
            Box::pin(session.rebuild_from_topic(client, &order, *since)).await?;
        }
        Source::SideBySide(of) => {
            let of = with_switch(of)?;
            Box::pin(session.rebuild_into_schema(client, consumer, &of)).await?;
        }
        Source::Keys(of) => Box::pin(session.rebuild_keys(client, consumer, of)).await?,
        Source::Cancel => session.cancel_rebuild(client, consumer).await?,
    }
    operator.print_result()
}

/// Reads the SQL that empties the tables.
fn with_reset(order: &Rebuild) -> Result<ConsumerRebuild, Error> {
    let reset_sql = match &order.reset_sql {
        Some(path) => Some(text_of(path, "--reset-sql is a file of SQL")?),
        None => {
            tracing::warn!(
                "without --reset-sql the handler sees every event again on top of what is there"
            );
            None
        }
    };
    Ok(ConsumerRebuild {
        consumer: order.name.clone(),
        reset_sql,
        subscription: order.subscription.clone(),
        endpoint: order.endpoint.clone(),
    })
}

fn text_of(path: &Path, hint: &'static str) -> Result<String, Error> {
    let what = format!("{} is not text", path.display());
    String::from_utf8(read(path)?).map_err(|_| Error::unfit(what, hint))
}

/// Reads the SQL that makes the tables live.
fn with_switch(config: &RebuildIntoConfig) -> Result<SchemaRebuild, Error> {
    let RebuildIntoConfig { rows, handler, schema, switch_sql } = config.clone();
    let text = |path: PathBuf| text_of(&path, "--switch-sql is a file of SQL");
    let switch_sql = switch_sql.map(text).transpose()?;
    Ok(SchemaRebuild { rows, handler, schema, switch_sql })
}
