//! Findings about limits that no session of the relay can change.

use std::time::Duration;

use walrelay_errors::Code;
use walrelay_pg_client::{LimitHandling, SESSION_LIMITS, quote_identifier};

use super::facts::{Facts, RoleFacts};
use super::finding::Findings;

/// The connections that a relay may have at a time: the stream, dispatch state, the end of the WAL,
/// maintenance, anchors, and one that cancels or asks.
const CONNECTIONS_NEEDED: i32 = 6;

/// A password that ends within this time is reported.
const EXPIRY_NOTICE: Duration = Duration::from_hours(30 * 24);

/// The settings to read. The limit of retained WAL has findings of its own.
pub(super) fn reported_settings() -> Vec<&'static str> {
    let reported = SESSION_LIMITS.iter().filter(|it| it.handling == LimitHandling::Reported);
    reported.map(|it| it.name).filter(|name| *name != "max_slot_wal_keep_size").collect()
}

/// Reports each limit that is in force.
pub(super) fn limit_findings(findings: &mut Findings, facts: &Facts) {
    let start = findings.len();
    for (name, value) in &facts.server.limits {
        let limit = SESSION_LIMITS.iter().find(|limit| limit.name == name);
        if let Some(limit) = limit.filter(|limit| limit.off != value) {
            findings.warning(
                Code::ServerUnsuitable,
                &format!("setting {name}"),
                format!("is {value}: {}", consequence(name)),
                format!(
                    "as a superuser: ALTER SYSTEM SET {name} = {}, then {}",
                    limit.off,
                    apply(name)
                ),
            );
        }
    }
    role_findings(findings, &facts.role);
    if findings.len() == start {
        findings.ok("session-limits", "server", "no limit ends the relay's sessions");
    }
}

fn apply(setting: &str) -> &'static str {
    match setting {
        "old_snapshot_threshold" => "restart the server",
        _ => "SELECT pg_reload_conf()",
    }
}

fn consequence(setting: &str) -> &'static str {
    match setting {
        "temp_file_limit" => {
            "a statement that sorts more than this fails, such as one of a recovery"
        }
        "old_snapshot_threshold" => "a recovery that reads for longer fails",
        "idle_replication_slot_timeout" => {
            "the slot is lost if no relay streams it for this long, for example in a maintenance"
        }
        _ => "it may end a session of the relay",
    }
}

fn role_findings(findings: &mut Findings, role: &RoleFacts) {
    let subject = format!("role {}", role.name);
    let name = quote_identifier(&role.name);
    if let Some(max) = role.connections_max.filter(|max| *max < CONNECTIONS_NEEDED) {
        findings.warning(
            Code::ServerUnsuitable,
            &subject,
            format!("it or the database allows {max} connections, and a relay may need {CONNECTIONS_NEEDED}"),
            format!("ALTER ROLE {name} CONNECTION LIMIT -1, and the same for the database"),
        );
    }
    if let Some(left) = role.password_left.filter(|left| *left < EXPIRY_NOTICE) {
        let days = left.as_secs() / 86_400;
        findings.warning(
            Code::ServerUnsuitable,
            &subject,
            format!("its password is valid for {days} more days; new connections fail afterwards"),
            format!("ALTER ROLE {name} VALID UNTIL 'infinity', or set a new password and time"),
        );
    }
}
