//! `walrelay check`: reports everything that would keep `run` from working, each with its fix.
//! Changes nothing.

mod anchors;
mod archive;
mod consumers;
mod dead_rows;
mod partitions;
mod recorded_stop;
mod report;
mod retention;
mod schemas;
mod server;
mod service;

use std::net::SocketAddr;

use clap::Args;
use walrelay_core::RouterConfig;
use walrelay_errors::{Chain, Code, Coded};
use walrelay_otlp::{CollectorCheckError, Settings as OtlpSettings, try_out};
use walrelay_outbox_admin::lifecycle::preflight_check::preflight_request;
use walrelay_outbox_admin::maintenance::Maintenance;
use walrelay_outbox_admin::protocols::ProtocolError;
use walrelay_outbox_admin::protocols::routes::{self, InvalidTopicRows, Routes};
use walrelay_outbox_admin::{CheckResult, Finding, PreflightRequest, preflight, read_sharding};
use walrelay_outbox_replay::AdminError;
use walrelay_pg_client::{
    ConnectConfig, PgError, SqlClient, SqlError, connect_shared, connect_sql,
};
use walrelay_pg_replication::ReplicationConnection;
use walrelay_pubsub::{Admin, PubsubError};
use walrelay_relay::settings::{PubSubSettings, RelaySettings, Settings, Until};
use walrelay_relay::shutdown::Shutdown;
use walrelay_webhook::Webhook;

use self::consumers::Consumers;
use self::report::{CheckReport, add_fixes, check_text};
use self::schemas::Payload;
use super::shared::answer_timeout::ANSWER_TIMEOUT;
use super::shared::cancellable::{attended, run_until_shutdown};
use crate::config::{Checks, DefinitionNeed, InboxPlace, OutputFormat};
use crate::error::printed_commands::with_shard;
use crate::error::{Error, explain};
use crate::options::choices::Verbosity;
use crate::options::{
    DefinitionOptions, HandlerOptions, InboxPlaces, OutputOptions, PruneArchiveOption,
    RetentionOptions, ServiceOptions,
};
use crate::output::{colours, print_result};
use crate::plan::Plan;
use crate::topics::{INVALID_TOPIC_FIX, creation_of, invalid_topic_text};

/// Facts from Postgres that the checks of Pub/Sub and of the consumers need.
#[derive(Debug, Default)]
struct PostgresFacts {
    /// None if the rows cannot be read.
    routes: Option<Routes>,
    rows: RowsReadable,
    payloads: Vec<Payload>,
    consumers: Consumers,
}

/// Returns the finding about a failure that prevents further checks of its subject.
fn unusable(subject: &str, error: &impl Coded) -> Finding {
    let fix = explain::fix_of(error);
    Finding::error(error.code(), subject, Chain(error).to_string()).fix(fix)
}

/// Check Postgres, Pub/Sub and the options, and name what to fix.
///
/// Changes nothing. Prints each finding with its fix and exits with 0 when `run` would start, otherwise with the
/// code `run` would stop with.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  walrelay check --project my-project --output json")]
pub(crate) struct Check {
    #[command(flatten)]
    places: InboxPlaces,
    #[command(flatten)]
    retention: RetentionOptions,
    #[command(flatten)]
    archive: PruneArchiveOption,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    definition: DefinitionOptions,
    #[command(flatten)]
    handler: HandlerOptions,
    #[command(flatten)]
    options: ServiceOptions,
}

/// What is checked: what `run` would use.
struct Subjects {
    settings: Settings,
    maintenance: Maintenance,
    otlp: Option<OtlpSettings>,
    /// Consumers in other databases. Empty means the consumers in the outbox's own database.
    inboxes: Vec<InboxPlace>,
    /// The service that handles the events of a consumer, if its options are given.
    service: Option<Webhook>,
}

