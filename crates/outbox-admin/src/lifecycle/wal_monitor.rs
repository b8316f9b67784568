//! Measures the end of the server's WAL over a separate connection.
//!
//! The connection of dispatch state cannot measure it. That connection may be busy for seconds,
//! writing rows because too much WAL is retained. The replication connection does not report the
//! end of WAL.

use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::time::{Instant, sleep};
use tokio_postgres::types::PgLsn;
use walrelay_core::WalBudgetLimit;
use walrelay_pg_client::{ConnectConfig, SqlClient, connect_sql};
use walrelay_pg_replication::{COMMIT_WAIT, RETENTION, retention_of};

use walrelay_errors::Chain;
use walrelay_relay::stream::wal_end::{Measured, SenderState, WalEnd, WalMeasurementSender};

/// The interval while retained WAL is far below the budget.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The interval near the budget: a busy server writes hundreds of megabytes a second.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// Returns the time until the next measurement. The server keeps writing at the rate of the `last`
/// interval. The result is half of the time until retained WAL then reaches the spill threshold.
fn pause(held: u64, written: u64, budget: u64, last: Duration) -> Duration {
    let room = (budget / 4 * 3).saturating_sub(held);
    let pauses = room as f64 / written.max(1) as f64;
    last.mul_f64((pauses / 2.0).min(10.0)).clamp(PAUSE_MIN, PAUSE_MAX)
}

/// Measures as long as the receiver exists.
pub(super) fn start(connect: ConnectConfig, slot: String, budget: WalBudgetLimit) -> WalEnd {
    WalEnd::measured(async move |teller| measure(&connect, &slot, budget, &teller).await)
}

async fn measure(
    connect: &ConnectConfig,
    slot: &str,
    budget: WalBudgetLimit,
    teller: &WalMeasurementSender,
) {
    loop {
        match connect_sql(connect).await {
            Ok(client) => follow(&client, slot, budget, teller).await,
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "the end of the WAL cannot be measured");
            }
        }
        sleep(PAUSE_MAX).await;
    }
}

/// Reads the server's limit each time, because an operator may lower it while the relay runs. The
/// query is cheap.
async fn follow(
    client: &SqlClient,
    slot: &str,
    budget: WalBudgetLimit,
    teller: &WalMeasurementSender,
) {
    // spliced: the expressions of the slot's retention.
    let sql = format!(
        "SELECT pg_current_wal_lsn(),
                (SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1),
                {RETENTION},
                (SELECT a.wait_event_type IS NOT NULL AND a.wait_event_type NOT IN ('IO', 'Timeout')
                   FROM pg_replication_slots AS s
                   JOIN pg_stat_get_activity(NULL) AS a ON a.pid = s.active_pid
                  WHERE s.slot_name = $1),
                {COMMIT_WAIT}"
    );
    let (mut end_before, mut looked_at) = (None, Instant::now());
    loop {
        let row = match client.query_one(&sql, &[&slot]).await {
            Ok(row) => row,
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "the end of the WAL cannot be measured");
                return;
            }
        };
        let end = u64::from(row.get::<_, PgLsn>(0));
        let confirmed = row.get::<_, Option<PgLsn>>(1).map_or(end, u64::from);
        let retention = retention_of(row.get(2));
        let sender = match row.get(3) {
            Some(true) => SenderState::Waiting,
            Some(false) | None => SenderState::Busy,
        };
        let commit_wait = Duration::try_from_secs_f64(row.get(4)).unwrap_or_default();
        teller.send_replace(Measured { wal_end: Lsn::new(end), retention, sender, commit_wait });
        let written = end.saturating_sub(end_before.replace(end).unwrap_or(end));
        let last = std::mem::replace(&mut looked_at, Instant::now()).elapsed().max(PAUSE_MIN);
        let bytes = budget.bytes(retention).unwrap_or(u64::MAX);
        sleep(pause(end.saturating_sub(confirmed), written, bytes, last)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_more_often_the_sooner_the_budget_may_be_reached() {
        const SECOND: Duration = Duration::from_secs(1);
        let cases = [
            ((0, 0, SECOND), PAUSE_MAX),
            ((0, 1 << 20, SECOND), PAUSE_MAX),
            ((0, 48 << 20, SECOND), SECOND / 2),
            ((24 << 20, 24 << 20, SECOND), SECOND / 2),
            ((24 << 20, 24 << 20, SECOND / 2), SECOND / 4),
            ((47 << 20, 24 << 20, SECOND), PAUSE_MIN),
            ((90 << 20, 0, SECOND), PAUSE_MIN),
        ];
        for ((held, written, last), expected) in cases {
            assert_eq!(pause(held, written, 64 << 20, last), expected, "{held} {written} {last:?}");
        }
    }
}
