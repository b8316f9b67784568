//! Bounds of memory, of retained WAL and of requests in flight.

pub(super) mod budget;
pub(super) mod heavy_keys;
pub(super) mod rate_limit;
pub(super) mod wal_budget;
pub(super) mod window;
