//! The SQL condition for rows whose transaction is settled.

/// A row that seems this much younger than now is an ancient one. A row that was committed after the
/// statement's transaction began may also seem younger than now, by fewer transactions.
const ANCIENT: i32 = -(1 << 24);

/// The distance in transactions from which 32 bits do not distinguish old from young.
const HALF: u64 = 1 << 31;

/// Returns a condition that is true if the transaction `xid` of a row is older than `settled`, an
/// expression of type `xid8`. False or null if `settled` is null or too old.
///
/// A row has only the low half of its transaction id, which is compared by age. A row that is older
/// than 2^31 transactions seems to be younger than now. Such a row is frozen. It is older than every
/// settled position from which a slot can continue: a slot keeps the server from assigning so many
/// ids.
#[must_use]
pub fn is_settled_sql(xid: &str, settled: &str) -> String {
    format!(
        "((age({xid}) > age({settled}::xid) OR age({xid}) < {ANCIENT}) AND \
         pg_snapshot_xmax(pg_current_snapshot())::text::numeric - {settled}::text::numeric < {HALF})"
    )
}
