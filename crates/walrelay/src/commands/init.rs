//! `walrelay init`: creates tables, publication, slot, and optionally topics. Safe to run again.

use clap::Args;
use serde::Serialize;
use walrelay_core::RouterConfig;
use walrelay_outbox_admin::lifecycle::preflight_check::shard_key;
use walrelay_outbox_admin::partitions::PartitionSpan;
use walrelay_outbox_admin::protocols::{
    CreatedTopics, ExistingRows, TopicOrder, TopicResult, Unpublished, create_topics, set_up,
};
use walrelay_outbox_admin::{EarlierRows, InitOptions, InitPlan, InitReport};
use walrelay_pg_client::ConnectConfig;
use walrelay_pg_replication::Failover;
use walrelay_pubsub::TopicSettings;
use walrelay_relay::settings::PubSubSettings;
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::operator::{StopMode, Terminal, run_protocol};
use crate::commands::shared::set_up_report::nothing_to_do;
use crate::config::{ChangeMode, ChangeOptions, Checks, DefinitionNeed, topic_settings};
use crate::error::Error;
use crate::options::arguments::ConfirmArgs;
use crate::options::choices::Verbosity;
use crate::options::values::{shard_count, topic_to_create, word};
use crate::options::{
    ARGUMENTS, DatabaseOptions, DefinitionOptions, MessageOptions, OWN_OPTIONS, OutputOptions,
    PubSubOptions, SqlOption, TopicOptions,
};
use crate::output::{print, print_result};
use crate::plan::Plan;

const PARTITION_SPANS: &[(&str, PartitionSpan)] =
    &[("day", PartitionSpan::Day), ("week", PartitionSpan::Week), ("month", PartitionSpan::Month)];

/// Options of `init` alone.
#[derive(Debug, Args)]
#[command(next_help_heading = OWN_OPTIONS)]
struct OwnOptions {
    /// Create the topics the outbox's rows lead to through --topic-template, and those named here [default: `false`]
    ///
    /// As in --create-topics=order.events,video.events.
    #[arg(long, value_name = "TOPIC", value_delimiter = ',', num_args = 0.., require_equals = true,
          default_missing_value = "true", value_parser = topic_to_create)]
    create_topics: Vec<String>,
    #[command(flatten)]
    topics: TopicOptions,
    #[command(flatten)]
    sql: SqlOption,
    /// Into how many shards the outbox is divided, each with a publication, a slot and an instance of its own; a power
    /// of two; 1 to 64
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = shard_count)]
    shards: u32,
    /// Create the outbox as a partitioned table with one partition per day, week or month; `run` creates the next ones [default: one table]
    #[arg(long, value_name = "SPAN", value_parser = word(PARTITION_SPANS))]
    partition_by: Option<PartitionSpan>,
    /// Make it a failover slot, which standbys keep in step; Postgres 17 or newer
    #[arg(long)]
    failover: bool,
}

/// Create tables, publication and slot; safe to run again.
///
/// Applies the migrations, then creates the publication (inserts only), then the slot, in that
/// order: a slot older than its publication never works. What exists already is left alone.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  \
    walrelay init --database-url postgresql://postgres@db.example:5432/app --create-topics\n  \
    walrelay init --backfill"
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Init {
    /// With --unpublished-column or --unpublished-where: do not ask.
    #[arg(short, long)]
    yes: bool,
    /// Rows that are in the table before there is a slot are published too, by `walrelay run`, first of all.
    #[arg(long)]
    backfill: bool,
    /// Rows that are in the table before there is a slot are never published. Without this or --backfill, such rows are
    /// refused.
    #[arg(long, conflicts_with = "backfill")]
    skip_existing_rows: bool,
    /// With --backfill: publish only rows in which this column is null, as in `published_at`. Stop the old publisher
    /// first. The command counts the rows in which it is set, and asks.
    #[arg(long, value_name = "COLUMN", requires = "backfill")]
    unpublished_column: Option<String>,
    /// With --backfill: publish only rows for which this SQL condition is true, as in `status <> 2`. Rows for which it is
    /// false or null are never published. The command counts all three, and asks.
    ///
    /// Columns of the row, constants and immutable functions are allowed.
    #[arg(
        long,
        value_name = "CONDITION",
        requires = "backfill",
        conflicts_with = "unpublished_column"
    )]
    unpublished_where: Option<String>,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    own: OwnOptions,
    #[command(flatten)]
    database: DatabaseOptions,
    #[command(flatten)]
    definition: DefinitionOptions,
    #[command(flatten)]
    messages: MessageOptions,
    #[command(flatten)]
    pubsub: PubSubOptions,
}

