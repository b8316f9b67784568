//! `walrelay consumer prune`.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use walrelay_inbox::{
    InboxError, PUBSUB_RETENTION_DEFAULT, RETENTION_MARGIN, redelivery_window_with_dead_letters,
};
use walrelay_inbox_admin::admin;
use walrelay_inbox_admin::prunable_rows::prunable_rows;
use walrelay_pg_client::{ConnectConfig, SqlClient};
use walrelay_pubsub::{Endpoint, Subscriber};
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::cancellable::run_until_shutdown;
use crate::commands::shared::operator::Terminal;
use crate::commands::shared::session::in_shared_session;
use crate::config::{ChangeMode, Checks};
use crate::error::Error;
use crate::options::values::{consumer_name, duration};
use crate::options::{
    ConnectionOptions, {ARGUMENTS, ChangeArgs, EndpointOptions},
};
use crate::output::print_result;
use crate::plan::Plan;

/// Delete rows of the inbox that are finished and old.
///
/// Refuses an age within which Pub/Sub may deliver the event again: it would be applied twice.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay consumer prune billing --older-than 40d"
)]
pub(crate) struct Prune {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    name: String,
    /// Age a row must have to be deleted, such as 30d; 1s to 3650d.
    #[arg(long, value_name = "DURATION", required = true, value_parser = duration("1s", "3650d"))]
    older_than: Duration,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    endpoint: EndpointOptions,
}

impl Prune {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let endpoint = checks.endpoint(&self.endpoint);
        let connect = checks.connect(&self.connection)?;
        Some(Plan::new(async move |shutdown| self.run(&connect, &endpoint, shutdown).await))
    }

    async fn run(
        &self,
        connect: &ConnectConfig,
        endpoint: &Endpoint,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        in_shared_session(connect, shutdown, async |client| {
            let work = self.prune(client, endpoint, shutdown);
            Box::pin(run_until_shutdown(work, shutdown)).await
        })
        .await
    }

    async fn prune(
        &self,
        client: &SqlClient,
        endpoint: &Endpoint,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let (name, older_than, options) = (&self.name, self.older_than, self.change.options());
        let subscription = admin::subscription(client, name).await.map_err(Error::Inbox)?;
        let least = kept_for(endpoint, &subscription).await? + RETENTION_MARGIN;
        if older_than < least {
            let short = InboxError::RetentionTooShort { subscription, older_than, least };
            return Err(Error::Inbox(short));
        }
        if options.mode != ChangeMode::Agreed {
            let rows = prunable_rows(client, name, older_than).await.map_err(Error::Inbox)?;
            let what = format!("delete {rows} row(s) of the inbox of {name}");
            if !Terminal::new(options, shutdown).ask(what).await? {
                return Ok(());
            }
        }
        let deleted = admin::prune(client, name, older_than).await.map_err(Error::Inbox)?;
        let result = PrunedInboxJson { consumer: name, rows: deleted };
        print_result(options.format, &result, || format!("{deleted} row(s) deleted\n"))
    }
}

#[derive(Debug, Serialize)]
struct PrunedInboxJson<'a> {
    consumer: &'a str,
    rows: u64,
}

/// Returns how long subscription, topic and dead-letter subscription retain messages, acknowledged
/// messages included.
async fn kept_for(endpoint: &Endpoint, subscription: &str) -> Result<Duration, Error> {
    let subscriber = Subscriber::connect(endpoint)?;
    let Some(found) = subscriber.subscription(subscription).await? else {
        // A deleted subscription retains no messages. But it may be created again, and its topic
        // may retain more.
        return Ok(PUBSUB_RETENTION_DEFAULT);
    };
    Ok(redelivery_window_with_dead_letters(&subscriber, &found).await)
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        let pruned = PrunedInboxJson { consumer: "c", rows: 3 };
        assert_documented("consumer prune", &pruned);
    }
}
