//! `walrelay status`: prints the headline and the next step first, then the slot, its WAL and
//! dispatch state.

mod reading;
mod watch;

use crate::config::StatusConfig;
use crate::error::Error;
use crate::status::report_text;
use walrelay_pg_client::connect_sql;
use walrelay_relay::observe::report::SlotReport;
use walrelay_relay::shutdown::Shutdown;

use self::reading::{Found, read};
use crate::output::{colours, print};

/// Prints the report once, or repeatedly with `--watch`.
///
/// # Errors
///
/// Postgres cannot be reached, the slot is missing or lost, or dispatch state does not exist.
pub(crate) async fn execute(config: StatusConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let Some(interval) = config.watch else {
        return tokio::select! {
            done = once(&config, shutdown) => done,
            () = shutdown.requested() => Err(Error::Interrupted),
        };
    };
    // A signal is the normal end of `--watch`, so it is no error.
    tokio::select! {
        done = watch::watch(&config, interval, shutdown) => done,
        () = shutdown.requested() => Ok(()),
    }
}

async fn once(config: &StatusConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let client = connect_sql(&config.database.connect).await?;
    let found = read(&client, config, shutdown).await;
    client.close().await;
    let Found { report, failure } =
        found.map_err(|error| error.for_read_only_command(config.database.connect.user()))?;
    print(&report_text(&report, config.format, colours()))?;
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
        AnchorReport, ConditionReport, DispatchReport, HeavyKeyReport, RefusalReport, RelayReport,
        WalBudgetReport, WriterReport,
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
