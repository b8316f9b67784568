//! The subject of a script.

use std::time::Duration;

use walrelay_outbox_store::Store;

/// Longer than a test runs, and never equal to the difference of two times in a script.
pub(crate) const LEASE: Duration = Duration::from_secs(900);

/// A store, and the changes that other sessions make to its rows.
pub(super) trait StoreUnderTest {
    type Store: Store;

    fn store(&mut self) -> &mut Self::Store;

    /// Lets time pass.
    async fn elapse(&mut self, time: Duration);

    /// Retries the dead rows, as an operator does.
    async fn retry_dead(&mut self);

    /// Retries a topic, as an operator does.
    async fn retry_topic(&mut self, topic: &str);

    /// Discards a row as an operator does, if it can still be discarded.
    async fn discard(&mut self, row: u64);

    /// Requests the hold of a key for a replay, unless an earlier replay of the key is unfinished.
    async fn hold(&mut self, key: usize);

    /// Adds a row at this position to the history of a key, if the key is held that far.
    async fn add_history(&mut self, key: usize, row: u64);

    /// Lifts the hold of a key, or its request.
    async fn lift(&mut self, key: usize);

    /// Returns every row with its position, status, attempts and due time, and every hold with its
    /// position.
    async fn contents(&mut self) -> Vec<String>;
}
