//! Before a session: is the server what the configuration says?

use walrelay_postgres::{Finding, Severity, SqlClient, code, preflight};

use crate::commands::check::preflight_request;
use crate::config::RelayConfig;
use crate::relay_error::RelayError;

/// Findings that pass by themselves: the relay waits for those instead of stopping.
const PASSING: [&str; 3] = [code::SLOT_ACTIVE, code::REPLICATION_SLOTS, code::WAL_SENDERS];

/// Refuses a server that is not set up for this relay; warns about what may become a problem.
///
/// # Errors
///
/// What is not as it should be, all at once, each with its fix.
pub async fn gate(sql: &SqlClient, relay: &RelayConfig) -> Result<(), RelayError> {
    let findings = preflight(sql, &preflight_request(relay)).await.map_err(RelayError::Store)?;
    for finding in findings.iter().filter(|finding| finding.severity == Severity::Warning) {
        tracing::debug!(subject = finding.subject, fix = finding.fix, "{}", finding.message);
    }
    let errors: Vec<_> = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error && !PASSING.contains(&finding.code))
        .collect();
    let Some(first) = errors.first() else { return Ok(()) };
    let summary = errors.iter().map(|finding| text(finding)).collect::<Vec<_>>().join("; ");
    Err(match first.code {
        code::SLOT_LOST | code::SYSTEM_IDENTIFIER => RelayError::SlotLost { summary },
        _ => RelayError::Setup { summary },
    })
}

fn text(finding: &Finding) -> String {
    let Finding { subject, message, fix, .. } = finding;
    match fix.is_empty() {
        true => format!("{subject}: {message}"),
        false => format!("{subject}: {message} (fix: {fix})"),
    }
}
