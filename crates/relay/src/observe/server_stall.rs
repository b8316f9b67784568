//! Reports a server that does not send its WAL, or does not end commits.

use std::time::Instant;

use walrelay_errors::Code;
use walrelay_outbox_store::{Reason, ReasonKind};
use walrelay_pg_client::ServerError;

use crate::observe::health::{Health, Problem};
use crate::observe::metrics::Seconds;
use crate::stream::unsent_wal::{Arrived, UNSENT_AGE_MAX, UnsentWal};
use crate::stream::wal_end::Measured;

/// The next step, if the server names no cause.
const FIND_THE_WAIT: &str = "read wait_event of the walsender in pg_stat_activity; for a failover slot, correct \
     synchronized_standby_slots or start the standby that it names";

/// The next step for commits that wait.
const FREE_THE_COMMITS: &str = "start the standby of synchronous_standby_names, or take it out and run SELECT pg_reload_conf()";

#[derive(Debug)]
pub struct ServerStalls {
    unsent: UnsentWal,
    age: Seconds,
    health: Health,
    reported: Vec<(Problem, Reason)>,
}

impl ServerStalls {
    pub(super) fn new(age: Seconds, health: Health) -> Self {
        Self { unsent: UnsentWal::default(), age, health, reported: Vec::new() }
    }

    /// Takes a measurement, and the last notice of the server. Logs stalls that are new.
    pub fn measured(
        &mut self,
        measured: &Measured,
        (arrived, notice): (Arrived, Option<&ServerError>),
        now: Instant,
    ) {
        let unsent_age = self.unsent.measured(measured, arrived, now);
        self.age.set(unsent_age.as_secs_f64());
        let mut stalls = Vec::new();
        if unsent_age >= UNSENT_AGE_MAX {
            stalls.push((Problem::Unsent, unsent(notice)));
        }
        if measured.commit_wait >= UNSENT_AGE_MAX {
            stalls.push((Problem::CommitsWait, commits_wait()));
        }
        if stalls == self.reported {
            return;
        }
        for it in stalls.iter().filter(|it| !self.reported.contains(it)) {
            let (_, stall) = it;
            let (error_code, fix) = (Code::ServerStalled.name(), stall.fix.as_deref());
            tracing::warn!(error_code, fix, "{}", stall.text);
        }
        if stalls.is_empty() {
            tracing::info!("the server sends and commits again");
        }
        self.reported.clone_from(&stalls);
        let is_stall = |it: &Problem| matches!(it, Problem::Unsent | Problem::CommitsWait);
        self.health.replace(is_stall, stalls);
    }
}

/// Returns the reason of a server that does not send.
fn unsent(notice: Option<&ServerError>) -> Reason {
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
    use std::time::Duration;

    use pgoutput_parser::Lsn;
    use walrelay_core::WalRetentionLimit;

    use super::*;
    use crate::observe::health::Phase;
    use crate::stream::wal_end::SenderState;

    fn texts(health: &Health) -> Vec<String> {
        health.reasons_not_ready().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_stall_is_reported_with_the_last_notice_once_and_its_end_also() {
        let health = Health::new();
        health.set_phase(Phase::Streaming);
        let mut stalls = ServerStalls::new(Seconds::default(), health.clone());
        let start = Instant::now();
        let notice = ServerError {
            message: "replication slot \"standby\" does not exist".to_owned(),
            ..ServerError::default()
        };
        // The server has WAL up to 200, and sends none after 100.
        let mut measured = |to, commit_wait, said, seconds| {
            let wal = Measured {
                sender: SenderState::Waiting,
                commit_wait: Duration::from_secs(commit_wait),
                ..Measured::new(Lsn::new(200), WalRetentionLimit::Unlimited)
            };
            let arrived = Arrived { to: Lsn::new(to), wal_count: 0, is_reading: true };
            stalls.measured(&wal, (arrived, said), start + Duration::from_secs(seconds));
            texts(&health)
        };
        measured(100, 0, None, 0);
        assert!(measured(100, 1, Some(&notice), 19).is_empty());
        let told = measured(100, 1, Some(&notice), 20);
        assert!(told[0].contains(&notice.message), "{told:?}");
        assert_eq!(measured(200, 30, None, 21), [commits_wait().to_string()]);
        assert!(measured(200, 1, None, 22).is_empty());
    }
}
