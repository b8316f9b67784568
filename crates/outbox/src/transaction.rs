//! The transactions in which an event can be written, with one module per driver.

#[cfg(feature = "sqlx")]
mod sqlx;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

use crate::emitted::Emitted;
use crate::event::Event;

#[cfg(not(any(feature = "tokio-postgres", feature = "sqlx")))]
compile_error!("walrelay-outbox needs the feature `tokio-postgres` or `sqlx`");

/// The caller's open transaction: `&tokio_postgres::Transaction` with the feature `tokio-postgres`,
/// or `&mut sqlx::PgConnection` with the feature `sqlx`. Other crates cannot implement this trait.
pub trait Transaction: sealed::Sealed {
    /// The error of the driver.
    type Error;

    /// Runs a statement that returns a version. Its parameters are those of `app_outbox_emit`.
    #[doc(hidden)]
    fn query_version(
        self,
        sql: &str,
        event: &Event<'_>,
    ) -> impl Future<Output = Result<i64, Self::Error>> + Send;

    /// Runs a statement that returns the columns of [`Emitted`]. The idempotency key is its last
    /// parameter, after the parameters of `app_outbox_emit`.
    #[doc(hidden)]
    fn query_emitted(
        self,
        sql: &str,
        event: &Event<'_>,
        idempotency_key: &str,
    ) -> impl Future<Output = Result<Emitted, Self::Error>> + Send;
}

mod sealed {
    /// A trait that other crates cannot name.
    pub trait Sealed {}

    #[cfg(feature = "tokio-postgres")]
    impl Sealed for &tokio_postgres::Transaction<'_> {}

    #[cfg(feature = "sqlx")]
    impl Sealed for &mut sqlx::PgConnection {}
}
