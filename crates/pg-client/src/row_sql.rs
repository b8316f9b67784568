//! SQL expressions on the rows of an outbox table.

use std::fmt;

use crate::names::quote_literal;

/// Returns SQL for a value as text, in the form in which replication sends it: the output form of its
/// type. Null is the empty text, as in a message.
///
/// A cast to text has another form for some types. It removes the blanks of `char(n)`, returns `true`
/// for `t`, and adds a netmask to `inet`. The default collation is the one of the columns that the
/// text is compared with.
#[must_use]
pub fn text_form_sql(value: &str) -> String {
    format!("(pg_catalog.concat({value}) COLLATE pg_catalog.\"default\")")
}

/// Returns SQL for the same text, where null stays null.
#[must_use]
pub fn nullable_text_form_sql(value: &str) -> String {
    let text = text_form_sql(value);
    format!("(CASE WHEN {value} IS DISTINCT FROM NULL THEN {text} END)")
}

/// Returns an SQL condition on rows of `alias`: the row is in the table itself or in a partition.
/// `table` is its name as SQL.
///
/// A table that is read without `ONLY` also shows the rows of its inheritance children, such as the
/// chunks of an extension. No slot streams those rows. `ONLY` would hide the rows of a partitioned
/// table, and an outbox may become one at any time.
#[must_use]
pub fn own_rows_sql(table: impl fmt::Display, alias: &str) -> String {
    let table = quote_literal(&table.to_string());
    format!(
        "({alias}.tableoid = {table}::regclass OR {alias}.tableoid IN (
           SELECT part.relid FROM pg_catalog.pg_partition_tree({table}::regclass) AS part))"
    )
}
