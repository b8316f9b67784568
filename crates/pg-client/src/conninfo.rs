//! Connection strings in libpq's format: parsing, and all problems of a string at once.
//!
//! Owns the meaning of every keyword. Promises that a [`ConnectConfig`] can be used without further
//! checks, and that no reported problem quotes a secret. Reads only the files that the string or [`PgEnv`]
//! names (passwords, services, certificates, a key), never the environment.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::secret::Secret;

mod liveness;
mod passfile;
mod problem;
mod security;
mod service;
mod target;
mod text;

pub use problem::ConninfoProblem;
pub use target::{ChannelBinding, ConnectConfig, Endpoint, TargetSession};
pub(crate) use target::{Encryption, Liveness, Negotiation, RootSource, Security};

/// Default of `connect_timeout`. libpq has no default and waits for the kernel. Ten seconds are
/// long enough for a cold network path, and short enough to try the next address while a caller
/// waits.
pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// The name of a connection whose string has none.
pub const APPLICATION_NAME: &str = "walrelay";

/// Values from the environment. `main` reads the environment, because the library does not.
#[derive(Debug, Clone, Default)]
pub struct PgEnv {
    /// User name if the string names none (`PGUSER`, or the account's name).
    pub user: Option<String>,
    /// `PGPASSWORD`.
    pub password: Option<Secret>,
    /// `PGPASSFILE`: read if no password is given elsewhere.
    pub passfile: Option<PathBuf>,
    /// `PGSERVICE`: the service if the string names none.
    pub service: Option<String>,
    /// The files that may have a service: `PGSERVICEFILE`, else those of the account and of the machine.
    pub service_files: Vec<PathBuf>,
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
        let mut pairs = text::pairs(text.trim(), &mut problems);
        if let Err(problem) = add_service(&mut pairs, env) {
            // Everything else may be in the service.
            return Err(vec![problem]);
        }
        let mut keywords = Keywords::new(pairs, &mut problems);
        let config = keywords.config(env);
        match (config, problems.is_empty()) {
            (Some(config), true) => Ok(config),
            _ => Err(problems),
        }
    }
}

/// Keywords that libpq knows and that change nothing here, with the values for which that is true.
const INERT: [(&str, &[&str]); 15] = [
    ("servicefile", &[]),
    ("fallback_application_name", &[]),
    ("replication", &["database", "false", "off", "no", "0"]),
    ("gssencmode", &["disable", "prefer"]),
    ("krbsrvname", &[]),
    ("gsslib", &[]),
    ("gssdelegation", &[]),
    ("client_encoding", &["UTF8", "utf8", "UTF-8", "auto"]),
    ("sslcompression", &["0", "1"]),
    ("requiressl", &["0"]),
    ("load_balance_hosts", &["disable"]),
    ("min_protocol_version", &["3.0"]),
    ("max_protocol_version", &[]),
    ("authtype", &[]),
    ("tty", &[]),
];

/// Keywords that cannot be honoured, with the reason. To ignore one would make a connection less safe
/// than its string says.
const REFUSED: [(&str, &str); 10] = [
    ("scram_client_key", NO_KEYS),
    ("scram_server_key", NO_KEYS),
    ("sslcrl", NO_REVOCATION),
    ("sslcrldir", NO_REVOCATION),
    ("sslkeylogfile", "it would write the keys of the connection into a file"),
    (
        "requirepeer",
        "the account of a server on a Unix socket is not checked; the socket's directory must be safe",
    ),
    ("oauth_issuer", NO_OAUTH),
    ("oauth_client_id", NO_OAUTH),
    ("oauth_client_secret", NO_OAUTH),
    ("oauth_scope", NO_OAUTH),
];

const NO_REVOCATION: &str =
    "lists of revoked certificates are not read; name the authority in sslrootcert, and replace it";
const NO_KEYS: &str = "authentication needs the password itself; give that";
const NO_OAUTH: &str = "use a password, a client certificate, or no authentication";

/// The pairs that are not yet used. Each pair left at the end is a problem.
struct Keywords<'a> {
    pairs: text::Pairs,
    /// The names of all pairs, in the order of the string.
    order: Vec<String>,
    problems: &'a mut Vec<ConninfoProblem>,
}

impl<'a> Keywords<'a> {
    fn new(pairs: text::Pairs, problems: &'a mut Vec<ConninfoProblem>) -> Self {
        let order = pairs.iter().map(|(name, _)| name.clone()).collect();
        Self { pairs, order, problems }
    }

