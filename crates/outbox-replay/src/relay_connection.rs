//! The replication connection of the relay, and the lease of the rows that it claims.

use std::time::Duration;

use walrelay_pg_client::{ConnectConfig, Stream, VALUE_FORMATS};
use walrelay_pg_replication::ReplicationConnection;
use walrelay_relay::error::RelayError;
use walrelay_relay::settings::{PubSubSettings, RelaySettings};

/// Returns the lease of claimed rows, which is longer than a publish call may take.
#[must_use]
pub fn lease_of(pubsub: &PubSubSettings) -> Duration {
    pubsub.publisher.request_timeout + Duration::from_secs(15)
}

/// Opens a replication connection with the session settings of the relay.
pub async fn open_replication(
    connect: &ConnectConfig,
    relay: &RelaySettings,
) -> Result<ReplicationConnection<Stream>, RelayError> {
    let sender_timeout = format!("{}ms", relay.sender_timeout().as_millis());
    let own = [("wal_sender_timeout", sender_timeout.as_str())];
    let settings: Vec<_> = own.into_iter().chain(VALUE_FORMATS).collect();
    ReplicationConnection::connect(connect, &settings).await.map_err(RelayError::Connect)
}
