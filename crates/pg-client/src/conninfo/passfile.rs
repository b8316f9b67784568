//! libpq's password file: lines `host:port:database:user:password`, where the first match wins.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use tokio::time::timeout;

use crate::error::PgError;
use crate::secret::Secret;

use super::target::{ConnectConfig, Endpoint};

/// Maximum bytes that are read of a password file: enough for thousands of hosts.
const BYTES_MAX: u64 = 1 << 20;

impl ConnectConfig {
    /// Returns the hosts with their current passwords.
    ///
    /// # Errors
    ///
    /// The password file cannot be read, or the source has no password.
    pub(crate) async fn endpoints_now(&self) -> Result<Vec<Endpoint>, PgError> {
        let mut endpoints = self.endpoints.clone();
        if let Some(from) = &self.password_source {
            let password = timeout(self.connect_timeout, from.password()).await;
            let password = password.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            let password = password.map_err(|source| PgError::PasswordSource { source })?;
            endpoints.iter_mut().for_each(|it| it.password = Some(password.clone()));
            return Ok(endpoints);
        }
        let Some(path) = &self.passfile else { return Ok(endpoints) };
        let failed = |source| PgError::PasswordFile { path: path.clone(), source };
        let contents = read(path).map_err(failed)?;
        for endpoint in &mut endpoints {
            let (database, user) = (self.database.as_str(), self.user.as_str());
            let wanted = Wanted { endpoint, database, user };
            endpoint.password = password(&contents, &wanted);
        }
        Ok(endpoints)
    }
}

/// Reads the file. Its permissions are not checked, because mounted secrets are world-readable in a
/// container.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let mut contents = String::new();
    File::open(path)?.take(BYTES_MAX).read_to_string(&mut contents)?;
    Ok(contents)
}

/// The values that a line must match.
pub(super) struct Wanted<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) database: &'a str,
    pub(super) user: &'a str,
}

/// Returns the password of the first line that matches.
pub(super) fn password(contents: &str, wanted: &Wanted<'_>) -> Option<Secret> {
    contents
        .lines()
        .map(|line| line.trim_end_matches('\r'))
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| matching(line, wanted))
}

fn matching(line: &str, wanted: &Wanted<'_>) -> Option<Secret> {
    let mut fields = fields(line).into_iter();
    let port = wanted.endpoint.port.to_string();
    // In libpq, `localhost` matches a Unix socket only in the default directory. That directory
    // differs between builds, so here `localhost` matches every socket.
    let socket_alias = wanted.endpoint.socket_dir().is_some().then_some("localhost");
    let matches = |field: Option<String>, value: &str, alias: Option<&str>| {
        field.filter(|field| field == "*" || field == value || Some(field.as_str()) == alias)
    };
    matches(fields.next(), &wanted.endpoint.host, socket_alias)?;
    matches(fields.next(), &port, None)?;
    matches(fields.next(), wanted.database, None)?;
    matches(fields.next(), wanted.user, None)?;
    fields.next().filter(|password| !password.is_empty()).map(Secret::new)
}

/// Splits a line into its five fields. A backslash escapes the `:` or `\` that follows it.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        let text = match character {
            '\\' => characters.next(),
            // A colon inside the password needs no backslash.
            ':' if fields.len() < 5 => {
                fields.push(String::new());
                continue;
            }
            other => Some(other),
        };
        if let Some(field) = fields.last_mut() {
            field.extend(text);
        }
    }
    fields
}
