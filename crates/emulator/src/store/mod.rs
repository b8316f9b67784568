//! Topics, subscriptions and messages. This module uses no sockets and a single lock, around the
//! broker.

pub(crate) mod broker;
pub(crate) mod confirmation;
pub(crate) mod consuming;
mod dead_letters;
pub(crate) mod message;
pub(crate) mod policy;
pub(crate) mod queue;
pub(crate) mod retained;
mod seeking;
pub(crate) mod snapshot;
pub(crate) mod subscription;
pub(crate) mod topic;