struct InitConfig {
    /// Connection settings, or `None` if `init` only prints the SQL.
    connect: Option<ConnectConfig>,
    /// The outbox to set up: each of its shards, or the whole one.
    shards: Vec<InitOptions>,
    /// Settings that turn rows into messages, from which the topics to create are derived.
    router: RouterConfig,
    pubsub: PubSubSettings,
    create_topics: CreateTopics,
    topic_settings: TopicSettings,
    /// The treatment of rows that are older than the slot.
    already_there: ExistingRows,
    /// Consent to the loss that is accepted, and output.
    options: ChangeOptions,
    verbosity: Verbosity,
}

#[derive(PartialEq, Eq)]
enum CreateTopics {
    No,
    /// The topics that the rows in the outbox lead to, and the named ones.
    Yes {
        /// Short or full names of further topics.
        named: Vec<String>,
    },
}

impl Init {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let config = self.config(checks)?;
        Some(Plan::new(async move |shutdown| Box::pin(init(config, shutdown)).await))
    }

    /// Returns how another publisher marks the rows that it has not published.
    fn unpublished(&self) -> Option<Unpublished> {
        let column = self.unpublished_column.clone().map(Unpublished::Column);
        column.or_else(|| self.unpublished_where.clone().map(Unpublished::Where))
    }

    fn config(&self, checks: &mut Checks<'_>) -> Option<InitConfig> {
        let prints_only = self.own.sql.sql;
        let shards = self.own.shards;
        checks.define(&self.definition);
        let router = checks.router(&self.messages);
        let create_topics = topics_to_create(&self.own.create_topics);
        let topic_settings = topic_settings(&self.own.topics);
        if create_topics != CreateTopics::No && !prints_only {
            checks.require_project(&router);
        }
        let pubsub = checks.pubsub(&self.pubsub);
        let outbox = checks.whole_outbox(&self.database, shards);
        checks.require_dividing_key(&router, shards);
        if prints_only && self.backfill {
            let allowed =
                "not with --sql: the slot is made together with a snapshot, by this command alone";
            checks.wrong_or_missing("backfill", allowed);
        }
        let connect = match prints_only {
            true => None,
            false => Some(checks.connect(&self.database.connection)?),
        };
        if let Some(connect) = &connect {
            checks.note_record_of(connect, &self.database);
            checks.needs_definition(DefinitionNeed::Optional);
        }
        let shard_key = shard_key(&router);
        let of_shard = |shard| InitOptions {
            columns: router.columns.clone(),
            shard_key: shard_key.clone(),
            failover: if self.own.failover { Failover::Yes } else { Failover::No },
            earlier_rows: match self.skip_existing_rows {
                true => EarlierRows::Leave,
                false => EarlierRows::Refuse,
            },
            partition_by: self.own.partition_by,
            ..InitOptions::new(shard)
        };
        Some(InitConfig {
            connect,
            shards: outbox.shards(shards).into_iter().map(of_shard).collect(),
            router,
            pubsub,
            create_topics,
            topic_settings,
            already_there: match (self.backfill, self.unpublished()) {
                (false, _) => ExistingRows::Left,
                (true, None) => ExistingRows::Published,
                (true, Some(unpublished)) => ExistingRows::Unpublished(unpublished),
            },
            verbosity: checks.verbosity,
            options: ChangeOptions {
                // Otherwise no row is left unpublished that nobody has named.
                mode: match self.unpublished().is_some() {
                    true => ConfirmArgs { yes: self.yes, dry_run: false }.mode(),
                    false => ChangeMode::Agreed,
                },
                format: self.output.output,
            },
        })
    }
}

