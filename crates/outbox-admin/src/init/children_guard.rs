//! The check of the script for rows that no slot streams.

use walrelay_outbox_store::describe_children;
use walrelay_pg_client::{QualifiedName, quote_literal};

/// Refuses an outbox table with inheritance children, because no slot streams their rows.
pub(super) fn sql(table: &QualifiedName) -> String {
    let name = quote_literal(&table.to_string());
    let some = ["CHILD".to_owned()];
    let (problem, fix) = describe_children(&table.to_string(), &some).unwrap_or_default();
    let (problem, fix) = (quote_literal(&problem), quote_literal(&fix));
    // spliced: the name of the table, in a script that takes no parameters.
    format!(
        "DO $walrelay$
DECLARE
  children text;
BEGIN
  SELECT string_agg(i.inhrelid::regclass::text, ', ') INTO children
    FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhparent
   WHERE i.inhparent = to_regclass({name}) AND c.relkind <> 'p';
  IF children IS NOT NULL THEN
    RAISE EXCEPTION 'table % %', {name}, replace({problem}, 'CHILD', children)
      USING ERRCODE = 'WR001', HINT = replace({fix}, 'CHILD', children);
  END IF;
END
$walrelay$;"
    )
}
