//! The SQL condition for settled rows, around the places where a 32-bit transaction id wraps.

use walrelay_pg_client::{HORIZON_AGE_MAX, is_settled_sql, is_unsettled_sql};
use walrelay_testkit::postgres::TestDatabase;

const NOW: &str = "pg_snapshot_xmax(pg_current_snapshot())::text::numeric";
/// The transaction ids of a server on which 2^33 more transactions have run. Their low halves are
/// those of this server.
const LATER: &str = "(pg_snapshot_xmax(pg_current_snapshot())::text::numeric + 8589934592)";

#[tokio::test]
async fn a_row_is_settled_even_if_it_is_older_than_its_transaction_id_can_tell() {
    let database = TestDatabase::create().await;
    let client = database.connect().await;
    let (half, horizon_max): (i64, i64) = (1 << 31, HORIZON_AGE_MAX.try_into().unwrap());
    for (row_age, settled_age, expected) in [
        (1_000, 500, true),
        (500, 500, false),
        (400, 500, false),
        // Ancient: its id seems to be in the future.
        (half + 1_000, 500, true),
        (half + 1_000_000_000, 500, true),
        (half + 1_000_000_000, horizon_max - 100_000, true),
        // Committed after the transaction of the statement began.
        (-5, 500, false),
        // The record of a slot that was forgotten: nothing is certain.
        (1_000, half + 500, false),
        (horizon_max + 1_000, horizon_max + 500, false),
        (half + 1_000, half + 500, false),
    ] {
        let settled = is_settled_sql("r.written", "r.settled").replace(NOW, LATER);
        let unsettled = is_unsettled_sql("r.written", "r.settled").replace(NOW, LATER);
        let sql = format!(
            "SELECT {settled}, {unsettled} FROM (SELECT (({LATER} - ({row_age})) % 4294967296)::text::xid, \
               ({LATER} - ({settled_age}))::text::xid8) AS r(written, settled)"
        );
        let row = client.query_one(&sql, &[]).await.expect("a row");
        let found: (Option<bool>, Option<bool>) = (row.get(0), row.get(1));
        let case = format!("row {row_age}, settled {settled_age}");
        assert_eq!(found, (Some(expected), Some(!expected)), "{case}");
    }
}
