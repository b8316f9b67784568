//! Fault injection: the definition of faults, and their match with calls.

pub(crate) mod fault;
pub(crate) mod in_force;
pub(crate) mod text;
