//! Applies the events of a Pub/Sub subscription to a Postgres database: each once, in order per key.
//!
//! ```text
//! StreamingPull ──▶ Intake ──▶ app_inbox_apply, one transaction a batch ──▶ COMMIT
//!       ▲                                                                    │
//!       └──────────── acknowledgements, renewed leases ◀─────────────────────┘
//! ```
//!
//! The inbox row, the key's row and the handler's effect commit together (C1); what is acknowledged is
//! covered by a commit that is known (C2). Whatever breaks in between is sent again by Pub/Sub and found
//! in the inbox.

pub mod admin;
pub mod audit;
mod consumer;
mod course;
mod database;
mod error;
mod event;
mod health;
mod link;
mod metrics;
pub mod operate;
mod run;
mod settings;
mod time;

pub use consumer::Consumer;
pub use database::Registration;
pub use error::InboxError;
pub use event::Event;
pub use health::{Health, Phase};
pub use metrics::Metrics;
pub use settings::{Dedupe, OnDead, Settings, Until};
