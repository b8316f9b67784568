//! Parses and prints durations and sizes such as `30s` and `64MiB`.

use std::time::Duration;

/// Reads `500ms`, `30s`, `5m`, `12h` or `7d`.
#[must_use]
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let millis_each: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(millis_each).map(Duration::from_millis)
}

/// Writes a duration in the largest unit that divides it.
#[must_use]
pub(crate) fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    match units.iter().find(|(each, _)| millis > 0 && millis.is_multiple_of(*each)) {
        Some((each, unit)) => format!("{}{unit}", millis / each),
        None => format!("{millis}ms"),
    }
}

/// Reads `100B`, `512KiB`, `64MiB`, `1GiB`, or decimal `10kB`, `10MB`, `1GB`.
#[must_use]
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let bytes_each: u64 = match unit {
        "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(bytes_each)
}

fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_their_unit() {
        for (text, expected) in [
            ("500ms", Some(Duration::from_millis(500))),
            ("30s", Some(Duration::from_secs(30))),
            ("5m", Some(Duration::from_secs(300))),
            ("7d", Some(Duration::from_secs(7 * 86_400))),
            ("0s", Some(Duration::ZERO)),
            ("30", None),
            ("s", None),
            ("-1s", None),
            ("1.5s", None),
            ("", None),
            ("99999999999999999999d", None),
            ("18446744073709551615d", None),
        ] {
            assert_eq!(parse_duration(text), expected, "{text}");
        }
    }

    #[test]
    fn sizes_are_binary_or_decimal_by_their_unit() {
        for (text, expected) in [
            ("64MiB", Some(64 << 20)),
            ("10MB", Some(10_000_000)),
            ("1 GiB", Some(1 << 30)),
            ("64", None),
            ("64mib", None),
        ] {
            assert_eq!(parse_size(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        for duration in [Duration::ZERO, Duration::from_millis(1500), Duration::from_hours(36)] {
            assert_eq!(parse_duration(&show_duration(duration)), Some(duration));
        }
    }
}
