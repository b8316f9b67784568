//! Writes events to a walrelay outbox in the caller's transaction.
//!
//! The functions call `app_outbox_emit` and `app_outbox_emit_once`, which `walrelay init` creates.
//! The event is committed together with the business change, or not at all.
//!
//! The transaction is one of tokio-postgres (the default) or of sqlx, with the cargo feature of the
//! same name. With tokio-postgres:
//!
//! ```no_run
//! use serde_json::json;
//! use tokio_postgres::Client;
//! use walrelay_outbox::{Event, emit};
//!
//! async fn place_order(client: &mut Client) -> Result<(), tokio_postgres::Error> {
//!     let transaction = client.transaction().await?;
//!     transaction.execute("INSERT INTO orders (id, total) VALUES ('A-1', 42)", &[]).await?;
//!     let event = Event::new("order", "A-1", "OrderPlaced", &json!({ "total": 42 }));
//!     emit(&transaction, &event).await?;
//!     transaction.commit().await
//! }
//! ```
//!
//! With sqlx, the connection under the transaction is passed:
//!
//! ```no_run
//! use serde_json::json;
//! use walrelay_outbox::{Event, emit};
//!
//! async fn place_order(pool: &sqlx::PgPool) -> Result<(), sqlx::Error> {
//!     let mut transaction = pool.begin().await?;
//!     sqlx::query("INSERT INTO orders (id, total) VALUES ('A-1', 42)").execute(&mut *transaction).await?;
//!     let event = Event::new("order", "A-1", "OrderPlaced", &json!({ "total": 42 }));
//!     emit(&mut *transaction, &event).await?;
//!     transaction.commit().await
//! }
//! ```
//!
//! A caller that may repeat a request passes an idempotency key. If [`emit_once`] finds the key, the
//! first request has made the change, so the caller rolls its own change back:
//!
//! ```no_run
//! use serde_json::json;
//! use tokio_postgres::Client;
//! use walrelay_outbox::{Event, emit_once};
//!
//! async fn place_order(client: &mut Client, request: &str) -> Result<i64, tokio_postgres::Error> {
//!     let transaction = client.transaction().await?;
//!     transaction.execute("INSERT INTO orders (id, total) VALUES ('A-1', 42)", &[]).await?;
//!     let event = Event::new("order", "A-1", "OrderPlaced", &json!({ "total": 42 }));
//!     let emitted = emit_once(&transaction, &event, request).await?;
//!     match emitted.is_new {
//!         true => transaction.commit().await?,
//!         false => transaction.rollback().await?,
//!     }
//!     Ok(emitted.version)
//! }
//! ```
//!
//! [`emit`] and [`emit_once`] find the functions through the `search_path`. If `walrelay init` has run
//! with `--schema`, an [`Outbox`] names the schema:
//!
//! ```no_run
//! use serde_json::json;
//! use tokio_postgres::Transaction;
//! use walrelay_outbox::{Event, Outbox};
//!
//! async fn place_order(transaction: &Transaction<'_>) -> Result<i64, tokio_postgres::Error> {
//!     let event = Event::new("order", "A-1", "OrderPlaced", &json!({ "total": 42 }));
//!     Outbox::in_schema("app_events").emit(transaction, &event).await
//! }
//! ```

#![warn(missing_docs)]

mod emitted;
mod event;
mod outbox;
mod payload;
mod transaction;

pub use emitted::Emitted;
pub use event::Event;
pub use outbox::Outbox;
pub use payload::Payload;
pub use transaction::Transaction;

/// Writes one event, and returns its version within the aggregate.
///
/// A transaction that emits for several aggregates must use the same order everywhere, for example
/// by type and id. Otherwise two such transactions deadlock.
///
/// # Errors
///
/// The server refused the event. The code `PT409` means that the aggregate is at another version
/// than [`Event::expecting_version`] states.
pub async fn emit<T: Transaction>(transaction: T, event: &Event<'_>) -> Result<i64, T::Error> {
    Outbox::default().emit(transaction, event).await
}

/// Writes one event, unless an event has this idempotency key already.
///
/// A key belongs to one event of the whole outbox. If users can choose keys, put the user's id in
/// front.
///
/// # Errors
///
/// The server refused the event. The code `23505` means that the key belongs to the event of another
/// aggregate or event type. At isolation levels above read committed, a race ends with code `40001`,
/// and the caller retries its transaction.
pub async fn emit_once<T: Transaction>(
    transaction: T,
    event: &Event<'_>,
    idempotency_key: &str,
) -> Result<Emitted, T::Error> {
    Outbox::default().emit_once(transaction, event, idempotency_key).await
}
