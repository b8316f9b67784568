//! A producer that keeps inserting while the test does something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::TestClient;

/// Inserts one small transaction after the other, at a steady pace, over ten aggregates.
///
/// A lost connection is opened again: whether the last transaction was committed is then unknown,
/// so what was committed is to be read from the table, by version within an aggregate.
#[derive(Debug)]
pub struct Producer {
    is_stopping: Arc<AtomicBool>,
    rows_count: Arc<AtomicU32>,
    tasks: JoinSet<()>,
}

/// Rows of one transaction.
const ROWS_PER_TRANSACTION: u32 = 10;

impl Producer {
    /// Starts it; one transaction of ten rows each `pace`.
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

    /// How many rows it has inserted so far.
    #[must_use]
    pub fn rows_count(&self) -> u32 {
        self.rows_count.load(Ordering::Relaxed)
    }

    /// Ends it between two transactions, and returns how many rows it inserted.
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
        // Numbers are never used again, whether these rows were committed or not.
        first_number += ROWS_PER_TRANSACTION;
        match workload.insert(client).await {
            Ok(_) => drop(rows_count.fetch_add(ROWS_PER_TRANSACTION, Ordering::Relaxed)),
            Err(_) => connection = None,
        }
    }
}
