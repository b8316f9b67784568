//! The check for rows that no slot streams, as SQL.

use walrelay_outbox_store::{UNSTREAMED_SQL, Unstreamed};
use walrelay_pg_client::{QualifiedName, quote_literal};

/// SQL that refuses an outbox table with rows below it that are never published.
pub(crate) fn sql(table: &QualifiedName) -> String {
    let name = quote_literal(&table.to_string());
    let below = || vec!["BELOW".to_owned()];
    let [(partitions, fix_of_partitions), (children, fix_of_children)] =
        [Unstreamed::Partitions(below()), Unstreamed::Children(below())].map(|found| {
            let fix = found.fix(&table.to_string());
            (quote_literal(&found.problem()), quote_literal(&fix))
        });
    // spliced: the name of the table, in a script that takes no parameters.
    format!(
        "DO $walrelay$
DECLARE
  kind \"char\";
  below text[];
BEGIN
  SELECT c.relkind, {UNSTREAMED_SQL} INTO kind, below FROM pg_catalog.pg_class AS c WHERE c.oid = to_regclass({name});
  IF cardinality(below) > 0 THEN
    RAISE EXCEPTION 'table % %', {name},
        replace(CASE kind WHEN 'p' THEN {partitions} ELSE {children} END, 'BELOW', array_to_string(below, ', '))
      USING ERRCODE = 'WR001',
            HINT = replace(CASE kind WHEN 'p' THEN {fix_of_partitions} ELSE {fix_of_children} END, 'BELOW', below[1]);
  END IF;
END
$walrelay$;"
    )
}
