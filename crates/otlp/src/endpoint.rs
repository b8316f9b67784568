//! The address of the collector.

use std::fmt;
use std::str::FromStr;

use http::Uri;

/// The address of a collector that speaks OTLP over gRPC: scheme, host and port. It contains no
/// secret, so it may be printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(Uri);

/// The text is not the address of a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The scheme, host or port is missing or invalid.
    #[error("a URL as in http://collector:4317 or https://collector:4317")]
    Form,
    /// The address has a path. Collectors have paths only for OTLP over HTTP.
    #[error(
        "without a path: telemetry is sent over gRPC, which a collector takes on another port than \
         HTTP, usually 4317"
    )]
    Path,
    /// The address has a user or a password.
    #[error(
        "without a user and a password; what authenticates goes into OTEL_EXPORTER_OTLP_HEADERS"
    )]
    UserInformation,
}

impl Endpoint {
    pub(crate) const fn uri(&self) -> &Uri {
        &self.0
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let uri: Uri = text.trim().parse().map_err(|_| EndpointError::Form)?;
        let has_scheme = matches!(uri.scheme_str(), Some("http" | "https"));
        let authority = uri.authority().ok_or(EndpointError::Form)?;
        if authority.as_str().contains('@') {
            return Err(EndpointError::UserInformation);
        }
        let is_host_alone = authority.as_str() == authority.host();
        let is_reachable = is_host_alone || authority.port_u16().is_some_and(|port| port > 0);
        if !has_scheme || authority.host().is_empty() || !is_reachable {
            return Err(EndpointError::Form);
        }
        match uri.path_and_query().map(http::uri::PathAndQuery::as_str) {
            None | Some("" | "/") => Ok(Self(uri)),
            Some(_) => Err(EndpointError::Path),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, authority) = (self.0.scheme_str(), self.0.authority());
        write!(f, "{}://{}", scheme.unwrap_or_default(), authority.map_or("", |it| it.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheme_host_and_port_are_an_endpoint() {
        for text in ["http://localhost:4317", "https://otlp.example/", "http://[::1]:4317"] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.is_secure(), text.starts_with("https"), "{text}");
            assert_eq!(endpoint.to_string(), text.trim_end_matches('/'));
        }
    }

    #[test]
    fn what_cannot_be_connected_to_is_refused_without_being_repeated() {
        for (text, expected) in [
            ("", EndpointError::Form),
            ("localhost:4317", EndpointError::Form),
            ("collector", EndpointError::Form),
            ("ftp://collector:4317", EndpointError::Form),
            ("http://:4317", EndpointError::Form),
            ("http://collector:port", EndpointError::Form),
            ("http://collector:99999", EndpointError::Form),
            ("http://collector:0", EndpointError::Form),
            ("http://collector:", EndpointError::Form),
            ("http://collector:4318/v1/traces", EndpointError::Path),
            ("http://collector:4317/?key=hunter2", EndpointError::Path),
            ("https://me:hunter2@collector:4317", EndpointError::UserInformation),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert_eq!(error, expected, "{text}");
            assert!(!error.to_string().contains("hunter2"));
        }
    }
}
