//! Checks of the script for a slot that exists, or existed.

use walrelay_outbox_store::Outbox;
use walrelay_pg_client::{SCHEMA, quote_identifier, quote_literal};

/// Refuses to create a publication that is younger than its slot.
pub(super) fn not_older(Outbox { slot, publication, .. }: &Outbox) -> String {
    let (slot, publication) = (quote_literal(slot), quote_literal(publication));
    // spliced: names of the slot and the publication.
    format!(
        "IF EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {slot}) THEN
      RAISE EXCEPTION 'slot % is older than publication %, which does not exist', {slot}, {publication}
        USING HINT = 'The slot would fail on every change in between: name its publication, or a new slot.';
    END IF;"
    )
}

/// Refuses to create the slot if it is recorded and does not exist. Such a slot is lost, and a new
/// slot would hide the loss.
pub(super) fn not_lost(slot: &str) -> String {
    let slot = quote_literal(slot);
    // spliced: the name of the slot, in a script that takes no parameters.
    format!(
        "DO $walrelay$
BEGIN
  IF EXISTS (SELECT FROM {SCHEMA}.app_outbox_relay WHERE slot = {slot})
     AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = {slot}) THEN
    RAISE EXCEPTION 'slot % is lost: it is on record and does not exist', {slot} USING HINT = (
      SELECT CASE operation ->> 'kind'
               WHEN 'release' THEN 'Recover the released slot: the rows written meanwhile are then published.'
               ELSE 'Recover the slot: a new slot would hide which rows are not published.'
             END
        FROM {SCHEMA}.app_outbox_relay WHERE slot = {slot});
  END IF;
END
$walrelay$;"
    )
}

/// Refuses an existing slot that is not a failover slot, because SQL cannot convert it. The column
/// is read by name, because servers before 17 lack it.
pub(super) fn of_failover(slot: &str) -> String {
    let identifier = quote_literal(&quote_identifier(slot));
    let slot = quote_literal(slot);
    // spliced: the name of the slot, in a script that takes no parameters.
    format!(
        "DO $walrelay$
BEGIN
  IF EXISTS (SELECT FROM pg_catalog.pg_replication_slots s
              WHERE s.slot_name = {slot} AND (to_jsonb(s) ->> 'failover')::bool IS NOT TRUE) THEN
    RAISE EXCEPTION 'slot % exists and is not a failover slot', {slot}
      USING HINT = 'Stop the relay and run, on a replication connection: '
                   'ALTER_REPLICATION_SLOT ' || {identifier} || ' (FAILOVER true)';
  END IF;
END
$walrelay$;"
    )
}
