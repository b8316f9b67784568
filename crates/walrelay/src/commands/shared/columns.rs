//! The lookup of a column by its possible names.

pub(in crate::commands) use walrelay_outbox_admin::protocols::column_of;
