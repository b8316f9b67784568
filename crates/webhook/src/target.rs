//! The URL of the service.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use http::HeaderValue;
use reqwest::Url;

/// The reason why a URL cannot be a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The text is no URL of HTTP.
    #[error("it is no URL of HTTP; write https://HOST[:PORT]/PATH")]
    NoUrl,
    /// Events would travel readable.
    #[error(
        "it has no TLS, and events would travel readable; use https://, or http:// for localhost alone"
    )]
    Plaintext,
}

/// The URL of a service that handles events. Prints without user, password and query, which may be secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Target(Url);

impl Target {
    /// Returns whether a handler's name is meant as a URL.
    #[must_use]
    pub fn is_meant(handler: &str) -> bool {
        handler.contains("://")
    }

    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// The text is no URL, or a plain one to another machine.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let mut url = Url::parse(text.trim()).map_err(|_| TargetError::NoUrl)?;
        // A fragment is for browsers, and no part of a request.
        url.set_fragment(None);
        match url.scheme() {
            "https" if url.has_host() => Ok(Self(url)),
            "http" if is_local(&url) => Ok(Self(url)),
            "http" => Err(TargetError::Plaintext),
            _ => Err(TargetError::NoUrl),
        }
    }

    /// Returns whether the URL has a user or a password, which each request carries.
    #[must_use]
    pub fn has_user(&self) -> bool {
        !self.0.username().is_empty() || self.0.password().is_some()
    }

    /// Returns the service without the path: the audience of its tokens.
    #[must_use]
    pub fn origin(&self) -> String {
        self.0.origin().ascii_serialization()
    }

    pub(crate) fn url(&self) -> Url {
        self.0.clone()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.0.path())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

fn is_local(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = address.parse().is_ok_and(|it: Ipv4Addr| it.is_loopback())
        || address.parse().is_ok_and(|it: Ipv6Addr| it.is_loopback());
    is_loopback || host == "localhost" || host.ends_with(".localhost")
}

/// Returns the text as the value of a header. As CloudEvents do, percent-encodes spaces, quotes, percent signs and
/// all that is no visible ASCII, and characters in `also`.
pub(crate) fn encoded(text: &str, also: &str) -> HeaderValue {
    use std::fmt::Write as _;
    let mut value = String::with_capacity(text.len());
    for byte in text.bytes() {
        let character = char::from(byte);
        match character.is_ascii_graphic()
            && !"\"%".contains(character)
            && !also.contains(character)
        {
            true => value.push(character),
            // Writing to a String cannot fail.
            false => drop(write!(value, "%{byte:02X}")),
        }
    }
    HeaderValue::from_str(&value).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_url_is_for_this_machine_alone() {
        for local in [
            "http://localhost:8080/a",
            "http://127.0.0.1/",
            "http://127.9.9.9",
            "http://[::1]:80/x",
            "http://hook.localhost/",
        ] {
            assert!(Target::parse(local).is_ok(), "{local}");
        }
        for remote in [
            "http://example.com/",
            "http://10.0.0.1/",
            "http://localhost.example.com/",
            "http://[::2]/",
        ] {
            assert_eq!(Target::parse(remote), Err(TargetError::Plaintext), "{remote}");
        }
        for wrong in ["ftp://a/b", "https://", "//a", "shop.apply", "https:// a", "http://"] {
            assert_eq!(Target::parse(wrong), Err(TargetError::NoUrl), "{wrong}");
        }
    }

    #[test]
    fn a_url_prints_without_what_may_be_secret() {
        let url =
            Target::parse("https://user:hunter2@Example.com:8443/hook?token=hunter3#x").unwrap();
        assert_eq!(url.to_string(), "https://example.com:8443/hook");
        assert_eq!(format!("{url:?}"), "Target(https://example.com:8443/hook)");
        assert!(url.has_user());
        assert_eq!(Target::parse("https://a.run.app/x/y").unwrap().origin(), "https://a.run.app");
    }

    #[test]
    fn a_header_takes_any_text() {
        assert_eq!(encoded("Order 7%\"ü\n.", ""), "Order%207%25%22%C3%BC%0A.");
        assert_eq!(encoded("a.b", "."), "a%2Eb");
    }
}
