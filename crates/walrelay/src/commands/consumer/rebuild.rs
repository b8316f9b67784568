//! `walrelay consumer rebuild`: rebuilds a read model from the topic or from the outbox.

mod notes;
mod result;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{ArgGroup, Args};
use walrelay_inbox_admin::{
    ConsumerRebuild, KeyRebuild, OutboxRows, RebuildSession, SchemaRebuild,
};
use walrelay_outbox_replay::replay::DeadRows;
use walrelay_pg_client::{ConnectConfig, QualifiedName, Secret, SqlClient};
use walrelay_pubsub::Endpoint;
use walrelay_relay::shutdown::Shutdown;
use walrelay_webhook::Target;

use self::result::RebuildTerminal;
use crate::commands::failed_events::files::read;
use crate::commands::shared::operator::Terminal;
use crate::commands::shared::session::in_shared_session;
use crate::config::{Checks, ResourceKind};
use crate::error::Error;
use crate::options::values::{consumer_name, ordering_key, secret, text_form, time};
use crate::options::{ARGUMENTS, ChangeArgs, DatabaseOptions, EndpointOptions, MessageOptions};
use crate::plan::Plan;

/// Rebuild the read model from the topic or from the rows of the outbox.
///
/// Applies everything published since a time, or all rows of the outbox, again, in a new generation.
///
/// With --into the command applies the rows of the outbox in another schema, while the read model stays live. With
/// --key it rebuilds single ordering keys. With --from-time it creates a subscription to the same topic and seeks it
/// back. It then empties the read model and moves the consumer to a new generation and to that subscription, in one
/// transaction. Running instances follow. Events of before that time are not applied again.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  \
    walrelay consumer rebuild billing --into fresh --handler apply_orders\n  \
    walrelay consumer rebuild billing --key A-17 --handler apply_orders --reset-function reset_orders\n  \
    walrelay consumer rebuild billing --from-time 7d --reset-sql truncate.sql"
)]
#[command(group(ArgGroup::new("source").args(["from_time", "into", "key", "cancel"]).required(true)))]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct Rebuild {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    name: String,
    /// Apply again what was published since: 2026-01-31T12:00:00Z, or how long ago (7d).
    #[arg(long, value_name = "TIME", value_parser = time)]
    from_time: Option<SystemTime>,
    /// Apply the rows of the outbox in the tables of this schema, and switch to them in one transaction. The handler
    /// has to name its tables without a schema.
    #[arg(long, value_name = "SCHEMA", requires = "handler")]
    into: Option<String>,
    /// Rebuild this ordering key alone, from the rows of the outbox, in one transaction; may be given several times.
    #[arg(long, value_name = "KEY", requires = "handler", requires = "reset_function",
          value_parser = ordering_key)]
    key: Vec<String>,
    /// Cancel a rebuild that is not finished. The tables stay as they are.
    #[arg(long)]
    cancel: bool,
    /// Function that applies events, as for `walrelay consumer run`.
    #[arg(long, value_name = "FUNCTION", conflicts_with_all = ["from_time", "cancel"])]
    handler: Option<String>,
    /// Function f(text[]) or f(text) that removes the effect of the handler for keys; called with --key.
    #[arg(long, value_name = "FUNCTION", requires = "key", value_parser = text_form::<QualifiedName>)]
    reset_function: Option<QualifiedName>,
    /// File with the SQL that switches to the tables of --into. Without it their rows replace those of the tables of
    /// the same names.
    #[arg(long, value_name = "FILE", requires = "into")]
    switch_sql: Option<PathBuf>,
    /// Database of the outbox, if it is another than the consumer's. The password belongs in PGPASSWORD or a
    /// passfile.
    #[arg(long, value_name = "URL", conflicts_with = "from_time", value_parser = secret)]
    outbox_url: Option<Secret>,
    /// Only rows of this aggregate type, of those that the consumer receives; may be given several
    /// times.
    #[arg(long, value_name = "TYPE", conflicts_with = "from_time")]
    aggregate_type: Vec<String>,
    /// Leave out rows that are dead or that Pub/Sub would never accept, and list them. Without it the command changes
    /// nothing if there is one.
    #[arg(long, conflicts_with = "from_time")]
    skip_dead: bool,
    /// File with the SQL that empties the tables of the handler, such as TRUNCATE balances; runs in the
    /// transaction that begins the generation.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["into", "key", "cancel"])]
    reset_sql: Option<PathBuf>,
    /// Subscription to create and to read from then on; short or full name. Without it: the name of the one
    /// read so far with -g and the number of the generation, as in billing-g2.
    #[arg(long, value_name = "SUBSCRIPTION", conflicts_with_all = ["into", "key", "cancel"])]
    subscription: Option<String>,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    database: DatabaseOptions,
    #[command(flatten)]
    messages: MessageOptions,
    #[command(flatten)]
    endpoint: EndpointOptions,
}

