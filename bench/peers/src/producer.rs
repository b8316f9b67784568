//! Inserts rows at a steady rate, also across a restart of the server.

use std::ops::Range;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_postgres::Client;
use walrelay_testkit::postgres::TestClient;

use walrelay_bench::failure::Failure;

/// The pause before the producer connects again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// The attempts before the producer gives up, together about a minute.
const ATTEMPTS_MAX: u32 = 600;

/// Returns the key of a row when rows take turns on `keys` keys.
pub(crate) fn key_name(row: u64, keys: u64) -> String {
    format!("order-{}", row % keys)
}

/// Rows to insert.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    pub(crate) rows: Range<u64>,
    pub(crate) rows_per_second: u32,
    pub(crate) keys: u64,
}

/// Inserts each row in its own transaction at its due time. A late row is inserted at once. A row
/// whose commit failed is inserted again unless it is in the table.
pub(crate) async fn produce(url: &str, stream: Stream) -> Result<(), Failure> {
    let mut client = TestClient::try_connect(url).await?;
    let mut due = interval(Duration::from_secs(1) / stream.rows_per_second);
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for row in stream.rows {
        due.tick().await;
        let mut attempts = 0;
        while let Err(error) = emit(&client, row, stream.keys).await {
            attempts += 1;
            if attempts > ATTEMPTS_MAX {
                return Err(error.into());
            }
            sleep(RECONNECT_PAUSE).await;
            if let Ok(connected) = TestClient::try_connect(url).await {
                client = connected;
            }
            // The commit may have succeeded although its reply was lost.
            if has(&client, row).await.unwrap_or(false) {
                break;
            }
        }
    }
    Ok(())
}

async fn emit(client: &Client, row: u64, keys: u64) -> Result<(), tokio_postgres::Error> {
    let bytes = super::drain::PAYLOAD_BYTES;
    let sql = "SELECT peer_emit($1, $2, $3)";
    client.execute(sql, &[&number(row), &key_name(row, keys), &bytes]).await.map(drop)
}

async fn has(client: &Client, row: u64) -> Result<bool, tokio_postgres::Error> {
    client.query_one("SELECT peer_has($1)", &[&number(row)]).await?.try_get(0)
}

fn number(row: u64) -> i64 {
    i64::try_from(row).unwrap_or(i64::MAX)
}
