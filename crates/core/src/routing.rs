//! From a row to a message: columns, topic, ordering key, attributes, limits and the encoded form.

pub(super) mod attribute_columns;
pub(super) mod attributes;
pub(super) mod columns;
pub(super) mod headers;
pub(super) mod incomplete_message;
pub(super) mod limit_violation;
pub(super) mod omitted_parts;
pub(super) mod router;
pub(super) mod row_view;
pub(super) mod template;
pub(super) mod timestamp;
pub(super) mod wire;
