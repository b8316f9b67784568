//! The server's settings: fast to start, cheap to throw away, ready for logical replication.

use std::fmt::Write as _;
use std::path::Path;

/// What every private server is started with; a caller's value for the same name wins.
const DEFAULTS: &[(&str, &str)] = &[
    // The data is thrown away. What a crash test needs survives a crash of the server process,
    // because the operating system keeps the written pages.
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("wal_level", "logical"),
    // Many tests share one server, and each holds a slot and a sender or two.
    ("max_wal_senders", "100"),
    ("max_replication_slots", "200"),
    ("max_connections", "300"),
    // A client that was killed frees its slot within seconds, not within the default minute.
    ("wal_sender_timeout", "10s"),
    ("shared_buffers", "32MB"),
    ("jit", "off"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    ("cluster_name", "walrelay-private"),
];

/// Lines for `postgresql.conf`. The file rather than the command line, because settings of the
/// command line could not be changed by `ALTER SYSTEM` afterwards.
pub(crate) fn config_lines(port: u16, socket_dir: &Path, overrides: &[(String, String)]) -> String {
    let socket_dir = socket_dir.display().to_string();
    let port = port.to_string();
    let fixed = [
        ("listen_addresses", "127.0.0.1"),
        ("port", port.as_str()),
        ("unix_socket_directories", socket_dir.as_str()),
    ];
    let overrides = overrides.iter().map(|(name, value)| (name.as_str(), value.as_str()));

    // Of two lines for one name Postgres takes the later.
    let mut text = String::from("\n");
    for (name, value) in DEFAULTS.iter().copied().chain(overrides).chain(fixed) {
        let value = value.replace('\'', "''");
        writeln!(text, "{name} = '{value}'").expect("writing to a string does not fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_value_comes_after_the_default() {
        let overrides = [("wal_sender_timeout".to_owned(), "1s".to_owned())];
        let text = config_lines(5433, Path::new("/tmp/x"), &overrides);
        let default = text.find("wal_sender_timeout = '10s'").unwrap();
        let chosen = text.find("wal_sender_timeout = '1s'").unwrap();
        assert!(default < chosen);
    }

    #[test]
    fn a_quote_in_a_value_cannot_end_it() {
        let overrides = [("cluster_name".to_owned(), "a'b".to_owned())];
        assert!(config_lines(1, Path::new("/"), &overrides).contains("cluster_name = 'a''b'"));
    }
}