/// Reads the topics to create. `true` and `false` stand for the bare flag.
fn topics_to_create(values: &[String]) -> CreateTopics {
    match values {
        [] => CreateTopics::No,
        [one] if one == "false" => CreateTopics::No,
        _ => CreateTopics::Yes {
            named: values.iter().filter(|name| *name != "true").cloned().collect(),
        },
    }
}

/// Creates the missing objects and prints their names. With `--sql` it only prints the SQL.
///
/// # Errors
///
/// Earlier steps have taken effect, and a second run continues after them.
async fn init(config: InitConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let shards = &config.shards;
    let Some(connect) = &config.connect else {
        let plans = shards.iter().map(InitPlan::new).collect::<Result<Vec<_>, _>>()?;
        return print(&InitPlan::joined(plans).script());
    };
    let verbosity = config.verbosity;
    let terminal = Terminal { verbosity, ..Terminal::new(config.options, shutdown) };
    let existing = &config.already_there;
    let columns = &config.router.columns;
    let done = run_protocol(connect, terminal, StopMode::Cancel, async |session| {
        let Some(report) = set_up(session, shards, existing, columns).await? else {
            return Ok(None);
        };
        let topics = match &config.create_topics {
            CreateTopics::No => CreatedTopics::default(),
            CreateTopics::Yes { named } => {
                create_topics(session, topic_order(&config, named)).await?
            }
        };
        Ok(Some((report, topics)))
    });
    let Some((report, topics)) = done.await? else { return Ok(()) };
    let json = InitJson::new(&report, &topics);
    print_result(config.options.format, &json, || json.text())?;
    topics.refused.map_or(Ok(()), |error| Err(error.into()))
}

#[derive(Debug, Serialize)]
struct InitJson<'a> {
    #[serde(flatten)]
    report: &'a InitReport,
    topics: Vec<TopicJson<'a>>,
}

#[derive(Debug, Serialize)]
struct TopicJson<'a> {
    topic: &'a str,
    result: TopicResult,
}

impl<'a> InitJson<'a> {
    fn text(&self) -> String {
        let is_there = |it: &&TopicJson<'_>| it.result == TopicResult::AlreadyThere;
        let there = self.report.already_there.len() + self.topics.iter().filter(is_there).count();
        let is_created = |it: &TopicJson<'_>| it.result == TopicResult::Created;
        match !self.report.created.is_empty() || self.topics.iter().any(is_created) {
            false => nothing_to_do(there),
            true => "next: `walrelay check`, then `walrelay run`\n".to_owned(),
        }
    }

    fn new(report: &'a InitReport, topics: &'a CreatedTopics) -> Self {
        let topic = |(topic, result): &'a (String, _)| TopicJson { topic, result: *result };
        Self { report, topics: topics.all.iter().map(topic).collect() }
    }
}

fn topic_order<'a>(config: &'a InitConfig, named: &'a [String]) -> TopicOrder<'a> {
    TopicOrder {
        router: &config.router,
        outbox: config.shards.first().map(|shard| &shard.outbox),
        named,
        settings: &config.topic_settings,
        endpoint: &config.pubsub.publisher.endpoint,
    }
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_fields_of_the_result_are_documented() {
        let report = InitReport {
            created: vec!["slot walrelay".to_owned()],
            already_there: vec!["publication walrelay".to_owned()],
        };
        let all = vec![("projects/p/topics/t".to_owned(), TopicResult::Created)];
        let topics = CreatedTopics { all, refused: None };
        assert_documented("init", &InitJson::new(&report, &topics));
    }
}
