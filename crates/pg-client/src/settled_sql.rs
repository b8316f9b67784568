//! The SQL conditions for rows whose transaction is settled, or may not be.

/// A row that seems this much younger than now is an ancient one. A row that was committed after the
/// statement's transaction began may also seem younger than now, by fewer transactions.
const ANCIENT: i32 = -(1 << 24);

/// The number of transactions for which a settled horizon holds. 32 bits do not distinguish old from
/// young after 2^31.
pub const HORIZON_AGE_MAX: u64 = 2_000_000_000;

/// Returns a condition that is true if rows can be compared with `settled`, an expression of type
/// `xid8`. Null if `settled` is null.
#[must_use]
pub fn is_comparable_sql(settled: &str) -> String {
    format!(
        "(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - {settled}::text::numeric < {HORIZON_AGE_MAX})"
    )
}

/// Returns a condition that is true if the transaction `xid` of a row is older than `settled`, an
/// expression of type `xid8`. False or null if `settled` is null or too old.
///
/// A row has only the low half of its transaction id, which is compared by age. A row that is older
/// than 2^31 transactions seems to be younger than now. Such a row is frozen. It is older than every
/// settled position from which a slot can continue: a slot keeps the server from assigning so many
/// ids.
#[must_use]
pub fn is_settled_sql(xid: &str, settled: &str) -> String {
    let is_comparable = is_comparable_sql(settled);
    format!("((age({xid}) > age({settled}::xid) OR age({xid}) < {ANCIENT}) AND {is_comparable})")
}

/// Returns the opposite of [`is_settled_sql`]. True if `settled` is null or too old.
#[must_use]
pub fn is_unsettled_sql(xid: &str, settled: &str) -> String {
    format!("({} IS NOT TRUE)", is_settled_sql(xid, settled))
}
