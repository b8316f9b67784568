//! `walrelay status`: prints the headline and the next step first, then the slot, its WAL and
//! dispatch state.

mod reading;
mod watch;

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use walrelay_pg_client::connect_sql;
use walrelay_relay::observe::report::SlotReport;
use walrelay_relay::shutdown::Shutdown;

use self::reading::{StatusReading, StatusSources, read};
use self::watch::watch;
use crate::commands::shared::answer_timeout::ANSWER_TIMEOUT;
use crate::commands::shared::cancellable::run_until_shutdown;
use crate::config::{Checks, DefinitionNeed, OutputFormat};
use crate::error::Error;
use crate::options::values::{duration, listen};
use crate::options::{ARGUMENTS, DatabaseOptions, InboxPlaces, OutputOptions, WalBudgetOption};
use crate::output::{colours, print};
use crate::plan::{CommandEnd, Plan};
use crate::status::report_text;

/// Show relay health and the recommended next step.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay status --output json\n  \
    walrelay status --watch --relay 127.0.0.1:8080"
)]
pub(crate) struct Status {
    /// Show it again and again: every two seconds, or as often as given (`--watch=10s`). In place on a
    /// terminal; elsewhere each report has its time, and in JSON a line.
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true,
          default_missing_value = "2s", value_parser = duration("100ms", "1h"))]
    watch: Option<Duration>,
    /// Where the relay serves HTTP, as in 127.0.0.1:8080: its phase, readiness and heaviest keys are shown too.
    #[arg(long, value_name = "ADDRESS", value_parser = listen)]
    relay: Option<SocketAddr>,
    #[command(flatten)]
    places: InboxPlaces,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    wal_budget: WalBudgetOption,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl Status {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let database = checks.database(&self.database)?;
        checks.needs_definition(DefinitionNeed::Reported(ANSWER_TIMEOUT));
        let sources = StatusSources {
            database,
            relay: self.relay,
            inboxes: checks.inbox_places(&self.places)?,
            wal_budget: self.wal_budget.wal_budget,
        };
        let format = self.output.output;
        Some(match self.watch {
            None => Plan::new(async move |shutdown| {
                run_until_shutdown(once(&sources, format, shutdown), shutdown).await
            }),
            // A signal is the normal end of `--watch`, so it is no error.
            Some(interval) => Plan::new(async move |shutdown| {
                tokio::select! {
                    done = watch(&sources, format, interval, shutdown) => done,
                    () = shutdown.requested() => Ok(()),
                }
            })
            .ended(CommandEnd::Interrupted),
        })
    }
}

/// Prints the report once.
///
/// # Errors
///
/// Postgres cannot be reached, the slot is missing or lost, or dispatch state does not exist.
async fn once(
    sources: &StatusSources,
    format: OutputFormat,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let connect = &sources.database.connect;
    let client = connect_sql(connect).await?;
    let found = read(&client, sources, shutdown).await;
    client.close().await;
    let StatusReading { report, failure } =
        found.map_err(|error| error.for_read_only_command(connect.user()))?;
    print(&report_text(&report, format, colours()))?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let mut slots = report.shards.iter().chain([&report]).filter_map(|it| it.slot.as_ref());
    match slots.find(|slot| slot.lost) {
        Some(slot) => Err(Error::slot_lost(&slot.slot, how_lost(slot))),
        None => Ok(()),
    }
}

fn how_lost(slot: &SlotReport) -> &'static str {
    match slot.wal_status.as_deref() {
        Some("lost") => "is invalidated",
        Some(_) => {
            "is another slot of the same name than the one on record, or one that pg_upgrade has carried over"
        }
        None => "no longer exists",
    }
}

#[cfg(test)]
mod tests {
    use walrelay_outbox_admin::{
        ConsumerBacklog, FailingTopic, NextStep, OperationReport, RebuildReport, RelayAnswer,
        StatusReport, TableSize,
    };
    use walrelay_outbox_replay::{PausingReplay, TopicReplay};
    use walrelay_outbox_store::{Reason, ReasonKind};
    use walrelay_relay::observe::report::{
        AnchorReport, ConditionReport, DispatchReport, HeavyKeyReport, PublishedReport,
        RefusalReport, RelayReport, WalBudgetReport, WriterReport,
    };
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    fn slot() -> SlotReport {
        let reason = Reason::new(ReasonKind::TopicRefused, "t").with_fix("f").about("t");
        SlotReport {
            pinned_by: Some(WriterReport::default()),
            condition: Some(ConditionReport {
                reasons: vec![reason.with_code("topic-not-found")],
                ..ConditionReport::default()
            }),
            anchors: vec![AnchorReport::default()],
            dispatch: Some(DispatchReport::default()),
            refused: Some(RefusalReport::default()),
            published: Some(PublishedReport::default()),
            ..SlotReport::default()
        }
    }

    #[test]
    fn the_json_is_documented() {
        let relay = RelayReport {
            reasons: vec![Reason::new(ReasonKind::Phase, "starting")],
            wal_budget: Some(WalBudgetReport::default()),
            heaviest_keys: vec![HeavyKeyReport::default()],
            ..RelayReport::default()
        };
        let report = StatusReport {
            next_step: Some(NextStep::default()),
            shard: Some("0/2".to_owned()),
            failing_topics: vec![FailingTopic::default()],
            operation: Some(OperationReport::default()),
            paused_by: vec![PausingReplay::default()],
            replays: vec![TopicReplay::default()],
            rebuilds: vec![RebuildReport::default()],
            consumers: vec![ConsumerBacklog {
                error: Some("refused".to_owned()),
                ..ConsumerBacklog::default()
            }],
            tables: vec![TableSize::default()],
            relay: Some(RelayAnswer {
                unreachable: Some("timeout".to_owned()),
                report: Some(relay),
            }),
            ..StatusReport::of_slot(slot())
        };
        assert_documented("status", &report);
    }
}
