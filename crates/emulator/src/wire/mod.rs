//! The wire format, and production's limits on it.

pub(crate) mod codes;
pub(crate) mod decimal;
pub(crate) mod grpc;
pub(crate) mod limits;
pub(crate) mod names;
pub(crate) mod settings;
