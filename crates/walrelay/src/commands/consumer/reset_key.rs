//! `walrelay consumer reset-key`: makes a consumer forget the position of an ordering key.

use clap::Args;
use serde::Serialize;
use walrelay_inbox_admin::{KeyPosition, reset_key};
use walrelay_pg_client::{ConnectConfig, SqlClient};
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::cancellable::run_until_shutdown;
use crate::commands::shared::operator::Terminal;
use crate::commands::shared::session::in_shared_session;
use crate::config::Checks;
use crate::error::Error;
use crate::options::values::consumer_name;
use crate::options::{ARGUMENTS, ChangeArgs, ConnectionOptions};
use crate::output::print_result;
use crate::output::text::visible;
use crate::plan::Plan;

/// Reset the position of an ordering key, where it cannot be right.
///
/// With `consumer run --dedupe position` a message with a forged position makes later events of its key look old, and they
/// are skipped. Shows the position and how many events were skipped because of it, and asks. The skipped events are
/// applied when they are published again.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay consumer reset-key billing --key A-17"
)]
pub(crate) struct ResetKey {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    name: String,
    /// The ordering key.
    #[arg(long, value_name = "KEY")]
    key: String,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    connection: ConnectionOptions,
}

impl ResetKey {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let connect = checks.connect(&self.connection)?;
        Some(Plan::new(async move |shutdown| self.run(&connect, shutdown).await))
    }

    async fn run(&self, connect: &ConnectConfig, shutdown: &Shutdown) -> Result<(), Error> {
        in_shared_session(connect, shutdown, async |client| {
            run_until_shutdown(self.reset(client, shutdown), shutdown).await
        })
        .await
    }

    /// Shows the effect of a reset, asks for consent, and resets the key.
    ///
    /// # Errors
    ///
    /// The consumer or key does not exist, the user did not agree, or the key has moved since it was
    /// shown.
    async fn reset(&self, client: &mut SqlClient, shutdown: &Shutdown) -> Result<(), Error> {
        let (name, key, options) = (&self.name, &self.key, self.change.options());
        let seen = KeyPosition::of(client, name, key).await?;
        let terminal = Terminal::new(options, shutdown);
        terminal.show_step(&shown(self, &seen))?;
        let what = format!("reset key {} of consumer {name}", visible(key));
        if !terminal.ask(what).await? {
            return Ok(());
        }
        let forgotten = reset_key(client, name, key, &seen).await?;
        let result = KeyResetJson {
            consumer: name,
            key,
            position: seen.position.as_deref(),
            version: seen.version,
            unseen_events: forgotten,
        };
        print_result(options.format, &result, || {
            format!(
                "reset: key {} of consumer {name}; {forgotten} skipped event(s) are unseen again\n{}",
                visible(key),
                match forgotten {
                    0 => String::new(),
                    _ => format!("to apply them: {REPUBLISH}\n"),
                }
            )
        })
    }
}

#[derive(Debug, Serialize)]
struct KeyResetJson<'a> {
    consumer: &'a str,
    key: &'a str,
    /// The position that was forgotten.
    position: Option<&'a str>,
    /// The version that was forgotten.
    version: Option<i64>,
    /// Skipped events that are unseen again.
    unseen_events: u64,
}

/// Assumes the default, where the ordering key is the aggregate's id.
const REPUBLISH: &str = "`walrelay replay start --source table --in-place --aggregate-id ID` publishes the events of that aggregate again";

fn shown(ResetKey { name, key, .. }: &ResetKey, seen: &KeyPosition) -> String {
    let or_none = |value: Option<&str>| value.map_or_else(|| "none".to_owned(), visible);
    format!(
        "consumer           {name}\n\
         ordering key       {}\n\
         position           {}\n\
         reached at         {}\n\
         system identifier  {}\n\
         highest version    {}\n\
         proved wrong by    {} event(s)\n\
         skipped since      {} event(s), which a reset makes unseen again\n\
         A reset forgets position and version. The next event of the key is applied and sets both.\n\
         Copies of events that `consumer prune` has deleted are applied again if they come before that event.\n",
        visible(key),
        or_none(seen.position.as_deref()),
        or_none(seen.moved_at.as_deref()),
        or_none(seen.system_identifier.as_deref()),
        or_none(seen.version.map(|version| version.to_string()).as_deref()),
        seen.implausible,
        seen.skipped,
    )
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        let result = KeyResetJson {
            consumer: "billing",
            key: "A-17",
            position: Some("16/B374D848/3"),
            version: Some(7),
            unseen_events: 2,
        };
        assert_documented("consumer reset-key", &result);
    }
}
