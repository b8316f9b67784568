//! `walrelay replay start`: publishes rows again, beside the running relay.

use std::num::NonZeroU32;
use std::time::SystemTime;

use clap::Args;
use pgoutput_parser::Lsn;
use walrelay_core::{ColumnFilter, RouterConfig, Template};
use walrelay_outbox_admin::protocols::routes::full_name;
use walrelay_outbox_admin::protocols::{Wanted, position_of_time, refuse_conflicts};
use walrelay_outbox_replay::replay::{
    DeadRows, Destination, OrderedSource, OrderedTable, OrderedWal, ReplayEnv, ReplayJob,
    ReplayOrder,
};
use walrelay_pg_client::{QualifiedName, SqlClient};
use walrelay_relay::settings::Settings;

use super::report::ReplayResult;
use super::work::{described, in_session, refuse_missing_topic, run_job};
use crate::commands::shared::operator::Terminal;
use crate::config::{ChangeMode, Checks};
use crate::error::Error;
use crate::options::values::{anchor_name, count, lsn, template, text_form, time, word};
use crate::options::{ARGUMENTS, ChangeArgs, PublishingOptions};
use crate::plan::Plan;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowSource {
    /// The WAL behind an anchor.
    Wal,
    Table,
}

const SOURCES: &[(&str, RowSource)] = &[("wal", RowSource::Wal), ("table", RowSource::Table)];

/// Publish rows again, to another topic or in place.
///
/// With --source wal, the rows behind an anchor are published in their original order, with their original
/// positions. With --source table, the rows of the outbox table are published, by version per aggregate. Every
/// message has the attribute `replay_id`. The relay keeps running. An interrupted replay says how to resume it.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  \
    walrelay replay start --from-anchor before_release --to-topic video.again --dry-run\n  \
    walrelay replay start --from-time 6h --aggregate-id 4711 --to-topic video.again --rate 500\n  \
    walrelay replay start --source table --aggregate-type video --to-topic video.again"
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Start {
    /// Where the rows are read: the WAL behind an anchor, or the outbox table.
    #[arg(long, value_name = "SOURCE", default_value = "wal", value_parser = word(SOURCES))]
    source: RowSource,
    /// Anchor whose WAL is replayed; without it the nearest one that reaches back far enough.
    #[arg(long, value_name = "NAME", value_parser = anchor_name)]
    from_anchor: Option<String>,
    /// First position (16/B374D848, as in the attribute `commit_lsn`); the anchor's position without it.
    #[arg(long, value_name = "LSN", conflicts_with = "from_time", value_parser = lsn)]
    from_lsn: Option<Lsn>,
    /// Only rows of this time or later: 2026-01-31T12:00:00Z, or how long ago (6h). It is the time of the commit, or
    /// with --source table that of the event.
    #[arg(long, value_name = "TIME", value_parser = time)]
    from_time: Option<SystemTime>,
    /// Last position; the end of the WAL without it.
    #[arg(long, value_name = "LSN", conflicts_with = "to_time", value_parser = lsn)]
    to_lsn: Option<Lsn>,
    /// Only rows that were committed at this time or earlier.
    #[arg(long, value_name = "TIME", value_parser = time)]
    to_time: Option<SystemTime>,
    /// Only rows of this aggregate type; may be given several times.
    #[arg(long, value_name = "TYPE")]
    aggregate_type: Vec<String>,
    /// Only rows of this aggregate; may be given several times.
    #[arg(long, value_name = "ID")]
    aggregate_id: Vec<String>,
    /// Only rows of this event type; may be given several times. Not with --source table.
    #[arg(long, value_name = "TYPE")]
    event_type: Vec<String>,
    /// Only the row with this event id; may be given several times. Only with --source table.
    #[arg(long, value_name = "ID")]
    event_id: Vec<String>,
    /// Topic to publish to, which may have columns in braces; not one of the relay's own.
    #[arg(long, value_name = "TEMPLATE", value_parser = template)]
    to_topic: Option<Template>,
    /// Publish to the topics that the relay publishes to, through dispatch state. The rows of each key stay together,
    /// and its live rows follow them.
    #[arg(long, conflicts_with_all = ["to_topic", "to_lsn", "to_time", "rate"])]
    in_place: bool,
    /// Read this table instead of those on record, such as a loaded archive. Only with --source table.
    #[arg(long, value_name = "TABLE", value_parser = text_form::<QualifiedName>)]
    table: Option<QualifiedName>,
    /// Columns that give the order within an aggregate, with commas; without it version, time and id. Only with
    /// --source table.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    order_by: Vec<String>,
    /// Rows a second, at most.
    #[arg(long, value_name = "ROWS", value_parser = count(1_u32, u32::MAX))]
    rate: Option<u32>,
    /// Leave out rows that Pub/Sub would never accept, and name them, instead of stopping there.
    #[arg(long)]
    skip_dead: bool,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    publishing: PublishingOptions,
}

