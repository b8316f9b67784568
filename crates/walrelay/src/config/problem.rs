//! Problems of the configuration.

use std::collections::BTreeMap;
use std::fmt;

use walrelay_errors::Code;

use super::environment::Environment;

/// One problem, and the allowed values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The option as a flag, the key of the file, or the variable.
    pub option: String,
    /// The wrong value. Never a secret.
    pub value: Option<String>,
    /// The origin of the value, unless it came from the flag.
    pub origin: Option<String>,
    /// The allowed values.
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

/// The origin of an option's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// The command line.
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
    pub(super) fn name(self) -> Option<String> {
        match self {
            Self::Environment(name) | Self::File(name) => Some(name),
            Self::CommandLine | Self::Default => None,
        }
    }
}

/// The origins of the values of a command's options, for error messages.
#[derive(Debug, Clone, Default)]
pub(super) struct Origins(BTreeMap<String, Origin>);

impl Origins {
    pub(super) fn note(&mut self, option: &str, origin: Origin) {
        self.0.insert(option.to_owned(), origin);
    }

    /// Returns the origin of an option's value.
    pub(super) fn of(&self, option: &str) -> Origin {
        self.0.get(option).cloned().unwrap_or(Origin::Default)
    }
}

/// Builds the parts of the configuration, and collects the problems that no single value has: those
/// of values that contradict each other, and of files and variables. Each file in this folder adds
/// its own parts.
pub(super) struct ConfigBuilder<'a> {
    /// Variables that are not options, such as those of libpq and Cloud Run.
    pub(super) environment: &'a Environment,
    /// Path of the configuration file.
    pub(super) file: Option<String>,
    /// The options of the command line that a replay has also.
    pub(super) selection: Vec<String>,
    /// The origins of the options' values.
    pub(super) origins: Origins,
    /// The problems found so far.
    pub(super) problems: Vec<Problem>,
}

impl ConfigBuilder<'_> {
    /// Reports a wrong value of `option` (long name without dashes).
    pub(super) fn wrong(&mut self, option: &str, value: &str, allowed: impl Into<String>) {
        self.report(option, Some(value.to_owned()), allowed.into(), Code::ConfigurationInvalid);
    }

    /// Reports that `option` is missing, or that its value is wrong and may be a secret.
    pub(super) fn wrong_or_missing(&mut self, option: &str, allowed: impl Into<String>) {
        self.report(option, None, allowed.into(), Code::ConfigurationInvalid);
    }

    /// Reports a wrong variable or argument that has no option of its own.
    pub(super) fn wrong_variable(&mut self, name: &str, allowed: &str) {
        self.problems.push(Problem {
            option: name.to_owned(),
            value: None,
            origin: None,
            allowed: allowed.to_owned(),
            code: Code::ConfigurationInvalid,
        });
    }

    pub(super) fn report(
        &mut self,
        option: &str,
        value: Option<String>,
        allowed: String,
        code: Code,
    ) {
        let origin = self.origins.of(option).name();
        let problem = Problem { option: format!("--{option}"), value, origin, allowed, code };
        // An option may be checked more than once.
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}
