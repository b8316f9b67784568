//! Misbehaviour on request: what a fault says, and which one a call meets.

pub(crate) mod fault;
pub(crate) mod in_force;
pub(crate) mod text;
