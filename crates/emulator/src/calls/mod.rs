//! The calls of Publisher and Subscriber, each from its request to its reply.

pub(crate) mod admin;
pub(crate) mod publish;
pub(crate) mod pull;
mod responses;
