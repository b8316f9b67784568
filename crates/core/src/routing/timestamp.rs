//! Converts `occurred_at` from Postgres's text form to RFC 3339.

/// Formats a timestamp as RFC 3339 in UTC with microseconds. Returns `None` if the text is not a
/// plain ISO timestamp.
///
/// The replication connection sets `DateStyle = ISO` and `TimeZone = UTC`. A `timestamptz`
/// therefore reads `2026-11-21 00:54:00.5+00`, and a `timestamp` has the same form without the
/// zone. `infinity` and years beyond 9999 have no RFC 3339 form.
pub(crate) fn rfc3339(text: &[u8]) -> Option<[u8; 27]> {
    let text = text.strip_suffix(b"+00").unwrap_or(text);
    let (seconds, fraction) = match text.iter().position(|byte| *byte == b'.') {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &[][..]),
    };
    let shape = b"dddd-dd-dd dd:dd:dd";
    let fits = |(byte, expected): (&u8, &u8)| match expected {
        b'd' => byte.is_ascii_digit(),
        other => byte == other,
    };
    let is_plain = seconds.len() == shape.len()
        && seconds.iter().zip(shape).all(fits)
        && fraction.len() <= 6
        && fraction.iter().all(u8::is_ascii_digit);
    if !is_plain {
        return None;
    }
    let mut out = *b"0000-00-00T00:00:00.000000Z";
    out[..19].copy_from_slice(seconds);
    out[10] = b'T';
    out[20..20 + fraction.len()].copy_from_slice(fraction);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_text_becomes_rfc_3339_with_microseconds() {
        let cases: [(&str, Option<&str>); 8] = [
            ("2026-11-21 00:54:00.123456+00", Some("2026-11-21T00:54:00.123456Z")),
            ("2026-11-21 00:54:00.5+00", Some("2026-11-21T00:54:00.500000Z")),
            ("2026-11-21 00:54:00+00", Some("2026-11-21T00:54:00.000000Z")),
            ("2026-11-21 00:54:00", Some("2026-11-21T00:54:00.000000Z")),
            ("infinity", None),
            ("2026-11-21 00:54:00+01", None),
            ("12026-11-21 00:54:00+00", None),
            ("0044-03-15 12:00:00+00 BC", None),
        ];
        for (text, expected) in cases {
            let got = rfc3339(text.as_bytes());
            assert_eq!(got.as_ref().map(|b| std::str::from_utf8(b).unwrap()), expected, "{text}");
        }
    }
}
