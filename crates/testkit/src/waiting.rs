//! Waiting for a condition, with a deadline, instead of sleeping.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How often a condition is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits until `condition` yields a value; panics, naming `what`, when it has not by the deadline.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
///
/// let mut looks = 0;
/// let third = walrelay_testkit::wait_until(Duration::from_secs(5), "the third look", async || {
///     looks += 1;
///     (looks == 3).then_some(looks)
/// });
/// assert_eq!(third.await, 3);
/// # });
/// ```
pub async fn wait_until<T>(
    deadline: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> Option<T>,
) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(started.elapsed() < deadline, "waited {deadline:?} in vain for {what}");
        sleep(POLL_INTERVAL).await;
    }
}
