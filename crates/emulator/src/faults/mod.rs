//! Fault injection: the definition of faults, and their match with calls.

pub(crate) mod active_faults;
pub(crate) mod fault;
pub(crate) mod text;
