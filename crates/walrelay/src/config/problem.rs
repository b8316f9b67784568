//! Problems of the configuration, and the origins of its values.

use std::collections::BTreeMap;
use std::fmt;

use walrelay_errors::Code;

/// One problem, and the allowed values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The option as a flag, the key of the file, or the variable.
    pub option: String,
    /// The wrong value. Never a secret.
    pub value: Option<String>,
    /// The origin of the value, unless it came from the flag.
    pub origin: Option<String>,
    pub allowed: String,
    /// The code, which selects the fix.
    pub code: Code,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.option)?;
        if let Some(value) = &self.value {
            write!(f, " {value:?}")?;
        }
        if let Some(origin) = &self.origin {
            write!(f, " (from {origin})")?;
        }
        write!(f, ": {}", self.allowed)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    CommandLine,
    /// This environment variable.
    Environment(String),
    /// The configuration file at this path.
    File(String),
    /// The option was not set.
    Default,
}

impl Origin {
    /// Returns the variable or the path, if the value came from there.
    pub(crate) fn name(self) -> Option<String> {
        match self {
            Self::Environment(name) | Self::File(name) => Some(name),
            Self::CommandLine | Self::Default => None,
        }
    }
}

/// The origins of the values of a command's options, for error messages.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origins(BTreeMap<String, Origin>);

impl Origins {
    pub(crate) fn note(&mut self, option: &str, origin: Origin) {
        self.0.insert(option.to_owned(), origin);
    }

    pub(crate) fn of(&self, option: &str) -> Origin {
        self.0.get(option).cloned().unwrap_or(Origin::Default)
    }
}
