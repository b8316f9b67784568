//! The keywords about encryption and about who each side is.

use std::path::PathBuf;

use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

use walrelay_errors::Chain;

use super::problem::ConninfoProblem;
use super::target::{ChannelBinding, Encryption, Negotiation, RootSource, Security};
use super::{Keywords, PgEnv};
use crate::auth_methods::AuthMethods;
use crate::error::TlsError;
use crate::secret::Secret;
use crate::tls::{self, Identity};

impl Keywords<'_> {
    pub(super) fn security(&mut self, env: &PgEnv) -> Option<Security> {
        let encryption = self.encryption(env);
        let negotiation = self.negotiation();
        let versions = self.versions();
        let names_host = self.take("sslsni").is_none_or(|value| value != "0");
        let identity = self.identity();
        let channel_binding = self.channel_binding();
        let methods = self.take("require_auth").map(|text| AuthMethods::parse(&text));
        let methods = methods.transpose().map_err(|problem| self.problem(problem)).ok()?;
        let encryption = encryption?;
        if negotiation == Negotiation::Direct && !encryption.is_required() {
            self.problem("sslnegotiation=direct needs sslmode=require, verify-ca or verify-full");
        }
        if channel_binding == ChannelBinding::Require && encryption == Encryption::Disable {
            self.problem("channel_binding=require needs TLS, which sslmode=disable excludes");
        }
        let security = Security {
            encryption,
            negotiation,
            versions,
            names_host,
            identity,
            channel_binding,
            methods,
        };
        // Every connection reads the files again. A wrong path is a configuration error now.
        match tls::client_config(&security) {
            Ok(_) => {}
            Err(error @ (TlsError::RootFile { .. } | TlsError::RootPem { .. })) => {
                self.problems.push(ConninfoProblem::of_roots(error.to_string()));
            }
            Err(error) => self.problem(Chain(&error).to_string()),
        }
        Some(security)
    }

    fn encryption(&mut self, env: &PgEnv) -> Option<Encryption> {
        let path = self.take("sslrootcert");
        let jdbc = self.take("ssl").filter(|value| value == "true").map(|_| "require".to_owned());
        let mode = self.take("sslmode").or(jdbc);
        let is_system = path.as_deref() == Some("system");
        let roots = match (path, &env.sslrootcert_pem) {
            (Some(path), _) if path == "system" => Some(RootSource::Public),
            (Some(path), _) => Some(RootSource::File(PathBuf::from(path))),
            (None, Some(pem)) => Some(RootSource::Inline(pem.clone())),
            (None, None) => None,
        };
        let mode = mode.unwrap_or_else(|| if is_system { "verify-full" } else { "prefer" }.into());
        if is_system && mode != "verify-full" {
            self.problem("sslrootcert=system needs sslmode=verify-full");
            return None;
        }
        Some(match (mode.as_str(), roots) {
            ("disable", _) => Encryption::Disable,
            ("allow" | "prefer", _) => Encryption::Prefer,
            // As in libpq: a root certificate turns "require" into "verify-ca".
            ("require", None) => Encryption::Require,
            ("require" | "verify-ca", Some(roots)) => Encryption::VerifyCa(roots),
            ("verify-ca", None) => Encryption::VerifyCa(RootSource::Public),
            ("verify-full", roots) => Encryption::VerifyFull(roots.unwrap_or(RootSource::Public)),
            (_, _) => {
                self.problem("sslmode must be disable, prefer, require, verify-ca or verify-full");
                return None;
            }
        })
    }

    fn negotiation(&mut self) -> Negotiation {
        self.one_of(
            "sslnegotiation",
            &[("postgres", Negotiation::Asked), ("direct", Negotiation::Direct)],
        )
    }

    fn channel_binding(&mut self) -> ChannelBinding {
        self.one_of(
            "channel_binding",
            &[
                ("prefer", ChannelBinding::Prefer),
                ("disable", ChannelBinding::Disable),
                ("require", ChannelBinding::Require),
            ],
        )
    }

    /// Returns the versions of TLS between the lowest and the highest that are asked for. Versions before
    /// 1.2 are never used.
    fn versions(&mut self) -> Vec<&'static SupportedProtocolVersion> {
        let lowest = [("TLSv1", 2), ("TLSv1.1", 2), ("TLSv1.2", 2), ("TLSv1.3", 3)];
        let highest = [("TLSv1.3", 3), ("TLSv1.2", 2)];
        let lowest = self.one_of("ssl_min_protocol_version", &lowest);
        let highest = self.one_of("ssl_max_protocol_version", &highest);
        let versions = [(2, &TLS12), (3, &TLS13)].into_iter();
        let versions: Vec<_> =
            versions.filter(|(it, _)| (lowest..=highest).contains(it)).map(|it| it.1).collect();
        if versions.is_empty() {
            self.problem("ssl_min_protocol_version is above ssl_max_protocol_version");
        }
        versions
    }

    fn identity(&mut self) -> Option<Identity> {
        let certificate = self.take("sslcert").map(PathBuf::from);
        let key = self.take("sslkey").map(PathBuf::from);
        let password = self.take("sslpassword").map(Secret::new);
        let is_used = self.one_of("sslcertmode", &[("allow", true), ("disable", false)]);
        match (certificate, key) {
            _ if !is_used => None,
            (Some(certificate), Some(key)) => Some(Identity { certificate, key, password }),
            (None, None) => None,
            (Some(_), None) => {
                self.problem("sslcert is given without sslkey, the file of its private key");
                None
            }
            (None, Some(_)) => {
                self.problem("sslkey is given without sslcert, the file of its certificate");
                None
            }
        }
    }

    /// Takes a keyword that has one of these values, the first by default.
    pub(super) fn one_of<T: Copy>(&mut self, keyword: &str, values: &[(&str, T)]) -> T {
        let given = self.take(keyword);
        let found = |text: &String| values.iter().find(|(value, _)| value == text);
        if given.as_ref().is_some_and(|text| found(text).is_none()) {
            let names: Vec<&str> = values.iter().map(|(value, _)| *value).collect();
            let (last, others) = names.split_last().unwrap_or((&"", &[]));
            self.problem(format!("{keyword} must be {} or {last}", others.join(", ")));
        }
        given.as_ref().and_then(found).map_or(values[0].1, |it| it.1)
    }
}