impl Check {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let subjects = self.subjects(checks)?;
        let (format, verbosity) = (self.output.output, checks.verbosity);
        Some(Plan::new(async move |shutdown| {
            Box::pin(check(subjects, format, verbosity, shutdown)).await
        }))
    }

    pub(crate) fn settings(&self, checks: &mut Checks<'_>) -> Option<Settings> {
        checks.define(&self.definition);
        checks.settings(&self.options, Until::Stopped)
    }

    fn subjects(&self, checks: &mut Checks<'_>) -> Option<Subjects> {
        let otlp = checks.otlp();
        let inboxes = checks.inbox_places(&self.places);
        let settings = self.settings(checks);
        let _: Option<SocketAddr> = checks.http(&self.options.relay.http);
        checks.needs_definition(DefinitionNeed::Reported(ANSWER_TIMEOUT));
        let maintenance = checks.maintenance(&self.retention, &self.archive);
        let service = checks.webhook(&self.handler);
        Some(Subjects { settings: settings?, maintenance, otlp, inboxes: inboxes?, service })
    }
}

/// Prints every finding.
///
/// # Errors
///
/// At least one finding would keep `run` from working.
async fn check(
    mut subjects: Subjects,
    format: OutputFormat,
    verbosity: Verbosity,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let telemetry = collector(subjects.otlp.take());
    let running = run_checks(&subjects, shutdown);
    let all_checks = async { Ok(tokio::join!(running, telemetry)) };
    let (mut findings, collector) = Box::pin(run_until_shutdown(all_checks, shutdown)).await?;
    findings.extend(collector);
    add_fixes(&mut findings);
    let text = || check_text(&findings, verbosity, colours());
    print_result(format, &CheckReport::of(&findings), text)?;
    let errors = findings.iter().filter_map(Finding::error_code);
    let count = errors.clone().count();
    match Code::gravest(errors) {
        None => Ok(()),
        Some(code) => Err(Error::Refused {
            code,
            what: format!("{count} finding(s) must be fixed before `walrelay run`"),
            fix: Some("each finding above names its fix".to_owned()),
        }),
    }
}

/// Runs every check that is possible: one connection may answer where another fails. All
/// connections open at the same time, so that an unreachable address costs its timeout once.
async fn run_checks(subjects: &Subjects, shutdown: &Shutdown) -> Vec<Finding> {
    let archive = subjects.maintenance.archive.as_ref();
    let service = service::of(subjects.service.as_ref());
    let (mut found, archive, service) =
        tokio::join!(check_servers(subjects, shutdown), archive::of(archive), service);
    found.extend(archive);
    found.extend(service);
    found
}

async fn check_servers(subjects: &Subjects, shutdown: &Shutdown) -> Vec<Finding> {
    let (config, inboxes) = (&subjects.settings, &subjects.inboxes);
    let mut found = Vec::new();
    let mut there = PostgresFacts::default();
    let connect = config.connect.clone().with_patience(ANSWER_TIMEOUT);
    let (replication, sql) = tokio::join!(replicates(&connect), connect_sql(&connect));
    let sql = match sql {
        // The rest is checked also through a pooler: nothing is set there.
        Err(error @ PgError::SharedBackend) => {
            found.push(unusable("connection", &error));
            connect_shared(&connect).await
        }
        sql => sql,
    };
    let admin = Admin::connect(&config.pubsub.publisher.endpoint);
    let admin = admin.map_err(|error| unusable("Pub/Sub", &error));
    let is_pooler = matches!(replication, Err(PgError::Pooler));
    if let Err(error) = &replication {
        found.push(unusable("replication connection", error));
    }
    match (&replication, sql) {
        (_, Ok(client)) => {
            let all_checks = async {
                let facts = check_postgres(&client, config, &mut found).await;
                if replication.is_ok() {
                    found.iter_mut().for_each(with_replication);
                }
                if subjects.maintenance.older_than.is_some() {
                    found.extend(retention::of(&client, &config.relay.outbox.tables).await);
                }
                Ok(facts)
            };
            let all_checks = attended(&connect, &client, all_checks, shutdown).await;
            client.close().await;
            match all_checks {
                Ok(facts) => there = facts,
                Err(error) => found.push(unusable("connection", &error)),
            }
        }
        // The same failure is already reported for the replication connection.
        (Err(_), Err(_)) if !is_pooler => {}
        (_, Err(error)) => found.push(unusable("connection", &error)),
    }
    there.routes = there.routes.or_else(|| routes::constant_topic(&config.relay.router));
    if !inboxes.is_empty() {
        let in_outbox_database = std::mem::take(&mut there.consumers);
        there.consumers = in_outbox_database.replaced_by(inboxes).await;
    }
    let consumers = std::mem::take(&mut there.consumers);
    check_pubsub(config, admin, there, &mut found).await;
    found.extend(consumers.findings(&config.pubsub.publisher.endpoint).await);
    found
}