    fn config(&mut self, env: &PgEnv) -> Option<ConnectConfig> {
        let user = self.take("user").or_else(|| env.user.clone());
        let database = self.take("dbname").or_else(|| user.clone());
        let mut endpoints = self.endpoints();
        let password = self.take("password").map(Secret::new).or_else(|| env.password.clone());
        let passfile = self.take("passfile").map(PathBuf::from).or_else(|| env.passfile.clone());
        let security = self.security(env);
        let liveness = self.liveness();
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
            password_source: None,
            user,
            database,
            security: security?,
            liveness,
            application_name: application_name.unwrap_or_else(|| APPLICATION_NAME.to_owned()),
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
        let names = self.take("host");
        let addresses = self.take("hostaddr");
        let hosts = names.or_else(|| addresses.clone()).unwrap_or_else(|| "localhost".to_owned());
        let hosts: Vec<_> = hosts.split(',').map(str::to_owned).collect();
        let Some(addresses) = self.addresses(addresses.as_deref(), hosts.len()) else {
            return Vec::new();
        };
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
            let address = addresses.get(index).copied().flatten();
            endpoints.push(Endpoint { host, address, port, password: None });
        }
        endpoints
    }

    /// Parses the addresses of the hosts. For an empty one, the name is looked up.
    fn addresses(&mut self, text: Option<&str>, hosts: usize) -> Option<Vec<Option<IpAddr>>> {
        let Some(text) = text else { return Some(Vec::new()) };
        let parts =
            text.split(',').map(|part| (!part.is_empty()).then(|| part.parse()).transpose());
        let parts: Result<Vec<_>, _> = parts.collect();
        match parts {
            Ok(addresses) if addresses.len() == hosts => Some(addresses),
            Ok(addresses) => {
                let count = addresses.len();
                self.problem(format!("{count} addresses (hostaddr) are given for {hosts} hosts"));
                None
            }
            Err(_) => {
                self.problem("hostaddr has a part that is no IPv4 or IPv6 address");
                None
            }
        }
    }

    fn session(&mut self) -> TargetSession {
        self.one_of(
            "target_session_attrs",
            &[
                ("any", TargetSession::Any),
                ("read-write", TargetSession::ReadWrite),
                ("read-only", TargetSession::ReadOnly),
                ("primary", TargetSession::Primary),
                ("standby", TargetSession::Standby),
            ],
        )
    }

    fn connect_timeout(&mut self) -> Duration {
        let Some(text) = self.take("connect_timeout") else { return CONNECT_TIMEOUT_DEFAULT };
        match text.parse::<i32>().map(u64::try_from) {
            Ok(Ok(seconds)) if seconds > 0 => Duration::from_secs(seconds),
            // In libpq this value waits for ever. A relay that waits for ever reports nothing.
            Ok(_) => CONNECT_TIMEOUT_DEFAULT,
            Err(_) => {
                self.problem("connect_timeout must be whole seconds");
                CONNECT_TIMEOUT_DEFAULT
            }
        }
    }

    fn refuse_leftovers(&mut self) {
        let left = std::mem::take(&mut self.pairs);
        let is_listed = |name: &str| {
            INERT.iter().any(|(it, _)| *it == name) || REFUSED.iter().any(|(it, _)| *it == name)
        };
        let is_unknown = |name: &str| left.iter().any(|(it, _)| it == name) && !is_listed(name);
        for (keyword, value) in left.iter().filter(|(_, value)| !value.is_empty()) {
            if let Some((_, why)) = REFUSED.iter().find(|(name, _)| name == keyword) {
                self.problem(format!("{keyword} is not supported: {why}"));
                continue;
            }
            match INERT.iter().find(|(name, _)| name == keyword) {
                Some((_, [])) => {}
                Some((_, values)) if values.contains(&value.as_str()) => {}
                Some((_, values)) => self.problem(format!(
                    "{keyword} is not supported here except as {}",
                    values.join(" or ")
                )),
                None => {
                    let at = self.order.iter().position(|name| name == keyword);
                    let before = at.and_then(|at| self.order.get(at.checked_sub(1)?));
                    let known = before.filter(|name| !is_unknown(name));
                    let place = known.map_or(String::new(), |name| format!(" behind {name}"));
                    // Its name may be a part of a password.
                    self.problem(format!(
                        "the parameter{place} is none of libpq's; in a password, write & as %26 in a URL, and \
                         quote spaces"
                    ));
                }
            }
        }
    }
}

/// Adds the pairs of the service that the string or the environment names. What the string says itself
/// comes later, and therefore wins.
fn add_service(pairs: &mut text::Pairs, env: &PgEnv) -> Result<(), ConninfoProblem> {
    let given = |keyword: &str| {
        let found = pairs.iter().rev().find(|(name, _)| name == keyword);
        found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
    };
    let Some(service) = given("service").or_else(|| env.service.clone()) else { return Ok(()) };
    let file = given("servicefile").map(PathBuf::from);
    let files = file.map_or_else(|| env.service_files.clone(), |file| vec![file]);
    let of_service = service::pairs(&service, &files)?;
    pairs.retain(|(name, _)| name != "service" && name != "servicefile");
    pairs.splice(0..0, of_service);
    Ok(())
}

fn port_number(text: &str) -> Option<u16> {
    match text {
        "" => Some(5432),
        digits => digits.parse().ok().filter(|port| *port != 0),
    }
}

#[cfg(test)]
mod tests;
