//! Reports a server that does not send its WAL, or does not end commits.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use walrelay_errors::Code;
use walrelay_outbox_store::Reason;
use walrelay_pg_client::ServerError;

use crate::observe::health::Health;
use crate::observe::server_reasons::{commits_wait, unsent};
use crate::stream::unsent_wal::UNSENT_AGE_MAX;

/// Reports that the server does not send, or that its commits wait.
#[derive(Debug)]
pub struct ServerStalls {
    age: AgeGauge,
    health: Health,
    reported: Vec<Reason>,
}

/// A gauge of seconds.
type AgeGauge = Gauge<f64, AtomicU64>;

impl ServerStalls {
    pub(super) const fn new(age: AgeGauge, health: Health) -> Self {
        Self { age, health, reported: Vec::new() }
    }

    /// Takes a measurement. `notice` is the last text of the server. Logs stalls that are new.
    pub fn measured(
        &mut self,
        unsent_age: Duration,
        commit_wait: Duration,
        notice: Option<&ServerError>,
    ) {
        self.age.set(unsent_age.as_secs_f64());
        let mut stalls = Vec::new();
        if unsent_age >= UNSENT_AGE_MAX {
            stalls.push(unsent(notice));
        }
        if commit_wait >= UNSENT_AGE_MAX {
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

    /// Records that the server ended a session with this text. It is a reason if it happens again
    /// before anything further is settled.
    pub fn broken_off(&self, text: &str, code: &str) {
        self.change_server_reasons(|reasons| reasons.broken_off(text, code));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::health::Phase;

    fn texts(health: &Health) -> Vec<String> {
        health.reasons_not_ready().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_stall_is_reported_with_the_last_notice_once_and_its_end_also() {
        let health = Health::new();
        health.set_phase(Phase::Streaming);
        let mut stalls = ServerStalls::new(AgeGauge::default(), health.clone());
        let second = Duration::from_secs(1);
        let notice = ServerError {
            message: "replication slot \"standby\" does not exist".to_owned(),
            ..ServerError::default()
        };
        stalls.measured(second * 19, second, Some(&notice));
        assert!(texts(&health).is_empty());
        stalls.measured(second * 20, second, Some(&notice));
        assert!(texts(&health)[0].contains(&notice.message), "{:?}", texts(&health));
        stalls.measured(second, second * 30, None);
        assert_eq!(texts(&health), [commits_wait().to_string()]);
        stalls.measured(second, second, None);
        assert!(texts(&health).is_empty());
    }
}