/// Checks the OpenTelemetry collector. The relay publishes without it, so the finding is at most a
/// warning.
async fn collector(settings: Option<OtlpSettings>) -> Option<Finding> {
    let settings = settings?;
    let subject = format!("collector {}", settings.endpoint);
    let answer = try_out(settings, ANSWER_TIMEOUT).await;
    Some(collector_finding(subject, answer))
}

fn collector_finding(subject: String, answer: Result<(), CollectorCheckError>) -> Finding {
    let fix = match &answer {
        Ok(()) => "",
        Err(CollectorCheckError::Settings(_)) => {
            "correct OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_CERTIFICATE"
        }
        Err(CollectorCheckError::Refused(_)) => {
            "what authenticates goes into OTEL_EXPORTER_OTLP_HEADERS"
        }
        Err(CollectorCheckError::Away(_)) => {
            "start it, or correct OTEL_EXPORTER_OTLP_ENDPOINT: the port of OTLP over gRPC, mostly 4317, with http:// \
             without TLS and https:// with it; rows are published all the same"
        }
    };
    match answer {
        Ok(()) => Finding::passed("collector", subject, "takes telemetry"),
        Err(error) => {
            Finding::warning(Code::CollectorUnusable, subject, error.to_string()).fix(fix)
        }
    }
}

/// Opens a replication connection. This check comes first: behind a pooler all later findings would
/// be misleading.
async fn replicates(connect: &ConnectConfig) -> Result<(), PgError> {
    let mut replication = ReplicationConnection::connect(connect, &[]).await?;
    replication.identify_system().await.map(drop)
}

/// Corrects the finding about the role's attribute: the replication connection was opened, and a
/// server may have other rules than Postgres.
fn with_replication(finding: &mut Finding) {
    if finding.error_code() == Some(Code::ReplicationPermissionMissing) {
        let subject = std::mem::take(&mut finding.subject);
        *finding = Finding::passed("replication-permission", subject, "may replicate");
    }
}

async fn check_postgres(
    client: &SqlClient,
    config: &Settings,
    found: &mut Vec<Finding>,
) -> PostgresFacts {
    match findings(client, &config.relay).await {
        Ok(findings) => found.extend(findings),
        Err(error) => found.push(unusable("connection", &error)),
    }
    found.extend(anchors::of(client, &config.relay.outbox.slot).await);
    found.extend(partitions::of(client, &config.relay.outbox.tables).await);
    let tables = &config.relay.outbox.tables;
    let router = &config.relay.router;
    // A missing table is already a finding.
    let payloads = schemas::payloads(client, router, tables).await.unwrap_or_default();
    let consumers = Consumers::in_outbox_database(client).await;
    let mut rows = RowsReadable::Rows;
    let routes = match routes::of_rows(client, router, &config.relay.outbox).await {
        Ok(routes) => Some(routes),
        Err(ProtocolError::Admin(error @ AdminError::Sql(SqlError::RowsHidden { .. }))) => {
            rows = RowsReadable::Hidden(error.to_string());
            None
        }
        // Missing tables are already findings, and the relay itself needs no permission to read
        // them.
        Err(
            ProtocolError::Postgres(PgError::Server(_))
            | ProtocolError::Admin(AdminError::Sql { .. }),
        ) => {
            rows = RowsReadable::NoRows;
            None
        }
        Err(error) => {
            found.push(unusable("connection", &error));
            rows = RowsReadable::Unasked;
            None
        }
    };
    PostgresFacts { routes, rows, payloads, consumers }
}

