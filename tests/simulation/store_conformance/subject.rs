//! What a script is run on.

use std::time::Duration;

use walrelay_postgres::Store;

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

    /// Every row: its position, status, attempts, and when it is due.
    async fn contents(&mut self) -> Vec<String>;
}
