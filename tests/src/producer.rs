//! A producer that inserts rows in the background of a test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::TestClient;

/// Inserts small transactions at a steady pace, over ten aggregates.
///
/// The producer reconnects after a lost connection. The outcome of the interrupted transaction is
/// then unknown. Tests therefore read the committed rows from the table, by version within an
/// aggregate.
#[derive(Debug)]
pub struct Producer {
    is_stopping: Arc<AtomicBool>,
    rows_count: Arc<AtomicU32>,
    tasks: JoinSet<()>,
}

/// The number of rows per transaction.
const ROWS_PER_TRANSACTION: u32 = 10;

impl Producer {
    /// Starts a producer that inserts one transaction of ten rows every `pace`.
    #[must_use]
    pub fn start(url: &str, pace: Duration) -> Self {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let rows_count = Arc::new(AtomicU32::new(0));
        let mut tasks = JoinSet::new();
        tasks.spawn(produce(
            url.to_owned(),
            pace,
            Arc::clone(&is_stopping),
            Arc::clone(&rows_count),
        ));
        Self { is_stopping, rows_count, tasks }
    }

    /// Returns the number of rows inserted so far.
    #[must_use]
    pub fn rows_count(&self) -> u32 {
        self.rows_count.load(Ordering::Relaxed)
    }

    /// Stops the producer between two transactions. Returns the number of inserted rows.
    pub async fn stop(mut self) -> u32 {
        self.is_stopping.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("the producer does not panic");
        }
        self.rows_count()
    }
}

async fn produce(
    url: String,
    pace: Duration,
    is_stopping: Arc<AtomicBool>,
    rows_count: Arc<AtomicU32>,
) {
    let mut ticks = interval(pace);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection: Option<TestClient> = None;
    let mut first_number = 0;
    while !is_stopping.load(Ordering::Relaxed) {
        ticks.tick().await;
        let Some(client) = &connection else {
            connection = TestClient::try_connect(&url).await.ok();
            continue;
        };
        let workload = Workload {
            rows_per_transaction: ROWS_PER_TRANSACTION,
            aggregates_count: 10,
            first_number,
            ..Workload::of_rows(ROWS_PER_TRANSACTION)
        };
        // Each number is used once, even if these rows are not committed.
        first_number += ROWS_PER_TRANSACTION;
        match workload.insert(client).await {
            Ok(_) => drop(rows_count.fetch_add(ROWS_PER_TRANSACTION, Ordering::Relaxed)),
            Err(_) => connection = None,
        }
    }
}
