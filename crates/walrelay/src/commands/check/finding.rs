//! The constructor of findings and the timeout, for every part of the check.

use std::time::Duration;

use walrelay_outbox_admin::{Finding, Severity};

/// Time after which a server counts as unreachable. A person waits for the result.
pub(in crate::commands) const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn finding(
    code: &'static str,
    severity: Severity,
    subject: String,
    message: &str,
    fix: &str,
) -> Finding {
    Finding { code, severity, subject, message: message.to_owned(), fix: fix.to_owned() }
}
