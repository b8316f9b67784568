//! The calls of Publisher and Subscriber, each from its request to its reply.

pub(crate) mod acknowledge;
pub(crate) mod admin;
mod consumer;
mod error_info;
mod iam;
mod monitoring;
pub(crate) mod publish;
pub(crate) mod pull;
mod request;
mod responses;
pub(crate) mod snapshots;
pub(crate) mod streaming_pull;
pub(crate) mod subscriptions;
pub(crate) mod topics;
