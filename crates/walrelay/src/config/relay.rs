//! The settings of the relay, for `run` and `check`, and of a replay.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use walrelay_core::{RouterConfig, WalBudgetLimit};
use walrelay_outbox_admin::archive::{Archive, ArchiveLocation, StoreEnvironment};
use walrelay_outbox_admin::lifecycle::preflight_check::shard_key;
use walrelay_outbox_admin::maintenance::Maintenance;
use walrelay_outbox_store::Outbox;
use walrelay_relay::settings::{RelaySettings, Settings, Until};

use super::checks::Checks;
use crate::options::units::show_duration;
use crate::options::{
    HttpOption, PruneArchiveOption, PublishingOptions, RetentionOptions, ServiceOptions,
    StreamOptions,
};

const ONE_KEY: &str = "names no column, so all rows have one key and cannot be divided";

impl Checks<'_> {
    pub(crate) fn settings(&mut self, options: &ServiceOptions, until: Until) -> Option<Settings> {
        let connect = self.connect(&options.database.connection);
        let relay = self.relay(options);
        self.require_project(&relay.router);
        let pubsub = self.pubsub(&options.pubsub);
        let connect = connect?;
        self.note_record_of(&connect, &options.database);
        Some(Settings { connect, relay, pubsub, until })
    }

    fn relay(&mut self, options: &ServiceOptions) -> RelaySettings {
        let outbox = self.outbox(&options.database);
        let router = self.router(&options.messages);
        let relay = &options.relay;
        RelaySettings {
            park_after: relay.park_after,
            max_attempts: relay.max_attempts,
            wal_budget: relay.wal_budget.wal_budget,
            take_over_after: relay.take_over_after.0,
            dispatch_retention: relay.dispatch_retention,
            ..self.streaming(&relay.stream, outbox, router)
        }
    }

    /// Reads the settings of a command that publishes rows again.
    pub(crate) fn publishing(&mut self, options: &PublishingOptions) -> Option<Settings> {
        let connect = self.connect(&options.database.connection);
        let outbox = self.outbox(&options.database);
        let router = self.router(&options.messages);
        let relay = self.streaming(&options.stream, outbox, router);
        let pubsub = self.pubsub(&options.pubsub);
        let connect = connect?;
        self.note_record_of(&connect, &options.database);
        Some(Settings { connect, relay, pubsub, until: Until::CaughtUp })
    }

    /// Returns the settings that a replay shares with the relay. A replay parks no rows and takes
    /// over no slot, so the other settings have no effect.
    pub(crate) fn streaming(
        &mut self,
        options: &StreamOptions,
        outbox: Outbox,
        router: RouterConfig,
    ) -> RelaySettings {
        // The server ends a silent session. Of three status updates, two may be lost.
        if options.status_interval > options.wal_sender_timeout / 3 {
            let allowed = "at most a third of --wal-sender-timeout";
            self.wrong("status-interval", &show_duration(options.status_interval), allowed);
        }
        RelaySettings {
            outbox,
            router,
            park_after: Duration::MAX,
            max_attempts: 1,
            on_dead: options.on_dead,
            max_in_flight_bytes: options.in_flight.max_in_flight_bytes.0,
            wal_budget: WalBudgetLimit::Off,
            drain_timeout: options.in_flight.drain_timeout,
            take_over_after: None,
            status_interval: options.status_interval,
            wal_sender_timeout: options.wal_sender_timeout,
            dispatch_retention: Duration::MAX,
            rate: None,
        }
    }

    /// Requires an ordering key that can distribute rows among shards.
    pub(crate) fn require_dividing_key(&mut self, router: &RouterConfig, shards: u32) {
        if shards > 1 && shard_key(router).is_none() {
            self.wrong("ordering-key", &router.ordering_key.to_string(), ONE_KEY);
        }
    }

    pub(crate) fn archive(&self, location: Option<&ArchiveLocation>) -> Option<Archive> {
        let storage_emulator = self.environment.get("STORAGE_EMULATOR_HOST").map(str::to_owned);
        let aws = self.environment.with_prefix("AWS_");
        let environment = StoreEnvironment { aws, storage_emulator };
        location.map(|location| Archive { location: location.clone(), environment })
    }

    pub(crate) fn maintenance(
        &self,
        options: &RetentionOptions,
        archive: &PruneArchiveOption,
    ) -> Maintenance {
        let archive = self.archive(archive.prune_archive.as_ref());
        let (older_than, every) = (options.prune_older_than.0, options.prune_interval);
        Maintenance { older_than, every, archive }
    }

    /// Returns the HTTP address. `--http` wins over the variable PORT, in which Cloud Run passes
    /// the port that it probes.
    pub(crate) fn http(&mut self, option: &HttpOption) -> Option<SocketAddr> {
        if let Some(address) = option.http {
            return address.0;
        }
        let port = self.environment.get("PORT")?;
        match port.parse::<u16>() {
            Ok(port) => Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
            Err(_) => {
                let allowed = format!("{port:?} is not a port; correct it, or set --http off");
                self.wrong_variable("PORT", &allowed);
                None
            }
        }
    }
}
