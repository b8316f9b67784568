//! What operators are told while rows flow.

pub mod health;
pub mod metrics;
pub mod observer;
pub mod report;
pub mod supply;