enum Source {
    /// Messages published since this time, as far as the topic retains them.
    Topic(SystemTime),
    /// Outbox rows, which the command itself applies in another schema.
    SideBySide(Box<SchemaRebuild>),
    /// Rows of some ordering keys, which the command itself applies.
    Keys(Box<KeyRebuild>),
    /// No source: an unfinished rebuild is cancelled.
    Cancel,
}

struct RebuildPlan {
    connect: ConnectConfig,
    source: Source,
    /// Full name of the subscription to create. `None` derives the name from the old one and the
    /// generation.
    subscription: Option<String>,
    endpoint: Endpoint,
}

impl Rebuild {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let source = match self.from_time {
            _ if self.cancel => Some(Source::Cancel),
            Some(since) => Some(Source::Topic(since)),
            None => self.direct(checks),
        };
        let endpoint = checks.endpoint(&self.endpoint);
        let subscription = self.subscription.as_ref().and_then(|given| {
            let kind = ResourceKind::Subscription;
            checks.full_name("subscription", given, &self.messages.project, kind)
        });
        let connect = checks.connect(&self.database.connection)?;
        let plan = RebuildPlan { connect, source: source?, subscription, endpoint };
        Some(Plan::new(async move |shutdown| self.run(&plan, shutdown).await))
    }

    /// Reads the source of a rebuild in which the command itself applies the rows.
    fn direct(&self, checks: &mut Checks<'_>) -> Option<Source> {
        let rows = self.rows(checks)?;
        let handler = self.handler.clone()?;
        if Target::is_meant(&handler) {
            let allowed = "a function: events that were delivered to a service are not taken back";
            checks.wrong_or_missing("handler", allowed);
            return None;
        }
        if let Some(schema) = self.into.clone() {
            let rebuild = SchemaRebuild { rows, handler, schema, switch_sql: None };
            return Some(Source::SideBySide(Box::new(rebuild)));
        }
        let (keys, reset) = (self.key.clone(), self.reset_function.clone()?);
        Some(Source::Keys(Box::new(KeyRebuild { rows, handler, keys, reset })))
    }

    /// Reads the source and the routing of the outbox rows.
    fn rows(&self, checks: &mut Checks<'_>) -> Option<OutboxRows> {
        let outbox = checks.outbox(&self.database);
        let router = checks.router(&self.messages);
        let connect = match &self.outbox_url {
            Some(url) => checks.connect_to("outbox-url", url),
            None => checks.connect(&self.database.connection),
        }?;
        checks.note_record_of(&connect, &self.database);
        Some(OutboxRows {
            connect,
            outbox,
            router,
            endpoint: checks.endpoint(&self.endpoint),
            aggregate_types: self.aggregate_type.clone(),
            dead_rows: if self.skip_dead { DeadRows::LeaveOut } else { DeadRows::Stop },
        })
    }

    async fn run(&self, plan: &RebuildPlan, shutdown: &Shutdown) -> Result<(), Error> {
        in_shared_session(&plan.connect, shutdown, async |client| {
            Box::pin(self.rebuild(plan, client, shutdown)).await
        })
        .await
    }

    /// Runs a rebuild, or cancels one.
    async fn rebuild(
        &self,
        plan: &RebuildPlan,
        client: &mut SqlClient,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let consumer = &self.name;
        let terminal = Terminal::new(self.change.options(), shutdown);
        let operator = &RebuildTerminal::new(terminal, consumer);
        let session = RebuildSession { connect: &plan.connect, operator, stop: shutdown };
        match &plan.source {
            Source::Topic(since) => {
                let order = self.with_reset(plan)?;
                Box::pin(session.rebuild_from_topic(client, &order, *since)).await?;
            }
            Source::SideBySide(of) => {
                let switch_sql = self.switch_sql.as_ref();
                let text = |path: &PathBuf| text_of(path, "--switch-sql is a file of SQL");
                let switch_sql = switch_sql.map(text).transpose()?;
                let of = SchemaRebuild { switch_sql, ..SchemaRebuild::clone(of) };
                Box::pin(session.rebuild_into_schema(client, consumer, &of)).await?;
            }
            Source::Keys(of) => Box::pin(session.rebuild_keys(client, consumer, of)).await?,
            Source::Cancel => session.cancel_rebuild(client, consumer).await?,
        }
        operator.print_result()
    }

    /// Reads the SQL that empties the tables.
    fn with_reset(&self, plan: &RebuildPlan) -> Result<ConsumerRebuild, Error> {
        let reset_sql = match &self.reset_sql {
            Some(path) => Some(text_of(path, "--reset-sql is a file of SQL")?),
            None => {
                tracing::warn!(
                    "without --reset-sql the handler sees every event again on top of what is there"
                );
                None
            }
        };
        Ok(ConsumerRebuild {
            consumer: self.name.clone(),
            reset_sql,
            subscription: plan.subscription.clone(),
            endpoint: plan.endpoint.clone(),
        })
    }
}

fn text_of(path: &Path, hint: &'static str) -> Result<String, Error> {
    let what = format!("{} is not text", path.display());
    String::from_utf8(read(path)?).map_err(|_| Error::unfit(what, hint))
}
