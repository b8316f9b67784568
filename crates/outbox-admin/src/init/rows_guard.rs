//! Checks of the script for rows that the first slot would not stream.

use walrelay_outbox_store::Outbox;
use walrelay_pg_client::{QualifiedName, SCHEMA, quote_literal, table_literals};

/// Refuses to create the first slot while the outbox has rows, and notes in the session that the
/// slot is the first one.
///
/// The command creates its first slot otherwise, together with a snapshot. This is for the script,
/// and for roles that may not read the outbox.
pub(super) fn before(outbox: &Outbox) -> String {
    let slot = quote_literal(&outbox.slot);
    // spliced: the name of the slot, in a script that takes no parameters.
    let precondition = format!(
        "PERFORM set_config('walrelay.first_slot', '', false);
  IF EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {slot})
     OR EXISTS (SELECT FROM {SCHEMA}.app_outbox_relay WHERE slot = {slot}) THEN
    RETURN;
  END IF;"
    );
    let note = format!("PERFORM set_config('walrelay.first_slot', {slot}, false);");
    guard(outbox, &precondition, "", &note)
}

/// Drops the slot that this session has created, if the outbox has rows by now. The creation waits
/// for open transactions, and the slot does not stream their rows. SQL cannot distinguish these rows
/// from later ones, so both are refused, and nothing is lost.
pub(super) fn meanwhile(outbox: &Outbox) -> String {
    let slot = quote_literal(&outbox.slot);
    // spliced: the name of the slot, in a script that takes no parameters.
    let precondition = format!(
        "IF current_setting('walrelay.first_slot', true) IS DISTINCT FROM {slot} THEN
    RETURN;
  END IF;"
    );
    let drop = format!("PERFORM pg_drop_replication_slot({slot});");
    guard(outbox, &precondition, &drop, "")
}

/// Returns a block that fails if an outbox table has rows. `on_rows` runs before the failure, and
/// `otherwise` if there are none.
fn guard(outbox: &Outbox, precondition: &str, on_rows: &str, otherwise: &str) -> String {
    let slot = quote_literal(&outbox.slot);
    // spliced: the names of the slot and its tables, in a script that takes no parameters.
    format!(
        "DO $walrelay$
DECLARE
  outbox text;
  has_rows bool;
BEGIN
  {precondition}
  FOREACH outbox IN ARRAY ARRAY[{}]::text[] LOOP
    IF has_table_privilege(to_regclass(outbox), 'SELECT') THEN
      EXECUTE format('SELECT EXISTS (SELECT FROM %s AS t WHERE t.tableoid = $1 OR t.tableoid IN
                                       (SELECT part.relid FROM pg_partition_tree($1) AS part))', to_regclass(outbox))
        INTO has_rows USING to_regclass(outbox);
      IF has_rows THEN
        {on_rows}
        RAISE EXCEPTION '% has rows, which the new slot % does not stream', outbox, {slot}
          USING HINT = 'Publish them with a backfill, or skip existing rows if they need no publishing.';
      END IF;
    END IF;
  END LOOP;
  {otherwise}
END
$walrelay$;",
        table_literals(&outbox.tables)
    )
}

/// Keeps rows out of a table that is added to the publication of an existing slot, and refuses a table
/// that has rows: the slot does not stream them.
pub(super) fn of_added(table: &QualifiedName, slot: &str) -> String {
    let (slot, name) = (quote_literal(slot), quote_literal(&table.to_string()));
    // spliced: the names of the slot and of the table, in a script without parameters.
    format!(
        "IF EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {slot}) THEN
      LOCK TABLE {table} IN SHARE MODE;
      IF EXISTS (SELECT FROM {table}) THEN
        RAISE EXCEPTION 'table % has rows that slot % does not stream', {name}, {slot}
          USING HINT = 'Delete these rows and insert them again afterwards, or skip existing rows.';
      END IF;
    END IF;"
    )
}
