//! The reasons of the server why rows do not flow.

use pgoutput_parser::Lsn;
use walrelay_errors::Code;
use walrelay_outbox_store::{Reason, ReasonKind};
use walrelay_pg_client::ServerError;

use crate::stream::unsent_wal::UNSENT_AGE_MAX;

/// The next step, if the server names no cause.
const FIND_THE_WAIT: &str = "read wait_event of the walsender in pg_stat_activity; for a failover slot, correct \
     synchronized_standby_slots or start the standby that it names";

/// The next step for commits that wait.
const FREE_THE_COMMITS: &str = "start the standby of synchronous_standby_names, or take it out and run SELECT pg_reload_conf()";

/// Sessions that the server ended one after the other at the same settled position.
#[derive(Debug)]
struct BrokenOff {
    sessions: u32,
    settled: Lsn,
    reason: Reason,
}

/// The reasons of the server why rows do not flow.
#[derive(Debug)]
pub(super) struct ServerReasons {
    pub(super) stalls: Vec<Reason>,
    broken_off: Option<BrokenOff>,
    /// The settled position, through all sessions.
    settled: Lsn,
}

impl ServerReasons {
    pub(super) const fn new() -> Self {
        Self { stalls: Vec::new(), broken_off: None, settled: Lsn::ZERO }
    }

    /// Forgets what the last sessions found.
    pub(super) fn clear(&mut self) {
        self.stalls.clear();
        self.broken_off = None;
    }

    /// Records the error that ended a session.
    pub(super) fn broken_off(&mut self, text: &str, code: &str) {
        let settled = self.settled;
        let before = self.broken_off.as_ref().filter(|it| it.settled == settled);
        let sessions = before.map_or(0, |it| it.sessions) + 1;
        let text = format!("every session ends at the same position: {text}");
        let reason = Reason::new(ReasonKind::ServerStalled, text).with_code(code);
        self.broken_off = Some(BrokenOff { sessions, settled, reason });
    }

    /// Records the settled position. Returns whether a reason has ended.
    pub(super) fn settled(&mut self, lsn: Lsn) -> bool {
        self.settled = self.settled.max(lsn);
        self.broken_off.take_if(|it| lsn > it.settled).is_some()
    }

    /// Returns the reasons. One session that ends may be an accident.
    pub(super) fn all(&self) -> impl Iterator<Item = Reason> {
        let broken_off = self.broken_off.as_ref().filter(|it| it.sessions > 1);
        self.stalls.iter().cloned().chain(broken_off.map(|it| it.reason.clone()))
    }
}

/// Returns the reason of a server that does not send.
pub(super) fn unsent(notice: Option<&ServerError>) -> Reason {
    let seconds = UNSENT_AGE_MAX.as_secs();
    let text = format!("the server has WAL that it has not sent for more than {seconds} s");
    let text = match notice {
        Some(notice) => format!("{text}; its last notice: {notice}"),
        None => text,
    };
    reason(text, FIND_THE_WAIT)
}

/// Returns the reason of commits that wait for a synchronous standby.
pub fn commits_wait() -> Reason {
    let seconds = UNSENT_AGE_MAX.as_secs();
    let text = format!("a commit has waited for a synchronous standby for more than {seconds} s");
    reason(text, FREE_THE_COMMITS)
}

fn reason(text: String, fix: &str) -> Reason {
    let reason = Reason::new(ReasonKind::ServerStalled, text);
    reason.with_fix(fix).with_code(Code::ServerStalled.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_that_the_server_ends_without_progress_are_a_reason_until_something_is_settled() {
        let mut reasons = ServerReasons::new();
        let text = "terminating connection due to transaction timeout (25P04)";
        let end = |of: &mut ServerReasons| of.broken_off(text, "server-error");
        assert!(!reasons.settled(Lsn::new(16)));
        end(&mut reasons);
        assert_eq!(reasons.all().count(), 0, "once is an accident");
        end(&mut reasons);
        assert!(!reasons.settled(Lsn::new(16)));
        let found: Vec<_> = reasons.all().map(|reason| reason.text).collect();
        assert_eq!(found, [format!("every session ends at the same position: {text}")]);
        assert!(reasons.settled(Lsn::new(17)));
        assert_eq!(reasons.all().count(), 0);
        end(&mut reasons);
        assert_eq!(reasons.all().count(), 0, "there was progress in between");
    }
}
