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

#![warn(missing_docs)]

pub mod access;
mod apply;
mod attributes;
mod columns;
mod consumer;
mod encoding;
mod error;
mod event;
mod health;
mod idle_keys;
mod metrics;
mod migrations;
mod outbox_applier;
mod pending_counts;
mod privileges;
mod prune;
mod retention;
mod retention_metrics;
mod settings;
mod subscription_warning;
mod trace;
mod unfinished_rebuild;
mod unlogged_tables;

pub use apply::apply_batch::Registration;
pub use apply::delivery::Deliver;
pub use apply::handler::{BoxError, Handler, HandlerError};
pub use apply::handler_kind::Effect;
pub use apply::undelivered::{Fault, RETRY_AFTER_MAX, Undelivered};
pub use attributes::Attributes;
pub use consumer::Consumer;
pub use encoding::refuse_other_encoding;
pub use error::InboxError;
pub use event::{Event, EventFields};
pub use health::{Health, Phase};
pub use metrics::Metrics;
pub use migrations::{INBOX_TABLES, InboxMigration, inbox_migrations, inbox_tables, migrate_inbox};
pub use outbox_applier::OutboxApplier;
pub use prune::{PruneStep, prune_step};
pub use retention::{
    IdleKeys, InboxRetention, PUBSUB_RETENTION_DEFAULT, RETENTION_MARGIN,
    redelivery_window_with_dead_letters,
};
pub use settings::{Dedupe, OnDead, OnGap, QUIET_FOR, Settings, Until};
pub use subscription_warning::{DELIVERY_ATTEMPTS_MAX, SubscriptionWarning};
pub use tokio_postgres::{self, Transaction};
pub use trace::{BatchFailure, TraceEnd, Tracer};
pub use unfinished_rebuild::UnfinishedRebuild;
pub use unlogged_tables::unlogged_inbox_tables;
pub use walrelay_pg_client::{ConnectConfig, PgEnv, Schema, set_schema};
pub use walrelay_pubsub::Endpoint;
