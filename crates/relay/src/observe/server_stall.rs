//! Reports a server that does not send its WAL, or does not end commits.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use prometheus_client::metrics::gauge::Gauge;
use walrelay_errors::Code;
use walrelay_outbox_store::Reason;
use walrelay_pg_client::ServerError;

use crate::observe::health::Health;
use crate::observe::server_reasons::{commits_wait, unsent};
use crate::stream::unsent_wal::{Arrived, UNSENT_AGE_MAX, UnsentWal};
use crate::stream::wal_end::Measured;

/// Reports that the server does not send, or that its commits wait.
#[derive(Debug)]
pub struct ServerStalls {
    unsent: UnsentWal,
    age: AgeGauge,
    health: Health,
    reported: Vec<Reason>,
}

/// A gauge of seconds.
type AgeGauge = Gauge<f64, AtomicU64>;

impl ServerStalls {
    pub(super) fn new(age: AgeGauge, health: Health) -> Self {
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
            stalls.push(unsent(notice));
        }
        if measured.commit_wait >= UNSENT_AGE_MAX {
            stalls.push(commits_wait());
        }
        if stalls == self.reported {
            return;
        }
        for stall in stalls.iter().filter(|stall| !self.reported.contains(stall)) {
            let (error_code, fix) = (Code::ServerStalled.name(), stall.fix.as_deref());
            tracing::warn!(error_code, fix, "{}", stall.text);
        }
        if stalls.is_empty() {
            tracing::info!("the server sends and commits again");
        }
        self.reported.clone_from(&stalls);
        self.health.set_server_stalls(stalls);
    }
}

impl Health {
    /// Sets the reasons why the server does not send, or its commits wait.
    pub fn set_server_stalls(&self, stalls: Vec<Reason>) {
        self.change_server_reasons(|reasons| reasons.stalls = stalls);
    }

    /// Records the error that ended a session. It is a reason if it happens again before anything
    /// further is settled.
    pub fn broken_off(&self, text: &str, code: &str) {
        self.change_server_reasons(|reasons| reasons.broken_off(text, code));
    }
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
        let mut stalls = ServerStalls::new(AgeGauge::default(), health.clone());
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
