//! The longest wait for the answer of a server in a command that reports.

use std::time::Duration;

/// Time after which a server counts as unreachable. A person waits for the result.
pub(in crate::commands) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
