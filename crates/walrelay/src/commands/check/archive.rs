//! The finding about `run --prune-archive`: whether the archive can be written and read.

use crate::error::explain;
use walrelay_errors::{Chain, Coded as _};
use walrelay_outbox_admin::Finding;
use walrelay_outbox_admin::archive::{Archive, try_out};

use super::super::shared::answer_timeout::ANSWER_TIMEOUT;

/// Writes a small object and reads it back. A warning only: `run` publishes without an archive.
pub(super) async fn of(archive: Option<&Archive>) -> Option<Finding> {
    let archive = archive?;
    let subject = format!("archive {}", archive.location);
    Some(match try_out(archive, ANSWER_TIMEOUT).await {
        Ok(()) => Finding::passed("archive", subject, "can be written and read"),
        Err(error) => {
            let fix = explain::fix_of(&error);
            let message = format!("{}; old rows stay in the outbox", Chain(&error));
            Finding::warning(error.code(), subject, message).fix(fix)
        }
    })
}
