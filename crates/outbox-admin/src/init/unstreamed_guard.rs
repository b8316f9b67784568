//! The check for rows that no slot streams, as SQL.

use walrelay_outbox_store::{UNSTREAMED_SQL, Unstreamed, UnstreamedKind};
use walrelay_pg_client::{QualifiedName, quote_literal};

/// SQL that refuses an outbox table with rows below it that are never published.
pub(crate) fn sql(table: &QualifiedName) -> String {
    let name = quote_literal(&table.to_string());
    let [(partitions, fix_of_partitions), (children, fix_of_children)] =
        [UnstreamedKind::Partitions, UnstreamedKind::Children].map(|kind| {
            let (names, columns) = (vec!["BELOW".to_owned()], "COLUMNS".to_owned());
            let found = Unstreamed { kind, names, columns };
            let fix = found.fix(&table.to_string());
            (quote_literal(&found.problem()), quote_literal(&fix))
        });
    // spliced: the name of the table, in a script that takes no parameters.
    format!(
        "DO $walrelay$
DECLARE
  outbox record;
BEGIN
  SELECT {UNSTREAMED_SQL} INTO outbox FROM pg_catalog.pg_class AS c WHERE c.oid = to_regclass({name});
  IF cardinality(outbox.unstreamed) > 0 THEN
    RAISE EXCEPTION 'table % %', {name},
        replace(CASE outbox.relkind WHEN 'p' THEN {partitions} ELSE {children} END,
                'BELOW', array_to_string(outbox.unstreamed, ', '))
      USING ERRCODE = 'WR001',
            HINT = replace(replace(CASE outbox.relkind WHEN 'p' THEN {fix_of_partitions} ELSE {fix_of_children} END,
                                   'BELOW', outbox.unstreamed[1]), 'COLUMNS', outbox.own_columns);
  END IF;
END
$walrelay$;"
    )
}
