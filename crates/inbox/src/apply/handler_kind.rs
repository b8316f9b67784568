//! The handler of a consumer: a function in the database, Rust code, or a receiver elsewhere.

use std::fmt;
use std::sync::Arc;

use crate::apply::delivery::{Deliver, Delivery};
use crate::apply::handler::{AnyHandler, Handler, InTransaction};

/// The handler that processes events, in the transaction that records them.
#[derive(Clone)]
pub struct Effect(pub(crate) Kind);

#[derive(Clone)]
pub(crate) enum Kind {
    /// The name as given, and after the look-up in the form that `regprocedure` reads.
    Function(String),
    Handler(Arc<dyn AnyHandler>),
}

impl Effect {
    /// Creates the handler from a SQL function: `schema.function`, with its argument's type if two
    /// functions share the name.
    #[must_use]
    pub fn function(name: impl Into<String>) -> Self {
        Self(Kind::Function(name.into()))
    }

    /// Creates the handler from Rust code.
    #[must_use]
    pub fn handler(handler: impl Handler + 'static) -> Self {
        Self(Kind::Handler(Arc::new(InTransaction(handler))))
    }

    /// Creates the handler from a receiver outside the database. `handler_timeout` limits the time
    /// of one delivery.
    #[must_use]
    pub fn delivery(receiver: impl Deliver + 'static) -> Self {
        Self(Kind::Handler(Arc::new(Delivery::to(receiver))))
    }
}

/// Prints the handler's name for logs.
impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Function(name) => f.write_str(name),
            Kind::Handler(handler) => f.write_str(&handler.name()),
        }
    }
}

impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Effect({self})")
    }
}
