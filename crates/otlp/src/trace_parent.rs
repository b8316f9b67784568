//! Parses the W3C trace context of a row, written by its producer.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// `00-`, 32 digits, `-`, 16 digits, `-`, 2 digits.
const LENGTH: usize = 55;

/// Parses a `traceparent` header (W3C Trace Context, 3.2). Returns `None` if it is malformed,
/// because a bad header must not affect its row.
pub(crate) fn parse(text: &str) -> Option<SpanContext> {
    let bytes = text.as_bytes();
    let (head, rest) = bytes.split_at_checked(LENGTH)?;
    if head[2] != b'-' || head[35] != b'-' || head[52] != b'-' {
        return None;
    }
    let version = number(&head[..2])?;
    // Later versions may append fields. Version 0 has none, and 255 is forbidden.
    let is_known = match version {
        0 => rest.is_empty(),
        255 => false,
        _ => rest.is_empty() || rest[0] == b'-',
    };
    if !is_known {
        return None;
    }
    let trace_id = TraceId::from(number(&head[3..35])?);
    let span_id = SpanId::from(u64::try_from(number(&head[36..52])?).ok()?);
    let flags = TraceFlags::new(u8::try_from(number(&head[53..])?).ok()?);
    let context = SpanContext::new(trace_id, span_id, flags, true, TraceState::NONE);
    context.is_valid().then_some(context)
}

/// Parses lowercase hexadecimal digits, at most 32.
fn number(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |value, digit| {
        let nibble = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(nibble))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn ids_and_the_sampled_flag_are_read() {
        let context = parse(VALID).unwrap();
        assert_eq!(context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.span_id().to_string(), "b7ad6b7169203331");
        assert!(context.is_sampled() && context.is_remote());
        assert!(!parse(&VALID.replace("-01", "-00")).unwrap().is_sampled());
    }

    #[test]
    fn a_later_version_may_have_more_fields() {
        assert!(parse(&VALID.replacen("00", "01", 1)).is_some());
        assert!(parse(&format!("{}-what-follows", VALID.replacen("00", "cc", 1))).is_some());
        assert_eq!(parse(&format!("{}x", VALID.replacen("00", "cc", 1))), None);
        assert_eq!(parse(&format!("{VALID}-more")), None);
        assert_eq!(parse(&VALID.replacen("00", "ff", 1)), None);
    }

    #[test]
    fn what_is_malformed_is_none() {
        let zero_trace = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
        let wide = format!("00-{}c-b7ad6b7169203331-01", "é".repeat(15));
        let upper = VALID.to_uppercase();
        let odd = VALID.replacen('-', "_", 1);
        let texts = ["", "00-1-2-01", &VALID[..54], &zero_trace, &zero_span, &wide, &upper, &odd];
        for text in texts {
            assert_eq!(parse(text), None, "{text}");
        }
        // The text is cut at every place and followed by a character of two bytes.
        for end in 0..VALID.len() {
            assert_eq!(parse(&format!("{}é", &VALID[..end])), None, "cut at {end}");
        }
    }
}
