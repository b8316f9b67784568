//! Parses the RFC 3339 times of messages.

use std::time::{Duration, SystemTime};

/// Parses `2026-11-21T15:29:39.123456Z`, or a time with an offset. Returns `None` for any other
/// text, and for years that Postgres would not print with four digits.
pub(crate) fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let (date, rest) = (text.get(..10)?, text.get(10..)?);
    let (year, month, day) = (number(date, 0, 4)?, number(date, 5, 2)?, number(date, 8, 2)?);
    let time = rest.strip_prefix(['T', 't', ' '])?;
    let (hour, minute, second) = (number(time, 0, 2)?, number(time, 3, 2)?, number(time, 6, 2)?);
    let is_shaped = date.as_bytes()[4] == b'-'
        && date.as_bytes()[7] == b'-'
        && time.as_bytes()[2] == b':'
        && time.as_bytes()[5] == b':';
    let is_in_range = year >= 1
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !is_shaped || !is_in_range {
        return None;
    }
    let (fraction, offset) = fraction(time.get(8..)?)?;
    let seconds =
        days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    at(seconds, fraction)
}

/// Returns the time from seconds since 1970 and nanoseconds.
pub(crate) fn at(seconds: i64, nanos: u32) -> Option<SystemTime> {
    /// The years 1 to 9999, which both Rust and Postgres can represent.
    const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;
    if !SECONDS.contains(&seconds) {
        return None;
    }
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = match seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(whole)?,
        false => SystemTime::UNIX_EPOCH.checked_add(whole)?,
    };
    base.checked_add(Duration::from_nanos(nanos.into()))
}

fn number(text: &str, from: usize, digits: usize) -> Option<i64> {
    let part = text.get(from..from + digits)?;
    part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
}

/// Parses `.123456Z` or `+01:00` into nanoseconds and the offset in seconds.
fn fraction(text: &str) -> Option<(u32, i64)> {
    let (nanos, zone) = match text.strip_prefix('.') {
        None => (0, text),
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit())?;
            let (digits, zone) = rest.split_at(end);
            let kept = digits.get(..digits.len().min(9))?;
            (format!("{kept:0<9}").parse().ok()?, zone)
        }
    };
    let (sign, rest) = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => return Some((nanos, 0)),
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let is_shaped = rest.len() == 5 && rest.as_bytes()[2] == b':';
    let offset = number(rest, 0, 2)? * 3_600 + number(rest, 3, 2)? * 60;
    is_shaped.then_some((nanos, sign * offset))
}

/// Returns the days since 1970 of a civil date. From Howard Hinnant's "chrono-Compatible Low-Level
/// Date Algorithms".
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_the_relay_writes_them_and_with_offsets() {
        for (text, seconds, nanos) in [
            ("1970-01-01T00:00:00Z", 0, 0),
            ("2023-11-14T22:13:20.25Z", 1_700_000_000, 250_000_000),
            ("2023-11-14T23:13:20.250001+01:00", 1_700_000_000, 250_001_000),
            ("2024-02-29T00:00:00-00:30", 1_709_166_600, 0),
            ("1969-12-31T23:59:59.5Z", -1, 500_000_000),
        ] {
            assert_eq!(parse_rfc3339(text), at(seconds, nanos), "{text}");
            assert!(parse_rfc3339(text).is_some(), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "yesterday",
            "2023-13-01T00:00:00Z",
            "2023-11-14",
            "2023-11-14T22:13:20",
            "2023-11-14T22:13:20.Zé",
            "0000-01-01T00:00:00Z",
            "2023-11-14T22:13:20.5",
            "é023-11-14T22:13:20Z",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }
}
