//! Every setting of Postgres 15 to 18 that can end a session, a transaction or a statement of ours.
//!
//! A role or a database may have any of these settings. What a session can set is set in each
//! session. `walrelay check` reports the others.

use std::sync::LazyLock;

use crate::names::quote_literal;

/// A setting of the server that limits sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimit {
    /// Name of the setting.
    pub name: &'static str,
    /// The first major version that knows the setting.
    pub since: u32,
    /// The last major version that knows the setting. None if all later versions know it.
    pub until: Option<u32>,
    /// The value that means "no limit", as `pg_settings` shows it.
    pub off: &'static str,
    /// Who keeps the limit from ending our work.
    pub handling: LimitHandling,
}

/// Who keeps a limit from ending our work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitHandling {
    /// Each session of ours switches the limit off. A component that needs a limit of its own sets
    /// that afterwards.
    Set,
    /// The replication connection sets its own value. It ends no other session.
    SetByStream,
    /// The role's value stays. It protects other sessions, and its error ends only one statement.
    Kept,
    /// Only a superuser or the server's configuration can change it. `walrelay check` reports it.
    Reported,
}

const fn limit(
    name: &'static str,
    since: u32,
    off: &'static str,
    handling: LimitHandling,
) -> SessionLimit {
    SessionLimit { name, since, until: None, off, handling }
}

/// The inventory.
pub static SESSION_LIMITS: [SessionLimit; 14] = [
    limit("statement_timeout", 15, "0", LimitHandling::Set),
    limit("idle_in_transaction_session_timeout", 15, "0", LimitHandling::Set),
    limit("idle_session_timeout", 15, "0", LimitHandling::Set),
    // Also ends a walsender in the middle of a transaction.
    limit("transaction_timeout", 17, "0", LimitHandling::Set),
    // A session that does not read for a while, because of back-pressure, is no dead client.
    limit("tcp_user_timeout", 15, "0", LimitHandling::Set),
    // Sessions write where the role may, or the slot would retain WAL for ever. A command that is
    // refused after its first step would leave half of its work.
    limit("default_transaction_read_only", 15, "off", LimitHandling::Set),
    // The text of a row filter in the catalog is compared with ours.
    limit("quote_all_identifiers", 15, "off", LimitHandling::Set),
    limit("wal_sender_timeout", 15, "0", LimitHandling::SetByStream),
    // A command that queues for a lock blocks the producers behind it.
    limit("lock_timeout", 15, "0", LimitHandling::Kept),
    // Ends only statements whose client is gone.
    limit("client_connection_check_interval", 15, "0", LimitHandling::Kept),
    limit("temp_file_limit", 15, "-1", LimitHandling::Reported),
    SessionLimit {
        until: Some(16),
        ..limit("old_snapshot_threshold", 15, "-1", LimitHandling::Reported)
    },
    limit("idle_replication_slot_timeout", 18, "0", LimitHandling::Reported),
    limit("max_slot_wal_keep_size", 15, "-1", LimitHandling::Reported),
];

fn names_of(
    handling: LimitHandling,
    since: impl Fn(u32) -> bool,
) -> impl Iterator<Item = &'static str> {
    let of = SESSION_LIMITS.iter().filter(move |it| it.handling == handling && since(it.since));
    of.map(|it| it.name)
}

/// The oldest major version that is supported.
const OLDEST: u32 = 15;

/// Returns the startup options that switch off the limits which every supported version knows. An
/// unknown name in the startup options is a fatal error.
pub fn startup_limits() -> impl Iterator<Item = (&'static str, &'static str)> {
    names_of(LimitHandling::Set, |since| since <= OLDEST).map(|name| (name, "0"))
}

/// SQL that switches off the limits of this session, also a switch by `0`. Names that the server does
/// not know are left out. The first statement keeps a short limit from cancelling the second one.
pub static SET_SESSION_LIMITS: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<_> = names_of(LimitHandling::Set, |_| true).map(quote_literal).collect();
    // spliced: the names of settings, which are constants.
    format!(
        "SET statement_timeout = 0; \
         SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.unnest(ARRAY[{}]) AS name \
          WHERE pg_catalog.current_setting(name, true) IS NOT NULL",
        names.join(", ")
    )
});

/// An SQL expression that switches off `transaction_timeout` for this transaction, also where the
/// server does not know it. For transactions on a session that may be shared, which set their other
/// time-outs themselves.
pub const NO_TRANSACTION_TIMEOUT: &str = "\
    CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL \
      THEN pg_catalog.set_config('transaction_timeout', '0', true) END";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_an_old_server_does_not_know_is_never_a_startup_option() {
        let options: Vec<_> = startup_limits().map(|(name, _)| name).collect();
        assert!(options.contains(&"statement_timeout"), "{options:?}");
        assert!(!options.contains(&"transaction_timeout"), "{options:?}");
        assert!(SET_SESSION_LIMITS.contains("'transaction_timeout'"));
    }
}
