//! Where rows are kept that the outbox no longer contains: a directory or a bucket.
//!
//! The library `object_store` owns the requests, their repetition, and atomic files. This module
//! decides what an object is called, that it is read back, and which error asks for which fix.

mod error;
mod location;
mod store;

pub use error::{ArchiveError, ArchiveProblem};
pub use location::{ArchiveLocation, Bucket, LocationError};
pub use store::{Archive, StoreEnvironment, try_out};
pub(crate) use store::{ArchiveStore, ObjectName, ObjectRows};
