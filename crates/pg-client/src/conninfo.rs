//! Connection strings in libpq's format: parsing, and all problems of a string at once.
//!
//! Owns the meaning of every keyword. Promises that a [`ConnectConfig`] can be used without further
//! checks, and that no reported problem quotes a secret. Reads only the files that the string names
//! (password file, root certificates), never the environment.

use std::path::PathBuf;
use std::time::Duration;

use crate::secret::Secret;
use crate::tls;

mod passfile;
mod problem;
mod target;
mod text;

pub use problem::ConninfoProblem;
pub use target::{ConnectConfig, Endpoint, TargetSession};
pub(crate) use target::{Encryption, RootSource};

/// Default of `connect_timeout`. libpq has no default and waits for the kernel. Ten seconds are
/// long enough for a cold network path, and short enough to try the next address while a caller
/// waits.
pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// Values from the environment. `main` reads the environment, because the library does not.
#[derive(Debug, Clone, Default)]
pub struct PgEnv {
    /// User name if the string names none (`PGUSER`, or the account's name).
    pub user: Option<String>,
    /// `PGPASSWORD`.
    pub password: Option<Secret>,
    /// `PGPASSFILE`: read if no password is given elsewhere.
    pub passfile: Option<PathBuf>,
    /// `WALRELAY_SSLROOTCERT_PEM`: the root certificates as PEM text, instead of a path.
    pub sslrootcert_pem: Option<String>,
}

impl ConnectConfig {
    /// Parses a URL or a keyword string, as libpq does.
    ///
    /// # Errors
    ///
    /// Returns every problem of the string at once.
    pub fn parse(text: &str, env: &PgEnv) -> Result<Self, Vec<ConninfoProblem>> {
        let mut problems = Vec::new();
        let pairs = text::pairs(text.trim(), &mut problems);
        let mut keywords = Keywords::new(pairs, &mut problems);
        let config = keywords.config(env);
        match (config, problems.is_empty()) {
            (Some(config), true) => Ok(config),
            _ => Err(problems),
        }
    }
}

/// Keywords that libpq knows and this client ignores, with the values that change nothing.
const INERT: [(&str, &[&str]); 13] = [
    ("fallback_application_name", &[]),
    ("keepalives", &["1"]),
    ("keepalives_idle", &[]),
    ("keepalives_interval", &[]),
    ("keepalives_count", &[]),
    ("tcp_user_timeout", &[]),
    ("gssencmode", &["disable", "prefer"]),
    ("channel_binding", &["disable", "prefer"]),
    ("client_encoding", &["UTF8", "utf8", "UTF-8", "auto"]),
    ("sslnegotiation", &["postgres"]),
    ("sslcompression", &["0"]),
    ("sslsni", &["1"]),
    ("load_balance_hosts", &["disable"]),
];

/// The pairs that are not yet used. Each pair left at the end is a problem.
struct Keywords<'a> {
    pairs: text::Pairs,
    problems: &'a mut Vec<ConninfoProblem>,
}

impl<'a> Keywords<'a> {
    fn new(pairs: text::Pairs, problems: &'a mut Vec<ConninfoProblem>) -> Self {
        Self { pairs, problems }
    }

    fn config(&mut self, env: &PgEnv) -> Option<ConnectConfig> {
        let user = self.take("user").or_else(|| env.user.clone());
        let database = self.take("dbname").or_else(|| user.clone());
        let mut endpoints = self.endpoints();
        let password = self.take("password").map(Secret::new).or_else(|| env.password.clone());
        let passfile = self.take("passfile").map(PathBuf::from).or_else(|| env.passfile.clone());
        let encryption = self.encryption(env);
        let session = self.session();
        let connect_timeout = self.connect_timeout();
        let application_name = self.take("application_name");
        let options = self.take("options");
        self.refuse_leftovers();
        let (Some(user), Some(database)) = (user, database) else {
            self.problem("no user is named; write postgresql://USER@host/database");
            return None;
        };
        let passfile = passfile.filter(|_| password.is_none());
        endpoints.iter_mut().for_each(|endpoint| endpoint.password = password.clone());
        // Every connection reads the file again. A wrong path is a configuration error now.
        if let Some((path, Err(error))) = passfile.as_deref().map(|it| (it, passfile::read(it))) {
            self.problem(format!("read password file {}: {error}", path.display()));
        }
        Some(ConnectConfig {
            endpoints,
            passfile,
            user,
            database,
            encryption: encryption?,
            application_name: application_name.unwrap_or_else(|| "walrelay".to_owned()),
            connect_timeout,
            options,
            session,
        })
    }

