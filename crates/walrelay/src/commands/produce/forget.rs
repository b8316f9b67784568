//! `walrelay forget`: forgets aggregates whose ids are never used again.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use crate::config::{ChangeMode, ForgetConfig, ForgottenArgs};
use crate::error::Error;
use crate::output::text::visible;
use walrelay_outbox_admin::protocols::{ForgetOrder, ForgottenAggregates, forget_aggregates};
use walrelay_pg_client::TableAccess;
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::operator::{StopMode, Terminal, run_protocol};

/// Forgets the aggregates, and prints their number.
///
/// # Errors
///
/// The file cannot be read, Postgres cannot be reached or refuses, or the user does not agree.
pub(crate) async fn execute(config: ForgetConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let ForgetConfig { connect, aggregates, options } = config;
    let ForgottenArgs { aggregate_type, mut ids, from_file } = aggregates;
    if let Some(path) = from_file {
        ids.extend(ids_of(&path)?);
    }
    let terminal = Terminal::new(options, shutdown);
    let access = match options.mode {
        ChangeMode::DryRun => TableAccess::Read,
        ChangeMode::Agreed | ChangeMode::Ask => TableAccess::Delete,
    };
    let order = ForgetOrder { aggregate_type: &aggregate_type, ids: &ids, access };
    let forgotten = run_protocol(&connect, terminal, StopMode::Cancel, async |session| {
        forget_aggregates(session, order).await
    });
    terminal.print_result(forgotten.await?.as_ref(), text_of, |it| it)
}

/// Reads ids, one per line. The path `-` is standard input.
fn ids_of(path: &Path) -> Result<Vec<String>, Error> {
    let text = match path.to_str() {
        Some("-") => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map(|_| text)
        }
        _ => fs::read_to_string(path),
    };
    let action = format!("read {}", path.display());
    let text = text.map_err(|source| Error::Io { action, source })?;
    Ok(text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

fn text_of(done: &ForgottenAggregates) -> String {
    let mut text = format!("{} aggregate(s) forgotten\n", done.forgotten);
    let lists = [("kept, because an event was written", &done.kept), ("unknown", &done.unknown)];
    for (what, ids) in lists {
        for id in ids {
            text.push_str(&format!("{what}: {}\n", visible(id)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_the_result_are_documented() {
        let (kept, unknown) = (vec!["A-1".to_owned()], vec!["A-2".to_owned()]);
        let done = ForgottenAggregates { forgotten: 3, kept, unknown };
        assert_documented("forget", &done);
    }
}
