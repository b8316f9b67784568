//! Positions in dispatch state that another server recorded.

use walrelay_pg_client::SCHEMA;

/// Returns a CTE that moves the recorded rows of slot `$1` before every position of this server, if
/// the slot's record is of another server. The rows keep their order.
///
/// The WAL of another server can be at higher positions than the WAL here. Rows at such positions
/// would wait for this server's WAL to get there, and newer rows of their keys would overtake them.
pub(crate) fn with_positions_before(system_identifier: &str) -> String {
    // spliced: the parameter.
    format!(
        "moved AS (
           UPDATE {SCHEMA}.app_outbox_dispatch AS d SET commit_lsn = '0/0'::pg_lsn + place::numeric
             FROM (SELECT commit_lsn, row_number() OVER (ORDER BY commit_lsn) AS place
                     FROM {SCHEMA}.app_outbox_dispatch WHERE slot = $1 GROUP BY commit_lsn) AS places,
                  {SCHEMA}.app_outbox_relay AS relay
            WHERE d.slot = $1 AND d.commit_lsn = places.commit_lsn
              AND relay.slot = $1 AND relay.system_identifier <> {system_identifier})"
    )
}
