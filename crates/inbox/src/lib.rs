//! Applies the events of a Pub/Sub subscription to a Postgres database: each once, in order per
//! key.
//!
//! ```text
//! StreamingPull ──▶ Intake ──▶ app_inbox_apply, one transaction per batch ──▶ COMMIT
//!       ▲                                                                       │
//!       └──────────── acknowledgements, renewed leases ◀────────────────────────┘
//! ```
//!
//! The inbox row, the key's row and the handler's effect commit together (C1). The consumer
//! acknowledges only messages that a known commit covers (C2). After any failure in between,
//! Pub/Sub redelivers the message, and the consumer finds its event in the inbox.

pub mod admin;
mod attributes;
pub mod audit;
mod beside;
mod columns;
mod consumer;
mod course;
mod database;
mod effect;
mod error;
mod event;
mod fault;
mod fill;
mod handler;
mod health;
mod keys;
mod link;
mod messages;
mod metrics;
mod migrations;
mod observed;
pub mod operate;
mod plan;
mod remark;
mod reset_key;
mod rights;
mod run;
mod scaffold;
mod settings;
mod steps;
mod time;
mod trace;
mod unapplied;
mod unfinished;
mod waiting;

pub use attributes::Attributes;
pub use beside::{Beside, GenerationDifference, StagedTable, abandon};
pub use consumer::Consumer;
pub use database::Registration;
pub use effect::Effect;
pub use error::InboxError;
pub use event::Event;
pub use fill::OutboxApplier;
pub use handler::{BoxError, Handler, HandlerError};
pub use health::{Health, Phase};
pub use keys::Keys;
pub use messages::Messages;
pub use metrics::Metrics;
pub use migrations::{INBOX_MIGRATIONS, INBOX_TABLES, InboxMigration, inbox_tables, migrate_inbox};
pub use remark::SubscriptionWarning;
pub use reset_key::{KeyPosition, reset_key};
pub use scaffold::{Scaffold, scaffold};
pub use settings::{Dedupe, OnDead, OnGap, Settings, Until};
pub use tokio_postgres::{self, Transaction};
pub use trace::{BatchFailure, TraceEnd, Tracer};
pub use unfinished::UnfinishedRebuild;
pub use walrelay_pg_client::{ConnectConfig, PgEnv};
pub use walrelay_pubsub::Endpoint;
