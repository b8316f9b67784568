//! Neither a silence nor a single failure between successes is an outage.

use std::time::{Duration, Instant};

use walrelay_core::{OutageDetector, WeatherChange};

/// Half of `--park-after`.
const GAP: Duration = Duration::from_secs(1);

fn weather() -> OutageDetector {
    OutageDetector::new(GAP * 2)
}

/// Notes a request that was sent and stored at the same moment.
fn stored(weather: &mut OutageDetector, now: Instant) -> WeatherChange {
    weather.success(now, now)
}

#[test]
fn what_is_sent_in_a_silence_is_stuck_since_then_and_not_since_the_last_success() {
    let start = Instant::now();
    let mut weather = weather();
    let first = weather.fair(start);
    assert_eq!(stored(&mut weather, start), WeatherChange::Steady);
    assert_eq!(weather.fair(start), first, "before anything was stored");
    let sent = start + GAP / 2;
    let at = weather.fair(sent);
    stored(&mut weather, sent + GAP / 4);
    assert_eq!(weather.fair(sent + GAP / 4) - at, GAP / 4);
    assert_eq!(weather.fair(sent + GAP * 100) - at, GAP / 4 + GAP, "a silence counts one gap");
}

#[test]
fn a_silence_in_which_nothing_was_tried_is_no_outage() {
    let start = Instant::now();
    let mut weather = weather();
    assert!(!weather.is_outage(start), "nothing was tried yet");
    stored(&mut weather, start);
    assert!(!weather.is_outage(start + GAP * 100));
    assert_eq!(stored(&mut weather, start + GAP * 100), WeatherChange::Steady);
    assert_eq!(weather.fair(start + GAP * 100), GAP * 2);
}

#[test]
fn failures_are_an_outage_once_nothing_succeeded_for_a_gap() {
    let start = Instant::now();
    let mut weather = weather();
    stored(&mut weather, start);
    weather.failure(start);
    let almost = start + GAP - Duration::from_millis(1);
    assert!(!weather.is_outage(almost));
    assert!(weather.is_outage(start + GAP));
    assert_eq!(stored(&mut weather, almost), WeatherChange::Steady);
    assert!(!weather.is_outage(start + GAP * 100), "a success ends it");
}

#[test]
fn an_outage_is_over_with_a_success_after_a_gap_of_failures() {
    let start = Instant::now();
    let mut weather = weather();
    weather.failure(start);
    assert!(weather.is_outage(start), "nothing has ever succeeded");
    assert_eq!(stored(&mut weather, start), WeatherChange::OutageOver);
    weather.failure(start);
    assert_eq!(stored(&mut weather, start + GAP), WeatherChange::OutageOver);
    assert_eq!(stored(&mut weather, start + GAP * 3), WeatherChange::Steady);
}

#[test]
fn a_lane_is_sick_by_itself_once_something_sent_later_was_stored() {
    let start = Instant::now();
    let mut weather = weather();
    assert!(!weather.has_stored_what_was_sent_after(start), "nothing was stored yet");
    weather.success(start, start + GAP);
    assert!(!weather.has_stored_what_was_sent_after(start), "sent at that moment, stored later");
    weather.success(start + GAP, start + GAP);
    weather.success(start, start + GAP * 2);
    assert!(weather.has_stored_what_was_sent_after(start), "the newest counts, not the last");
}
