//! The handler that posts each event to a service.
//!
//! A request follows [Standard Webhooks](https://www.standardwebhooks.com) and CloudEvents in binary mode. The
//! table of answers decides whether an event is delivered, retried, dead, or waits for an operator.

mod answer;
mod headers;
mod secrets;
mod target;
mod webhook;

pub use secrets::{Secrets, SecretsError};
pub use target::{Target, TargetError};
pub use webhook::{Auth, Webhook, WebhookSettings};
