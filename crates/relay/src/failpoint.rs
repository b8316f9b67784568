//! Points at which the crash suite ends the process. A release build contains no failpoints.

/// Aborts the process if `WALRELAY_FAILPOINT` names this place. `place` aborts at the first call,
/// `place=N` at the N-th call.
#[cfg(debug_assertions)]
pub fn hit(place: &str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicI64, Ordering};

    struct Armed {
        place: String,
        left: AtomicI64,
    }

    #[expect(clippy::disallowed_methods, reason = "a test's switch, not configuration")]
    static ARMED: LazyLock<Option<Armed>> = LazyLock::new(|| {
        let text = std::env::var("WALRELAY_FAILPOINT").ok()?;
        let (place, count) = text.split_once('=').unwrap_or((&text, "1"));
        Some(Armed { place: place.to_owned(), left: AtomicI64::new(count.parse().ok()?) })
    });

    if let Some(armed) = ARMED.as_ref().filter(|armed| armed.place == place)
        && armed.left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        // Runs no destructor and flushes nothing, exactly like SIGKILL.
        std::process::abort();
    }
}

/// Does nothing in a release build.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn hit(_place: &str) {}
