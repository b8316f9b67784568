//! The window step by step, at the edges of each of its rules.
//!
//! The window starts at 64 requests. It stops growing at 20 requests queued in the service, and
//! shrinks at 40. With a shortest round trip of 10 ms and 1 ms of noise, these limits are round
//! trips of 16 ms and 29.3 ms.

use std::time::{Duration, Instant};

use walrelay_core::{ConcurrencyLimits, ConcurrencyWindow};

const LIMITS: ConcurrencyLimits = ConcurrencyLimits { min: 16, max: 1_600 };
const START: usize = 64;

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// A window that knows a shortest round trip and has not grown.
fn knowing(shortest: Duration, now: Instant) -> ConcurrencyWindow {
    let mut window = ConcurrencyWindow::new(LIMITS);
    window.stored(shortest, 0, now);
    assert_eq!(window.size(), START);
    window
}

/// The size after one more reply, while the whole window is in use.
fn after(mut window: ConcurrencyWindow, round_trip: Duration, now: Instant) -> usize {
    window.stored(round_trip, START, now);
    window.size()
}

#[test]
fn it_starts_at_four_times_its_minimum_within_its_bounds() {
    let start = |min, max| ConcurrencyWindow::new(ConcurrencyLimits { min, max }).size();
    assert_eq!((start(16, 1_600), start(16, 40), start(0, 10)), (64, 40, 1));
}

#[test]
fn it_grows_by_one_while_few_requests_are_queued() {
    let now = Instant::now();
    assert_eq!(after(knowing(micros(10_000), now), micros(15_900), now), START + 1);
}

#[test]
fn it_stays_while_some_requests_are_queued() {
    let now = Instant::now();
    assert_eq!(after(knowing(micros(10_000), now), micros(16_100), now), START);
    assert_eq!(after(knowing(micros(10_000), now), micros(29_200), now), START);
}

#[test]
fn it_stays_while_exactly_as_many_are_queued_as_it_bears() {
    let now = Instant::now();
    assert_eq!(after(knowing(micros(2_000), now), micros(8_000), now), START);
}

#[test]
fn it_shrinks_slowly_while_many_requests_are_queued() {
    let now = Instant::now();
    let mut window = knowing(micros(10_000), now);
    window.stored(micros(29_500), START, now);
    assert_eq!(window.size(), START - 1, "by a part of one");
    window.stored(micros(100_000), START, now);
    assert_eq!(window.size(), START - 1);
    for _ in 0..3 {
        window.stored(micros(100_000), START, now);
    }
    assert_eq!(window.size(), START - 2);
}

#[test]
fn it_grows_when_half_of_it_is_used() {
    let now = Instant::now();
    let grown_with = |out| {
        let mut window = ConcurrencyWindow::new(LIMITS);
        window.stored(micros(10_000), out, now);
        window.size()
    };
    assert_eq!((grown_with(31), grown_with(32)), (START, START + 1));
}

#[test]
fn a_shorter_round_trip_is_believed_at_once() {
    let now = Instant::now();
    let mut window = knowing(micros(40_000), now);
    window.stored(micros(10_000), 0, now);
    assert_eq!(after(window, micros(40_000), now), START - 1);
}

#[test]
fn the_shortest_round_trip_is_forgotten_after_half_a_minute() {
    let now = Instant::now();
    let long = micros(40_000);
    let almost = now + Duration::from_millis(29_999);
    assert_eq!(after(knowing(micros(10_000), now), long, almost), START - 1);
    let then = now + Duration::from_secs(30);
    assert_eq!(after(knowing(micros(10_000), now), long, then), START + 1);
}

#[test]
fn the_same_round_trip_again_is_not_believed_for_longer() {
    let now = Instant::now();
    let mut window = knowing(micros(10_000), now);
    window.stored(micros(10_000), 0, now + Duration::from_secs(20));
    assert_eq!(after(window, micros(40_000), now + Duration::from_secs(30)), START + 1);
}

#[test]
fn congestion_takes_three_tenths_at_most_every_tenth_of_a_second() {
    let now = Instant::now();
    let mut window = ConcurrencyWindow::new(LIMITS);
    window.congested(now);
    assert_eq!(window.size(), 44);
    window.congested(now + Duration::from_millis(99));
    assert_eq!(window.size(), 44);
    window.congested(now + Duration::from_millis(100));
    assert_eq!(window.size(), 31);
    for tenth in 2..20 {
        window.congested(now + Duration::from_millis(100 * tenth));
    }
    assert_eq!(window.size(), LIMITS.min);
}

#[test]
fn a_window_without_a_minimum_lets_one_request_out() {
    let mut window = ConcurrencyWindow::new(ConcurrencyLimits { min: 0, max: 0 });
    window.congested(Instant::now());
    assert_eq!(window.size(), 1);
}