/// Returns the findings about the slot, and with shards about all of them: a row that one shard's
/// publication excludes must be in another's.
async fn findings(client: &SqlClient, relay: &RelaySettings) -> Result<Vec<Finding>, Error> {
    let request = preflight_request(relay);
    let own = match relay.outbox.shard.is_whole() {
        true => read_sharding(client, &relay.outbox).await?.count().unwrap_or(1),
        false => relay.outbox.shard.count(),
    };
    let mut shards = relay.outbox.shards(own);
    if let Some(first) = shards.iter().position(|shard| *shard == relay.outbox) {
        shards.swap(0, first);
    }
    let mut findings = Vec::new();
    for outbox in shards {
        let (slot, shard) = (outbox.slot.clone(), outbox.shard);
        let mut found = preflight(client, &PreflightRequest { outbox, ..request.clone() }).await?;
        add_fixes(&mut found);
        // The findings about the server and the tables are those of the first shard again.
        found.retain(|finding| !is_known(&findings, finding));
        found.extend(dead_rows::of(client, &slot).await);
        if let Some(stop) = recorded_stop::of(client, &slot).await {
            // The relay that would finish an operation cannot pass this row.
            if stop.result == CheckResult::Error(Code::RowUnreadable) {
                let pending = CheckResult::Warning(Code::OperationUnfinished);
                found.retain(|finding| finding.result != pending);
                findings.retain(|finding: &Finding| finding.result != pending);
            }
            // A slot that lacks rows has its own fix. The relay's is for a slot that lacks none.
            let lacks_rows = found.iter().any(|it| it.code() == Some(Code::SlotLost));
            if !lacks_rows || stop.code() != Some(Code::PublicationChanged) {
                found.push(stop);
            }
        }
        found.iter_mut().for_each(|finding| finding.fix = with_shard(&finding.fix, shard));
        findings.extend(found);
    }
    findings.extend(server::findings(client, relay.wal_budget).await?);
    Ok(findings)
}

/// Returns whether a finding says the same as an earlier one. The fixes may name different shards.
fn is_known(findings: &[Finding], new: &Finding) -> bool {
    let said = |it: &Finding| (it.result, it.subject.clone(), it.message.clone());
    findings.iter().any(|known| said(known) == said(new))
}

async fn check_pubsub(
    config: &Settings,
    admin: Result<Admin, Finding>,
    PostgresFacts { routes, rows, payloads, .. }: PostgresFacts,
    found: &mut Vec<Finding>,
) {
    let Routes { topics, nowhere } = routes.unwrap_or_default();
    if let Some(nowhere) = nowhere {
        found.push(invalid_topic_finding(&nowhere));
    }
    if let Some(finding) = region(&config.pubsub, &config.relay.router) {
        found.push(finding);
    }
    let admin = match admin {
        Ok(admin) => admin,
        Err(finding) => return found.push(finding),
    };
    if topics.is_empty() {
        // The needed topics are unknown, but a probe still shows whether Pub/Sub answers.
        let probe = routes::full_name(&config.relay.router.project, "walrelay-check");
        let answer = admin.topic_exists(&probe).await;
        let finding =
            answer.map_or_else(|error| unusable("Pub/Sub", &error), |_| without_topics(&rows));
        found.push(finding);
    }
    for topic in topics {
        let answer = admin.topic(&topic).await;
        // If Pub/Sub rejects this topic's name, the other topics may still be valid.
        let goes_on = answer.as_ref().map_or_else(PubsubError::is_about_the_name, |_| true);
        let schema = answer.as_ref().ok().and_then(|it| it.as_ref()?.schema_settings.as_ref());
        let schema = schema.map(|schema| schemas::about(&topic, schema, &payloads));
        found.push(topic_finding(&topic, answer.map(|it| it.is_some())));
        if let Some(schema) = schema {
            found.push(schema);
        }
        if !goes_on {
            break;
        }
    }
}

/// Whether the check could read the outbox rows, from which the topics are derived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum RowsReadable {
    /// Postgres does not answer, which is a finding of its own.
    #[default]
    Unasked,
    Rows,
    NoRows,
    /// Row level security hides the rows. Holds the message.
    Hidden(String),
}

