//! The server's settings: a fast start, throwaway data, ready for logical replication.

use std::fmt::Write as _;
use std::path::Path;

/// The default settings of every private server. A caller's value for the same name wins.
const DEFAULTS: &[(&str, &str)] = &[
    // The data is thrown away. Crash tests kill only the server process, and the operating system
    // keeps the pages that the process wrote.
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("wal_level", "logical"),
    // Many tests share one server, and each test uses a slot and one or two WAL senders.
    ("max_wal_senders", "100"),
    ("max_replication_slots", "200"),
    ("max_connections", "300"),
    // The slot of a killed client becomes free within seconds. The default takes a minute.
    ("wal_sender_timeout", "10s"),
    ("shared_buffers", "32MB"),
    ("jit", "off"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    ("cluster_name", "walrelay-private"),
];

/// Returns lines for `postgresql.conf`. Settings on the command line would override later `ALTER
/// SYSTEM` changes.
pub(crate) fn config_lines(port: u16, socket_dir: &Path, overrides: &[(String, String)]) -> String {
    let socket_dir = socket_dir.display().to_string();
    let port = port.to_string();
    let fixed = [
        ("listen_addresses", "127.0.0.1"),
        ("port", port.as_str()),
        ("unix_socket_directories", socket_dir.as_str()),
    ];
    let overrides = overrides.iter().map(|(name, value)| (name.as_str(), value.as_str()));

    // If a name occurs twice, Postgres takes the later line.
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
