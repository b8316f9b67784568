//! Session locks, by which a process shows other sessions its current work.

/// Returns an SQL condition: some session holds the session lock with this name, an SQL text
/// expression.
pub(crate) fn lock_is_taken(name: &str) -> String {
    format!(
        "EXISTS (SELECT FROM pg_catalog.pg_locks
                  WHERE locktype = 'advisory' AND objsubid = 1 AND granted
                    AND database = (SELECT oid FROM pg_catalog.pg_database
                                     WHERE datname = current_database())
                    AND (classid::int8 << 32) | objid::int8 = hashtextextended({name}, 0))"
    )
}