impl Start {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let (settings, order) = self.order(checks)?;
        let options = self.change.options();
        Some(Plan::new(async move |shutdown| {
            let terminal = Terminal::new(options, shutdown);
            in_session(&settings, terminal, async |client, env| {
                start(client, env, order, terminal).await
            })
            .await
        }))
    }

    fn order(&self, checks: &mut Checks<'_>) -> Option<(Settings, ReplayOrder)> {
        self.require_arguments_of_source(checks);
        let mut settings = checks.publishing(&self.publishing)?;
        if let Some(table) = self.table.clone() {
            settings.relay.outbox.tables = vec![table];
        }
        let router = &settings.relay.router;
        let destination = match self.in_place {
            true => Destination::InPlace,
            false => {
                let template = self.topic(checks, router)?;
                Destination::Topic { template, rate: self.rate.and_then(NonZeroU32::new) }
            }
        };
        if self.source == RowSource::Table && self.from_time.is_some() {
            let reason = "needed by --from-time: the time of an event is read from it";
            checks.require_time(&router.columns, reason);
        }
        let source = match self.source {
            RowSource::Wal => OrderedSource::Wal(OrderedWal {
                anchor: self.from_anchor.clone(),
                from: self.from_lsn,
                since: self.from_time,
                to: self.to_lsn,
                until: self.to_time,
            }),
            RowSource::Table => OrderedSource::Table(OrderedTable {
                since: self.from_time,
                event_ids: self.event_id.clone(),
                order_by: self.order_by.clone(),
            }),
        };
        let matching = ColumnFilter {
            aggregate_types: self.aggregate_type.clone(),
            aggregate_ids: self.aggregate_id.clone(),
            event_types: self.event_type.clone(),
        };
        let dead_rows = if self.skip_dead { DeadRows::LeaveOut } else { DeadRows::Stop };
        let order = ReplayOrder { source, destination, matching, dead_rows };
        Some((settings, order))
    }

    /// Refuses arguments that only the other source has, and requires a start in the WAL.
    fn require_arguments_of_source(&self, checks: &mut Checks<'_>) {
        let of_wal = [
            ("from-anchor", self.from_anchor.is_some()),
            ("from-lsn", self.from_lsn.is_some()),
            ("to-lsn", self.to_lsn.is_some()),
            ("to-time", self.to_time.is_some()),
            ("event-type", !self.event_type.is_empty()),
        ];
        let of_table = [
            ("event-id", !self.event_id.is_empty()),
            ("order-by", !self.order_by.is_empty()),
            ("table", self.table.is_some()),
        ];
        let (others, source) = match self.source {
            RowSource::Wal => (&of_table[..], "table"),
            RowSource::Table => (&of_wal[..], "wal"),
        };
        for (name, _) in others.iter().filter(|(_, is_given)| *is_given) {
            checks.wrong_or_missing(name, format!("only with --source {source}"));
        }
        let has_start = of_wal[..2].iter().any(|(_, is_given)| *is_given);
        if self.source == RowSource::Wal && !has_start && self.from_time.is_none() {
            let allowed =
                "not set; give --from-anchor, --from-lsn or --from-time, or --source table";
            checks.wrong_or_missing("from-anchor", allowed);
        }
    }

    /// Returns the topic of a replay. A dry run without `--to-topic` uses the relay's own topic.
    fn topic(&self, checks: &mut Checks<'_>, router: &RouterConfig) -> Option<String> {
        let mode = self.change.options().mode;
        let Some(template) = &self.to_topic else {
            if mode == ChangeMode::DryRun {
                return Some(router.topic.to_string());
            }
            let allowed = "not set; the topic to publish to, or --in-place";
            checks.wrong_or_missing("to-topic", allowed);
            return None;
        };
        let text = template.to_string();
        if router.project.is_empty() && !template.names_project() && mode != ChangeMode::DryRun {
            let allowed = "not set; needed unless --to-topic is a full projects/…/topics/… name";
            checks.wrong_or_missing("project", allowed);
        }
        require_separate_topic(checks, &text, router);
        checks.require_columns("to-topic", template, &router.columns);
        Some(text)
    }
}

