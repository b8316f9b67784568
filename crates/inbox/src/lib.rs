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
mod apply_error;
mod apply_options;
mod attributes;
pub mod audit;
mod columns;
mod consumer;
mod database;
mod error;
mod event;
pub mod event_commands;
mod handler;
mod handler_kind;
mod health;
mod key_rebuild;
mod loop_reporter;
mod loop_state;
mod metrics;
mod migrations;
mod outbox_applier;
mod pending_counts;
mod privileges;
mod pull_stream;
mod reset_key;
mod run;
mod scaffold;
mod settings;
mod side_rebuild;
mod sql_failure;
mod steps;
mod subscription_messages;
mod subscription_warning;
mod time;
mod trace;
mod unfinished_rebuild;

pub use attributes::Attributes;
pub use consumer::Consumer;
pub use database::Registration;
pub use error::InboxError;
pub use event::Event;
pub use handler::{BoxError, Handler, HandlerError};
pub use handler_kind::Effect;
pub use health::{Health, Phase};
pub use key_rebuild::Keys;
pub use metrics::Metrics;
pub use migrations::{INBOX_MIGRATIONS, INBOX_TABLES, InboxMigration, inbox_tables, migrate_inbox};
pub use outbox_applier::OutboxApplier;
pub use reset_key::{KeyPosition, reset_key};
pub use scaffold::{Scaffold, scaffold};
pub use settings::{Dedupe, OnDead, OnGap, Settings, Until};
pub use side_rebuild::{Beside, GenerationDifference, StagedTable, abandon};
pub use subscription_messages::Messages;
pub use subscription_warning::SubscriptionWarning;
pub use tokio_postgres::{self, Transaction};
pub use trace::{BatchFailure, TraceEnd, Tracer};
pub use unfinished_rebuild::UnfinishedRebuild;
pub use walrelay_pg_client::{ConnectConfig, PgEnv};
pub use walrelay_pubsub::Endpoint;
