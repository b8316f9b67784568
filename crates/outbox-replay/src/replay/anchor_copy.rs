//! A session over a temporary copy of an anchor, which is dropped with its connection.

use walrelay_outbox_store::StoreError;
use walrelay_pg_client::{PgError, ServerErrorKind, Stream, connect_sql, quote_literal};
use walrelay_relay::error::RelayError;
use walrelay_relay::lifecycle::server::{Connected, Server};
use walrelay_relay::settings::Settings;

use super::in_place::HistoryWriter;
use super::replay_database::ReplayDatabase;
use super::replay_progress::Tally;
use super::{Replay, replay_slot_name};
use crate::admin_error::AdminError;
use crate::relay_connection::open_replication;

/// The server of a replay of WAL. Each connection has its own copy of the anchor.
#[derive(Debug)]
pub(super) struct AnchorCopy<'a> {
    pub(super) settings: &'a Settings,
    pub(super) replay: &'a Replay,
    pub(super) tally: Tally,
    pub(super) history: Option<HistoryWriter>,
}

impl Server for AnchorCopy<'_> {
    type Socket = Stream;
    type Database = ReplayDatabase;

    async fn connect(&self) -> Result<Connected<Stream, ReplayDatabase>, RelayError> {
        let Settings { connect, relay, .. } = self.settings;
        let sql = connect_sql(connect).await.map_err(RelayError::Connect)?;
        let mut replication = open_replication(connect, relay).await?;
        let system = replication.identify_system().await.map_err(RelayError::Connect)?;
        let server = replication.server_identity(&system).await.map_err(RelayError::Connect)?;
        // The streaming connection creates the temporary slot, so the slot ends with that
        // connection.
        let slot = replay_slot_name(&relay.outbox.slot, &self.replay.id);
        let copy = format!(
            "SELECT pg_copy_logical_replication_slot({}, {}, true)",
            quote_literal(&self.replay.anchor_slot),
            quote_literal(&slot)
        );
        replication.simple_query(&copy).await.map_err(|error| self.of_copying(error))?;
        Ok(Connected {
            replication,
            database: ReplayDatabase {
                sql,
                connect: connect.clone(),
                server,
                replay: self.replay.clone(),
                tally: self.tally.clone(),
                start: self.replay.start.max(self.tally.settled()),
                copy: Some(slot),
                outbox: relay.outbox.clone(),
                marks: None,
                history: self.history.clone(),
            },
        })
    }
}

impl AnchorCopy<'_> {
    fn of_copying(&self, error: PgError) -> RelayError {
        let kind = error.server().map(walrelay_pg_client::ServerError::kind);
        let anchor = self.replay.anchor_slot.clone();
        match kind {
            Some(ServerErrorKind::NotInState) => {
                RelayError::survey(AdminError::Store(StoreError::AnchorLost { anchor }))
            }
            Some(_) | None => RelayError::Connect(error),
        }
    }
}
