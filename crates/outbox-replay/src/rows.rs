//! Rows of the outbox table: reading, encoding, and rows that cannot be sent.

pub(super) mod encoding;
pub(super) mod large_values;
pub(super) mod row_filter;
pub(super) mod source_row;
pub(super) mod unsendable;
pub(super) mod unsettled_rows;
