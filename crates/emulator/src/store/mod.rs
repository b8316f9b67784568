//! Topics, subscriptions and messages. No sockets in here, and only one lock, around the broker.

pub(crate) mod broker;
pub(crate) mod confirmation;
pub(crate) mod consuming;
pub(crate) mod filter;
pub(crate) mod message;
pub(crate) mod queue;
pub(crate) mod subscription;
pub(crate) mod topic;