/// Requires a topic that the relay does not publish to.
fn require_separate_topic(checks: &mut Checks<'_>, topic: &str, router: &RouterConfig) {
    let live = router.topic.to_string();
    if can_publish_to(&full_name(&router.project, &live), &full_name(&router.project, topic)) {
        let allowed = format!("a topic that --topic-template {live} does not lead to");
        checks.wrong("to-topic", topic, allowed);
    }
}

/// Returns whether the live relay may publish to this topic. A template of columns alone may lead
/// to any topic, so it proves nothing.
fn can_publish_to(live: &str, topic: &str) -> bool {
    if live == topic {
        return true;
    }
    let mut literals = live.split('{').enumerate().map(|(index, part)| match index {
        0 => part,
        _ => part.split_once('}').map_or("", |(_, behind)| behind),
    });
    let first = literals.next().unwrap_or_default();
    let behind: Vec<&str> = literals.collect();
    let says_nothing = first.is_empty() || first.ends_with("/topics/");
    if says_nothing && behind.iter().all(|literal| literal.is_empty()) {
        return false;
    }
    let Some(mut rest) = topic.strip_prefix(first) else { return false };
    let Some((last, middle)) = behind.split_last() else { return rest.is_empty() };
    for literal in middle {
        let Some((_, after)) = rest.split_once(literal) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

/// Returns `None` after a dry run.
async fn start(
    client: &mut SqlClient,
    env: ReplayEnv<'_>,
    mut order: ReplayOrder,
    terminal: Terminal<'_>,
) -> Result<Option<ReplayResult>, Error> {
    let outbox = &env.settings.relay.outbox;
    let wanted = match (&order.destination, &order.source) {
        (Destination::InPlace, _) => Wanted::ReplayInPlace,
        (Destination::Topic { .. }, OrderedSource::Table(_)) => Wanted::ReplayTables,
        (Destination::Topic { .. }, OrderedSource::Wal(_)) => Wanted::ReplayWal,
    };
    refuse_conflicts(client, outbox, wanted).await?;
    if let OrderedSource::Wal(wal) = &mut order.source
        && let (None, Some(time)) = (wal.from, wal.since)
    {
        wal.from = Some(position_of_time(client, &outbox.slot, time).await?);
    }
    let mode = terminal.options.mode;
    let mut job = ReplayJob::plan(client, env.settings, order).await?;
    if mode != ChangeMode::DryRun {
        refuse_missing_topic(client, env.settings, &job.request.destination).await?;
    }
    let (what, counts) = described(client, env, &job, mode).await?;
    if !terminal.ask(what).await? {
        return Ok(None);
    }
    let keys = counts.as_ref().map_or(&[][..], |counts| &counts.keys);
    if job.request.destination == Destination::InPlace {
        if keys.is_empty() {
            let left_out = counts.as_ref().map_or(0, |counts| counts.left_out);
            return Ok(Some(ReplayResult::Nothing { job, left_out }));
        }
        job.refuse_without_slot(client).await?;
    }
    job.begin(client, env.settings, keys, env.steps).await?;
    run_job(client, env, job).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_that_the_live_relay_may_publish_to_is_known_from_its_template() {
        let live = "projects/p/topics/{aggregatetype}.events";
        for (topic, is_live) in [
            ("projects/p/topics/video.events", true),
            ("projects/p/topics/{aggregatetype}.events", true),
            ("projects/p/topics/video.again", false),
            ("projects/q/topics/video.events", false),
        ] {
            assert_eq!(can_publish_to(live, topic), is_live, "{topic}");
        }
        assert!(can_publish_to("projects/p/topics/all", "projects/p/topics/all"));
        assert!(!can_publish_to("projects/p/topics/all", "projects/p/topics/all2"));
        assert!(!can_publish_to("projects/p/topics/{a}", "projects/p/topics/x"), "nobody can tell");
        assert!(can_publish_to("projects/p/topics/{a}.{b}.v1", "projects/p/topics/x.y.v1"));
    }
}
