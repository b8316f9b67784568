//! The settings of the relay, for `run` and `check`.

use std::net::{Ipv4Addr, SocketAddr};

use walrelay_core::{OnDead, WalBudgetLimit};
use walrelay_relay::settings::{RelaySettings, Settings, Until};

use super::builder::ConfigBuilder;
use super::command::{OnSlotLost, RunConfig};
use super::problem::Problems;
use crate::options;
use crate::options::units::{parse_size, show_duration};

impl ConfigBuilder<'_> {
    /// Reads the configuration of `run`, which `check` also uses.
    pub(super) fn run(&mut self, until: Until, on_slot_lost: OnSlotLost) -> Option<RunConfig> {
        let connect = self.connect();
        let relay = self.relay();
        self.require_project(&relay.router);
        let pubsub = self.pubsub();
        let http = self.http();
        let settings = Settings { connect: connect?, relay, pubsub, until };
        Some(RunConfig { settings, on_slot_lost, anchor_keep: None, http, otlp: None })
    }

    fn relay(&mut self) -> RelaySettings {
        let outbox = self.outbox();
        let router = self.router();
        let problems = &mut self.problems;
        let relay = RelaySettings {
            outbox,
            router,
            park_after: problems.read(options::PARK_AFTER),
            max_attempts: problems.read(options::MAX_ATTEMPTS),
            on_dead: match problems.read(options::ON_DEAD) {
                "hold" => OnDead::Hold,
                _ => OnDead::Continue,
            },
            max_in_flight_bytes: problems.read(options::MAX_IN_FLIGHT_BYTES).0,
            wal_budget: wal_budget(problems),
            drain_timeout: problems.read(options::DRAIN_TIMEOUT),
            take_over_after: problems.read(options::TAKE_OVER_AFTER),
            status_interval: problems.read(options::STATUS_INTERVAL),
            wal_sender_timeout: problems.read(options::WAL_SENDER_TIMEOUT),
            dispatch_retention: problems.read(options::DISPATCH_RETENTION),
        };
        self.require_status_interval(&relay);
        relay
    }

    /// Requires three status updates per `wal_sender_timeout`, because the server ends a silent
    /// session. Two updates may then be lost.
    pub(super) fn require_status_interval(&mut self, relay: &RelaySettings) {
        if relay.status_interval > relay.wal_sender_timeout / 3 {
            let allowed = "at most a third of --wal-sender-timeout";
            let interval = show_duration(relay.status_interval);
            self.problems.wrong("status-interval", &interval, allowed);
        }
    }

    /// Returns the HTTP address. `--http` wins over the variable PORT, in which Cloud Run passes
    /// the port that it probes.
    pub(super) fn http(&mut self) -> Option<SocketAddr> {
        if let Some(address) = self.problems.read(options::HTTP) {
            return self.problems.listen_address("http", &address);
        }
        let port = self.environment.get("PORT")?;
        match port.parse::<u16>() {
            Ok(port) => Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
            Err(_) => {
                let allowed = format!("{port:?} is not a port; correct it, or set --http off");
                self.problems.wrong_variable("PORT", &allowed);
                None
            }
        }
    }
}

/// Smallest budget in bytes. A smaller budget would spill rows at every short delay, because a WAL
/// segment has 16 MiB.
const WAL_BUDGET_MIN: u64 = 1 << 20;

pub(super) fn wal_budget(problems: &mut Problems<'_>) -> WalBudgetLimit {
    let text = problems.read(options::WAL_BUDGET);
    let bytes = match text.as_str() {
        "auto" => return WalBudgetLimit::Auto,
        "off" => return WalBudgetLimit::Off,
        size => parse_size(size).filter(|bytes| *bytes >= WAL_BUDGET_MIN),
    };
    bytes.map_or_else(
        || {
            problems.wrong("wal-budget", &text, "`auto`, `off`, or a size from 1MiB, as in 2GiB");
            WalBudgetLimit::Auto
        },
        WalBudgetLimit::Bytes,
    )
}
