//! What a script is run on.

use std::time::Duration;

use walrelay_outbox_store::Store;

/// Longer than a test may run, and never the difference of two times that a script can make.
pub(crate) const LEASE: Duration = Duration::from_secs(900);

/// A store, and what others do to its rows.
pub(super) trait Subject {
    type Store: Store;

    fn store(&mut self) -> &mut Self::Store;

    /// Time passes.
    async fn elapse(&mut self, time: Duration);

    /// An operator retries what is dead.
    async fn retry_dead(&mut self);

    /// An operator retries a topic.
    async fn retry_topic(&mut self, topic: &str);

    /// An operator gives a row up, if it can still be given up.
    async fn discard(&mut self, row: u64);

    /// A key is to be held for a replay, unless another replay of it is not over.
    async fn hold(&mut self, key: usize);

    /// The history of a key has a row at this position: it is added, if the key is held as far.
    async fn add_history(&mut self, key: usize, row: u64);

    /// A key that was held, or was to be, goes on.
    async fn lift(&mut self, key: usize);

    /// Every row: its position, status, attempts, and when it is due; and what is held how far.
    async fn contents(&mut self) -> Vec<String>;
}
