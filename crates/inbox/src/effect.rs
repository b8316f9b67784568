//! What an event does: a function in the database, or a handler in Rust.

use std::fmt;
use std::sync::Arc;

use crate::handler::{AnyHandler, Handler};

/// What is done with events, in the transaction that records them.
#[derive(Clone)]
pub struct Effect(pub(crate) Kind);

#[derive(Clone)]
pub(crate) enum Kind {
    /// As it was given, and once it is looked up as `regprocedure` reads it.
    Function(String),
    Handler(Arc<dyn AnyHandler>),
}

impl Effect {
    /// A SQL function: `schema.function`, or with its argument's type where there are two.
    #[must_use]
    pub fn function(name: impl Into<String>) -> Self {
        Self(Kind::Function(name.into()))
    }

    /// A handler in Rust.
    #[must_use]
    pub fn handler(handler: impl Handler + 'static) -> Self {
        Self(Kind::Handler(Arc::new(handler)))
    }
}

/// Its name, as it stands in a log.
impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Function(name) => f.write_str(name),
            Kind::Handler(_) => f.write_str("a handler in Rust"),
        }
    }
}

impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Effect({self})")
    }
}
