//! `walrelay check`: everything `run` would stumble over, each with its fix; changes nothing.

use serde_json::{Value, json};
use walrelay_core::RouterConfig;
use walrelay_postgres::{
    Finding, PgError, ReplicationConnection, Severity, SqlClient, StoreError, code, connect_sql,
    preflight,
};
use walrelay_pubsub::{Admin, PubsubError};
use walrelay_relay::lifecycle::gate::preflight_request;
use walrelay_relay::policy::{Chain, Exit};
use walrelay_relay::settings::{PubSubSettings, Settings};

use super::topics;
use crate::config::{CheckConfig, OutputFormat};
use crate::error::Error;
use crate::output::print;

/// The codes of findings about Pub/Sub; those about Postgres are in `walrelay_postgres::code`.
const PUBSUB_REGION: &str = "pubsub_region";
const PUBSUB_ACCESS: &str = "pubsub_access";
const TOPIC_MISSING: &str = "topic_missing";
const TOPIC: &str = "topic";

/// Prints every finding.
///
/// # Errors
///
/// Something would keep `run` from running, or Postgres cannot be reached at all.
pub async fn execute(config: CheckConfig) -> Result<(), Error> {
    let findings = look(&config.run.settings).await?;
    print(&match config.format {
        OutputFormat::Json => format!("{:#}\n", json!({ "findings": json_of(&findings) })),
        OutputFormat::Text => findings.iter().map(text_of).collect(),
    })?;
    let errors: Vec<&Finding> = findings.iter().filter(|f| f.severity == Severity::Error).collect();
    match errors.first() {
        None => Ok(()),
        Some(first) => Err(Error::Findings { count: errors.len(), exit: exit_of(first.code) }),
    }
}

async fn look(config: &Settings) -> Result<Vec<Finding>, Error> {
    // First of all: what comes after would only puzzle whoever talks to a pooler.
    let mut replication = ReplicationConnection::connect(&config.connect, &[]).await?;
    replication.identify_system().await?;
    drop(replication);
    let client = connect_sql(&config.connect).await?;
    let findings = look_with(&client, config).await;
    client.close().await;
    findings
}

async fn look_with(client: &SqlClient, config: &Settings) -> Result<Vec<Finding>, Error> {
    let mut findings = preflight(client, &preflight_request(&config.relay)).await?;
    findings.extend(region(&config.pubsub, &config.relay.router));
    let tables = &config.relay.outbox_tables;
    let topics = match topics::of_rows(client, &config.relay.router, tables).await {
        Ok(topics) => topics,
        // Missing tables and rights are findings already.
        Err(Error::Postgres(PgError::Server(_)) | Error::Store(StoreError::Sql { .. })) => {
            return Ok(findings);
        }
        Err(error) => return Err(error),
    };
    let admin = match Admin::connect(&config.pubsub.publisher.endpoint).await {
        Ok(admin) => admin,
        Err(error) => {
            findings.push(no_access(&error));
            return Ok(findings);
        }
    };
    for topic in topics {
        findings.push(match admin.topic_exists(&topic).await {
            Ok(true) => finding(TOPIC, Severity::Ok, format!("topic {topic}"), "exists", ""),
            Ok(false) => {
                let fix = "walrelay init --create-topics, or gcloud pubsub topics create";
                let subject = format!("topic {topic}");
                finding(TOPIC_MISSING, Severity::Error, subject, "does not exist", fix)
            }
            Err(error) => {
                findings.push(no_access(&error));
                break;
            }
        });
    }
    Ok(findings)
}

/// Order holds only while all instances publish into one region.
fn region(pubsub: &PubSubSettings, router: &RouterConfig) -> Option<Finding> {
    let is_ordered = !router.ordering_key.to_string().is_empty();
    (is_ordered && pubsub.publisher.endpoint.is_global()).then(|| {
        finding(
            PUBSUB_REGION,
            Severity::Warning,
            "endpoint".into(),
            "rows have ordering keys and no region is pinned: order holds only within one region",
            "set --endpoint https://REGION-pubsub.googleapis.com",
        )
    })
}

fn no_access(error: &PubsubError) -> Finding {
    let message = Chain(error).to_string();
    let fix = "check credentials, project and network; roles/pubsub.viewer lets check look";
    finding(PUBSUB_ACCESS, Severity::Error, "Pub/Sub".into(), &message, fix)
}

fn finding(
    code: &'static str,
    severity: Severity,
    subject: String,
    message: &str,
    fix: &str,
) -> Finding {
    Finding { code, severity, subject, message: message.to_owned(), fix: fix.to_owned() }
}

fn exit_of(code: &str) -> Exit {
    match code {
        PUBSUB_REGION | PUBSUB_ACCESS | TOPIC_MISSING | TOPIC => Exit::PubSubSetup,
        code::SLOT_LOST => Exit::SlotLost,
        _ => Exit::PostgresSetup,
    }
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok => "ok",
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

fn json_of(findings: &[Finding]) -> Vec<Value> {
    let object = |finding: &Finding| {
        json!({
            "code": finding.code,
            "severity": severity(finding.severity),
            "subject": finding.subject,
            "message": finding.message,
            "fix": finding.fix,
        })
    };
    findings.iter().map(object).collect()
}

fn text_of(finding: &Finding) -> String {
    let line =
        format!("{:<8} {}: {}\n", severity(finding.severity), finding.subject, finding.message);
    match finding.fix.as_str() {
        "" => line,
        fix => format!("{line}         fix: {fix}\n"),
    }
}
