//! `walrelay consumer reset-key`: makes a consumer forget the position of an ordering key.

use crate::config::KeyReset;
use crate::error::Error;
use crate::output::text::visible;
use serde::Serialize;
use walrelay_inbox_admin::{KeyPosition, reset_key};
use walrelay_pg_client::SqlClient;
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::operator::Terminal;
use crate::output::print_result;

/// Shows the effect of a reset, asks for consent, and resets the key.
///
/// # Errors
///
/// The consumer or key does not exist, the user did not agree, or the key has moved since it was
/// shown.
pub(in crate::commands) async fn execute(
    client: &mut SqlClient,
    order: &KeyReset,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let KeyReset { name, key, options } = order;
    let seen = KeyPosition::of(client, name, key).await?;
    let terminal = Terminal::new(*options, shutdown);
    terminal.show_step(&shown(order, &seen))?;
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

/// A key that was reset, as `-o json` prints it.
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

fn shown(order: &KeyReset, seen: &KeyPosition) -> String {
    let KeyReset { name, key, .. } = order;
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
