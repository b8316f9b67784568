//! The settings of the exporter.

use std::fmt;
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};

use crate::endpoint::Endpoint;
use crate::pairs::pairs;
use crate::sampling::Sampling;

#[derive(Debug, Clone)]
pub struct Settings {
    pub endpoint: Endpoint,
    pub headers: Headers,
    /// The certificate authorities for the collector's certificate in PEM, instead of the public
    /// ones.
    pub certificate: Option<Vec<u8>>,
    /// The longest time that one request may take.
    pub timeout: Duration,
    /// The sampling rule, or `None` to disable spans.
    pub sampling: Option<Sampling>,
    /// The interval between metrics, or `None` to disable metrics.
    pub metrics_interval: Option<Duration>,
    /// Attributes that identify this service, such as `service.name`.
    pub resource: Vec<(String, String)>,
}

/// Headers for the collector. They often contain a secret, so `Debug` prints only their number.
#[derive(Clone, Default)]
pub struct Headers(MetadataMap);

/// The text is not a list of headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a list as in name=value,name=value, with names and values as HTTP/2 takes them")]
pub struct HeadersError;

impl Headers {
    /// Parses `name=value,name=value`, the format of `OTEL_EXPORTER_OTLP_HEADERS`.
    ///
    /// # Errors
    ///
    /// The text is not such a list, or a name or value is not a valid header.
    pub fn parse(text: &str) -> Result<Self, HeadersError> {
        let mut map = MetadataMap::new();
        for (name, value) in pairs(text).map_err(|_| HeadersError)? {
            let key = name.to_ascii_lowercase();
            let key: MetadataKey<Ascii> = key.parse().map_err(|_| HeadersError)?;
            let mut value: MetadataValue<Ascii> = value.parse().map_err(|_| HeadersError)?;
            value.set_sensitive(true);
            map.insert(key, value);
        }
        Ok(Self(map))
    }

    pub(crate) const fn map(&self) -> &MetadataMap {
        &self.0
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Headers").field(&self.0.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_and_not_shown() {
        let headers = Headers::parse("Authorization=Bearer%20hunter2,x-team=a").unwrap();
        assert_eq!(headers.map().get("authorization").unwrap(), "Bearer hunter2");
        assert_eq!(headers.map().get("x-team").unwrap(), "a");
        let shown = format!("{headers:?} {:?}", headers.map());
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn what_cannot_be_a_header_is_refused() {
        for text in ["authorization", "a b=c", "a=%0A", "x-bin=1"] {
            assert!(Headers::parse(text).is_err(), "{text}");
        }
    }
}
