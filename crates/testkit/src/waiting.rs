//! Waits for a condition with a deadline, instead of sleeping for a fixed time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits until `condition` yields a value. Panics with `what` in the message at the deadline.
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
