//! What the exporter is started with.

use std::fmt;
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};

use crate::endpoint::Endpoint;
use crate::pairs::pairs;
use crate::sampling::Sampling;

/// What the exporter is started with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the collector is.
    pub endpoint: Endpoint,
    /// Sent with every request.
    pub headers: Headers,
    /// Authorities in PEM that the collector's certificate must be signed by, instead of the public ones.
    pub certificate: Option<Vec<u8>>,
    /// How long one request to the collector may take.
    pub timeout: Duration,
    /// Which requests get a span; none when spans are not wanted.
    pub sampling: Option<Sampling>,
    /// How often metrics are sent; never when they are not wanted.
    pub metrics_interval: Option<Duration>,
    /// `service.name` and what else says who this is.
    pub resource: Vec<(String, String)>,
}

/// Headers for the collector, which often hold a secret: shown by their number alone.
#[derive(Clone, Default)]
pub struct Headers(MetadataMap);

/// Not headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a list as in name=value,name=value, with names and values as HTTP/2 takes them")]
pub struct HeadersError;

impl Headers {
    /// Reads `name=value,name=value`, as `OTEL_EXPORTER_OTLP_HEADERS` has it.
    ///
    /// # Errors
    ///
    /// It is no such list, or has what cannot be a header.
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