    /// Removes a keyword and returns its last value. An empty value counts as not given, as in
    /// libpq.
    fn take(&mut self, keyword: &str) -> Option<String> {
        let mut last = None;
        self.pairs.retain_mut(|(name, value)| {
            let found = name == keyword;
            if found {
                last = Some(std::mem::take(value));
            }
            !found
        });
        last.filter(|value| !value.is_empty())
    }

    fn problem(&mut self, text: impl Into<String>) {
        self.problems.push(ConninfoProblem::new(text));
    }

    fn endpoints(&mut self) -> Vec<Endpoint> {
        // In libpq, hostaddr saves the lookup of host. Here the address alone is enough.
        let names = self.take("host");
        let addresses = self.take("hostaddr");
        if names.is_some() && addresses.is_some() {
            self.problem("host and hostaddr are both given; give one of them");
        }
        let hosts = addresses.or(names).unwrap_or_else(|| "localhost".to_owned());
        let hosts: Vec<_> = hosts.split(',').map(str::to_owned).collect();
        let ports = self.take("port").unwrap_or_default();
        let ports: Vec<_> = ports.split(',').map(str::to_owned).collect();
        if ports.len() != 1 && ports.len() != hosts.len() {
            self.problem(format!("{} ports are given for {} hosts", ports.len(), hosts.len()));
            return Vec::new();
        }
        let mut endpoints = Vec::new();
        for (index, host) in hosts.into_iter().enumerate() {
            let port = ports.get(index).unwrap_or(&ports[0]);
            let Some(port) = port_number(port) else {
                // Do not quote the port, because an unencoded password can end up there.
                self.problem(format!(
                    "the port of host number {} is not a number from 1 to 65535",
                    index + 1
                ));
                continue;
            };
            let host = if host.is_empty() { "localhost".to_owned() } else { host };
            endpoints.push(Endpoint { host, port, password: None });
        }
        endpoints
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
            self.problem(format!("sslrootcert=system needs sslmode=verify-full, not {mode:?}"));
            return None;
        }
        let encryption = match (mode.as_str(), roots) {
            ("disable", _) => Encryption::Disable,
            ("allow" | "prefer", _) => Encryption::Prefer,
            // As in libpq: a root certificate turns "require" into "verify-ca".
            ("require", None) => Encryption::Require,
            ("require" | "verify-ca", Some(roots)) => Encryption::VerifyCa(roots),
            ("verify-ca", None) => Encryption::VerifyCa(RootSource::Public),
            ("verify-full", roots) => Encryption::VerifyFull(roots.unwrap_or(RootSource::Public)),
            (other, _) => {
                self.problem(format!(
                    "sslmode is {other:?}; it must be disable, prefer, require, verify-ca or \
                     verify-full"
                ));
                return None;
            }
        };
        if let Err(error) = tls::client_config(&encryption) {
            self.problems.push(ConninfoProblem::of_roots(error.to_string()));
        }
        Some(encryption)
    }

    fn session(&mut self) -> TargetSession {
        match self.take("target_session_attrs").as_deref() {
            None | Some("any") => TargetSession::Any,
            Some("read-write") => TargetSession::ReadWrite,
            Some("read-only") => TargetSession::ReadOnly,
            Some("primary") => TargetSession::Primary,
            Some("standby") => TargetSession::Standby,
            Some(other) => {
                self.problem(format!(
                    "target_session_attrs is {other:?}; it must be any, read-write, read-only, \
                     primary or standby"
                ));
                TargetSession::Any
            }
        }
    }

    fn connect_timeout(&mut self) -> Duration {
        let Some(text) = self.take("connect_timeout") else { return CONNECT_TIMEOUT_DEFAULT };
        match text.parse::<i32>().map(u64::try_from) {
            Ok(Ok(seconds)) if seconds > 0 => Duration::from_secs(seconds),
            // In libpq this value waits for ever. A relay that waits for ever reports nothing.
            Ok(_) => CONNECT_TIMEOUT_DEFAULT,
            Err(_) => {
                self.problem(format!("connect_timeout is {text:?}; it must be whole seconds"));
                CONNECT_TIMEOUT_DEFAULT
            }
        }
    }

    fn refuse_leftovers(&mut self) {
        for (keyword, value) in std::mem::take(&mut self.pairs) {
            match INERT.iter().find(|(name, _)| *name == keyword) {
                Some((_, [])) => {}
                Some((_, values)) if values.contains(&value.as_str()) => {}
                Some((_, values)) => self.problem(format!(
                    "{keyword} is not supported here except as {}",
                    values.join(" or ")
                )),
                None => self.problem(format!("unknown parameter {keyword:?}")),
            }
        }
    }
}

fn port_number(text: &str) -> Option<u16> {
    match text {
        "" => Some(5432),
        digits => digits.parse().ok().filter(|port| *port != 0),
    }
}

#[cfg(test)]
mod tests;
