//! `walrelay forget`: forgets aggregates whose ids are never used again.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use walrelay_outbox_admin::protocols::{ForgetOrder, ForgottenAggregates, forget_aggregates};
use walrelay_pg_client::ConnectConfig;
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::operator::{StopMode, Terminal, run_protocol};
use crate::config::Checks;
use crate::error::Error;
use crate::options::{ARGUMENTS, ChangeArgs, ConnectionOptions};
use crate::output::text::visible;
use crate::plan::Plan;

/// Forget aggregates whose ids are never used again.
///
/// Deletes their last versions, so that `app_outbox_aggregate` does not grow. An aggregate whose event is written
/// meanwhile is kept. The next event of a forgotten aggregate has version 1, and consumers may ignore it as old.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay forget order A-1 A-2 --dry-run\n  \
        walrelay forget order --from-file closed-orders.txt --yes"
)]
pub(crate) struct Forget {
    /// Aggregate type, as in `order`.
    #[arg(value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    aggregate_type: String,
    /// Aggregate ids, as in `A-1`.
    #[arg(value_name = "ID", required_unless_present = "from_file", value_parser = NonEmptyStringValueParser::new())]
    ids: Vec<String>,
    /// Read aggregate ids from this file, one per line; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    from_file: Option<PathBuf>,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    connection: ConnectionOptions,
}

impl Forget {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let connect = checks.connect(&self.connection)?;
        Some(Plan::new(async move |shutdown| self.run(&connect, shutdown).await))
    }

    async fn run(mut self, connect: &ConnectConfig, shutdown: &Shutdown) -> Result<(), Error> {
        if let Some(path) = &self.from_file {
            self.ids.extend(ids_of(path)?);
        }
        let options = self.change.options();
        let access = options.mode.access_of_deletion();
        let (aggregate_type, ids) = (&self.aggregate_type, &self.ids);
        let order = ForgetOrder { aggregate_type, ids, access };
        let terminal = Terminal::new(options, shutdown);
        let forgotten = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
            forget_aggregates(session, order).await
        });
        terminal.print_result(forgotten.await?.as_ref(), text_of, |it| it)
    }
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