/// The finding when Pub/Sub answers but the needed topics are unknown.
fn without_topics(rows: &RowsReadable) -> Finding {
    let subject = "Pub/Sub".to_owned();
    let unknown = "answers; topics are derived from the rows of the outbox, and those could not be read: \
                   whether the topics are there is not known";
    match rows {
        RowsReadable::Unasked => Finding::passed("pubsub", subject, unknown),
        RowsReadable::Rows => {
            let message = "answers; no topic checked: topics are derived from outbox rows, and no row leads to one";
            Finding::passed("pubsub", subject, message)
        }
        RowsReadable::NoRows => {
            let fix = "fix the findings above, or GRANT SELECT on the outbox table to this role, with CREATE POLICY … \
                       ON that table FOR SELECT TO role USING (true), and check again";
            Finding::warning(Code::TopicsUnknown, subject, unknown).fix(fix)
        }
        RowsReadable::Hidden(reason) => {
            let message = format!("{unknown}: {reason}");
            let fix = "create the policy, and check again; streaming needs none";
            Finding::warning(Code::TopicsUnknown, subject, message).fix(fix)
        }
    }
}

fn topic_finding(topic: &str, answer: Result<bool, PubsubError>) -> Finding {
    let subject = format!("topic {topic}");
    match answer {
        Ok(true) => Finding::passed("topic", subject, "exists"),
        Ok(false) => {
            let fix = creation_of(topic);
            Finding::error(Code::TopicNotFound, subject, "does not exist").fix(fix)
        }
        Err(error) if error.is_about_the_name() => {
            let message = Chain(&error).to_string();
            Finding::warning(Code::TopicNameInvalid, subject, message).fix(INVALID_TOPIC_FIX)
        }
        Err(error) => unusable("Pub/Sub", &error),
    }
}

/// A warning only: `run` starts, and continues past such rows.
fn invalid_topic_finding(nowhere: &InvalidTopicRows) -> Finding {
    Finding::warning(Code::TopicNameInvalid, "outbox rows", invalid_topic_text(nowhere))
        .fix(INVALID_TOPIC_FIX)
}

/// Warns about the global endpoint: order holds only while all instances publish into one region.
fn region(pubsub: &PubSubSettings, router: &RouterConfig) -> Option<Finding> {
    let is_ordered = !router.ordering_key.to_string().is_empty();
    (is_ordered && pubsub.publisher.endpoint.is_global()).then(|| {
        Finding::warning(
            Code::PubsubEndpointGlobal,
            "endpoint",
            "rows have ordering keys and no region is pinned: order holds only within one region",
        )
        .fix("set --endpoint https://REGION-pubsub.googleapis.com")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replication_connection_that_opens_proves_the_permission() {
        let code = Code::ReplicationPermissionMissing;
        let mut missing = Finding::error(code, "role relay", "has no REPLICATION attribute");
        with_replication(&mut missing);
        assert_eq!(missing.result, CheckResult::Passed("replication-permission"));
        let mut other = Finding::error(Code::SlotLost, "slot walrelay", "is lost");
        with_replication(&mut other);
        assert_eq!(other.error_code(), Some(Code::SlotLost));
    }

    #[test]
    fn a_finding_of_another_shard_is_new_only_if_it_says_something_else() {
        let slot = |name: &str| {
            Finding::error(Code::SlotLost, format!("slot {name}"), "is lost").fix("--shard")
        };
        let server = || Finding::passed("wal-senders", "setting max_wal_senders", "1 of 10 in use");
        let known = [slot("walrelay_0_of_2"), server()];
        assert!(is_known(&known, &server()));
        assert!(is_known(&known, &slot("walrelay_0_of_2").fix("--shard 1/2")));
        assert!(!is_known(&known, &slot("walrelay_1_of_2")));
    }

    #[test]
    fn what_could_not_be_looked_at_is_not_told_as_fine() {
        let unread = without_topics(&RowsReadable::NoRows);
        let unknown = CheckResult::Warning(Code::TopicsUnknown);
        assert_eq!(unread.result, unknown);
        assert!(unread.message.contains("could not be read") && !unread.fix.is_empty());
        assert!(unread.fix.contains("GRANT SELECT") && unread.fix.contains("CREATE POLICY"));
        let hidden = without_topics(&RowsReadable::Hidden("row level security hides …".to_owned()));
        assert_eq!(hidden.result, unknown);
        assert!(hidden.message.ends_with("row level security hides …"), "{}", hidden.message);
        let unasked = without_topics(&RowsReadable::default());
        assert_eq!(unasked.result, CheckResult::Passed("pubsub"), "Postgres is the finding");
        assert_eq!(without_topics(&RowsReadable::Rows).result, CheckResult::Passed("pubsub"));
    }
}
