//! A password that is asked for before every connection, such as an access token that expires.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;

use crate::secret::Secret;

/// The future of a password.
pub type PasswordFuture<'a> = Pin<Box<dyn Future<Output = io::Result<Secret>> + Send + 'a>>;

/// Returns the password of the next connection.
pub trait PasswordSource: fmt::Debug + Send + Sync {
    /// Returns a password that is valid now.
    fn password(&self) -> PasswordFuture<'_>;
}
