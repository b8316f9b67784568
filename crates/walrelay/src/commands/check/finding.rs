//! What every part of a check makes its findings with.

use std::time::Duration;

use walrelay_outbox_admin::{Finding, Severity};

/// A person waits for the result, so what does not answer within this counts as unreachable.
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
