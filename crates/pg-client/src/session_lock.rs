//! Session locks, by which a process shows other sessions its current work.

/// Whether some session holds the session lock of this name, an SQL expression of type text: a condition.
#[must_use]
pub fn lock_is_taken(name: &str) -> String {
    // spliced: the expression of the name.
    format!(
        "EXISTS (SELECT FROM pg_catalog.pg_locks
                  WHERE locktype = 'advisory' AND objsubid = 1 AND granted
                    AND database = (SELECT oid FROM pg_catalog.pg_database
                                     WHERE datname = current_database())
                    AND (classid::int8 << 32) | objid::int8 = hashtextextended({name}, 0))"
    )
}
