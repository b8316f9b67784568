//! A checked command that is ready to run, and the tree of commands.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use walrelay_relay::shutdown::Shutdown;

use crate::error::Error;

type Work = Box<dyn for<'a> FnOnce(&'a Shutdown) -> LocalBoxFuture<'a, Result<(), Error>>>;

/// A checked command, ready to run.
pub(crate) struct Plan {
    work: Work,
    pub(crate) end: CommandEnd,
}

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandEnd {
    /// By itself.
    Finishes,
    /// By a signal, with nothing left to finish.
    Interrupted,
    /// By a signal, after what is in flight. Its log goes to a collector.
    Stopped(Option<Service>),
}

/// The limits of a relay or a consumer that runs until it is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// The address that serves `/livez` and the other endpoints, if any.
    pub http: Option<SocketAddr>,
    /// How long a stop waits for what is in flight.
    pub drain_timeout: Duration,
}

impl Plan {
    /// Returns the plan of a command that ends by itself.
    pub(crate) fn new(work: impl AsyncFnOnce(&Shutdown) -> Result<(), Error> + 'static) -> Self {
        Self { work: Box::new(|shutdown| Box::pin(work(shutdown))), end: CommandEnd::Finishes }
    }

    pub(crate) fn ended(self, end: CommandEnd) -> Self {
        Self { end, ..self }
    }

    pub(crate) async fn run(self, shutdown: &Shutdown) -> Result<(), Error> {
        (self.work)(shutdown).await
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("end", &self.end).finish_non_exhaustive()
    }
}

/// Declares a group of commands. A command is one line: its name, and the type that clap parses and
/// that has a method `plan`.
macro_rules! commands {
    (
        $(#[$about:meta])*
        $group:ident { $($(#[$attribute:meta])* $name:ident($($leaf:ident)::+)),+ $(,)? }
    ) => {
        $(#[$about])*
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum $group {
            $($(#[$attribute])* $name(Box<$($leaf)::+>)),+
        }

        impl $group {
            /// Checks the options of the command. Returns none if it has reported a problem.
            pub(crate) fn plan(
                self,
                checks: &mut $crate::config::Checks<'_>,
            ) -> Option<$crate::plan::Plan> {
                match self {
                    $(Self::$name(command) => command.plan(checks)),+
                }
            }
        }
    };
}
pub(crate) use commands;
