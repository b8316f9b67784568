//! The demo's application: writes business rows and outbox rows in one transaction, and rolls some
//! back.

use std::time::Duration;

use clap::Args;
use tokio::time::{Instant, sleep_until};
use walrelay_errors::{Chain, Code};
use walrelay_pg_client::{ConnectConfig, PgEnv, SqlClient, SqlText, connect_sql, sql};

use super::ledger::Ledger;
use crate::error::Error;
use crate::options::values::count;

/// The rows that the producer writes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Demo")]
pub(crate) struct ProducedRows {
    /// Stop after this many committed rows, or at Ctrl-C; 1 to 10000000
    #[arg(long, value_name = "COUNT", default_value = "1500", value_parser = count(1_u32, 10_000_000))]
    pub rows: u32,
    /// Outbox rows per second; 1 to 100000
    #[arg(long, value_name = "COUNT", default_value = "50", value_parser = count(1_u32, 100_000))]
    pub rate: u32,
    /// Aggregates the rows are spread over; 1 to 1000000
    #[arg(long, value_name = "COUNT", default_value = "20", value_parser = count(1_u32, 1_000_000))]
    pub aggregates: u32,
}

const TRANSACTION_ROWS: u64 = 5;

/// One of this many transactions is rolled back.
const ROLLBACK_EVERY: u64 = 7;

const EVENTS: [&str; 4] = ["OrderPlaced", "OrderPaid", "OrderPacked", "OrderShipped"];

pub(crate) static CREATE_ORDERS: SqlText = SqlText::new(|| sql!("producer.sql", "create_orders"));

/// Counts the rows that cannot be published.
pub(crate) static DEAD: SqlText = SqlText::new(|| sql!("producer.sql", "dead"));

/// Writes rows at the configured rate, until the configured number is committed.
pub(crate) async fn produce(
    url: &str,
    wanted_rows: &ProducedRows,
    ledger: &Ledger,
) -> Result<(), Error> {
    let connect = ConnectConfig::parse(url, &PgEnv::default())
        .map_err(|_| Error::refused(Code::DemoFailed, "no such database".to_owned()))?;
    let mut client = connect_sql(&connect).await?;
    let mut versions = vec![0_u64; wanted_rows.aggregates as usize];
    let wanted = u64::from(wanted_rows.rows);
    let pause = Duration::from_secs(TRANSACTION_ROWS) / wanted_rows.rate;
    let (mut committed, mut turn) = (0, 0_u64);
    let mut next_at = Instant::now();
    while committed < wanted {
        turn += 1;
        let rows = TRANSACTION_ROWS.min(wanted - committed);
        let written = write(&mut client, turn, rows, &versions).await;
        let written = written.map_err(|error| {
            Error::refused(Code::DemoFailed, format!("write orders: {}", Chain(&error)))
        })?;
        if is_rolled_back(turn) {
            ledger.rolled_back(rows);
        } else {
            versions = written;
            committed += rows;
            ledger.committed(rows);
        }
        next_at += pause;
        sleep_until(next_at).await;
    }
    client.close().await;
    Ok(())
}

fn is_rolled_back(turn: u64) -> bool {
    turn.is_multiple_of(ROLLBACK_EVERY)
}

/// Runs one transaction. Returns the versions after its commit.
async fn write(
    client: &mut SqlClient,
    turn: u64,
    rows: u64,
    versions: &[u64],
) -> Result<Vec<u64>, tokio_postgres::Error> {
    let mut versions = versions.to_vec();
    let transaction = client.transaction().await?;
    for row in 0..rows {
        let index = (turn * 31 + row * 17) % versions.len() as u64;
        let Some(version) = usize::try_from(index).ok().and_then(|i| versions.get_mut(i)) else {
            continue;
        };
        *version += 1;
        let (order, number) = (format!("order-{index}"), i64::try_from(*version).unwrap_or(0));
        let event = EVENTS[usize::try_from((*version - 1) % 4).unwrap_or(0)];
        transaction.execute(sql!("producer.sql", "write_order"), &[&order, &event]).await?;
        transaction
            .execute(sql!("producer.sql", "write_event"), &[&order, &event, &number])
            .await?;
    }
    match is_rolled_back(turn) {
        true => transaction.rollback().await?,
        false => transaction.commit().await?,
    }
    Ok(versions)
}
