//! The meaning of a service's answer.

use std::time::{Duration, SystemTime};

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use walrelay_inbox::Fault;

/// Returns the cause of a failed delivery. `None` if the event is delivered.
pub(crate) fn fault_of(status: StatusCode) -> Option<Fault> {
    match status.as_u16() {
        200..=299 => None,
        400 | 409 | 413 | 415 | 422 => Some(Fault::Event),
        429 | 503 => Some(Fault::Capacity),
        408 | 425 | 500..=599 => Some(Fault::Attempt),
        // A wrong URL, a missing permission, a redirect. If these counted as attempts, one wrong URL would
        // make all events dead.
        _ => Some(Fault::Operator),
    }
}

/// Returns the time that a service asks for: seconds, or a date.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    httpdate::parse_http_date(text).ok()?.duration_since(now).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_its_meaning() {
        for (statuses, fault) in [
            (&[200, 201, 202, 204, 299][..], None),
            (&[400, 409, 413, 415, 422], Some(Fault::Event)),
            (&[408, 425, 500, 501, 502, 504, 505, 599], Some(Fault::Attempt)),
            (&[429, 503], Some(Fault::Capacity)),
            (
                &[
                    100, 101, 300, 301, 302, 304, 307, 308, 401, 402, 403, 404, 405, 406, 407, 410,
                    411, 412,
                ][..],
                Some(Fault::Operator),
            ),
            (
                &[414, 416, 417, 418, 421, 423, 424, 426, 428, 431, 451, 499, 600, 999],
                Some(Fault::Operator),
            ),
        ] {
            for status in statuses {
                let code = StatusCode::from_u16(*status).unwrap();
                assert_eq!(fault_of(code), fault, "{status}");
            }
        }
    }

    #[test]
    fn a_service_asks_for_seconds_or_names_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_767);
        let asked = |text: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
            retry_after(&headers, now)
        };
        assert_eq!(asked("120"), Some(Duration::from_secs(120)));
        assert_eq!(asked("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::from_secs(10)));
        assert_eq!(asked("Sun, 06 Nov 1994 08:40:00 GMT"), None, "in the past");
        for wrong in ["", "soon", "-1", "1.5", "99999999999999999999999"] {
            assert_eq!(asked(wrong), None, "{wrong}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
