//! The times of messages: RFC 3339 in text, and seconds with nanoseconds on the wire.

use std::ops::RangeInclusive;
use std::time::SystemTime;

use prost_types::Timestamp;

/// The years 1 to 9999, which RFC 3339, Rust and Postgres can represent. In seconds since 1970.
const SECONDS: RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// Parses `2026-11-21T15:29:39.123456Z`, or a time with an offset. Returns `None` for any other
/// text.
#[must_use]
pub fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    // The library also accepts a date alone, and a time without a zone. Neither is a moment.
    let fraction_and_zone = text.get("2026-11-21T15:29:39".len()..)?;
    let is_in_fraction = |letter: char| letter == '.' || letter.is_ascii_digit();
    if fraction_and_zone.trim_start_matches(is_in_fraction).is_empty() {
        return None;
    }
    let Timestamp { seconds, nanos } = text.parse().ok()?;
    time_at(seconds, nanos)
}

/// Returns the time from seconds since 1970 and nanoseconds.
#[must_use]
pub fn time_at(seconds: i64, nanos: i32) -> Option<SystemTime> {
    let time = Timestamp { seconds, nanos };
    SECONDS.contains(&seconds).then(|| time.try_into().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_read_as_the_relay_writes_them_and_with_offsets() {
        for (text, seconds, nanos) in [
            ("1970-01-01T00:00:00Z", 0, 0),
            ("2023-11-14T22:13:20.25Z", 1_700_000_000, 250_000_000),
            ("2023-11-14 22:13:20z", 1_700_000_000, 0),
            ("2023-11-14T23:13:20.250001+01:00", 1_700_000_000, 250_001_000),
            ("2024-02-29T00:00:00-00:30", 1_709_166_600, 0),
        ] {
            let expected = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
            assert_eq!(parse_rfc3339(text), Some(expected), "{text}");
        }
        let before_1970 = SystemTime::UNIX_EPOCH - Duration::from_millis(500);
        assert_eq!(parse_rfc3339("1969-12-31T23:59:59.5Z"), Some(before_1970));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "yesterday",
            "2023-13-01T00:00:00Z",
            "2023-02-30T00:00:00Z",
            "2023-11-14",
            "2023-11-14T22:13:20",
            "2023-11-14T22:13:20.Zé",
            "0000-01-01T00:00:00Z",
            "+12023-11-14T22:13:20Z",
            "2023-11-14T22:13:20.5",
            "é023-11-14T22:13:20Z",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }
}
