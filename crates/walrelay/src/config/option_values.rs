//! The values of a command's options, and their origins.

use std::collections::BTreeMap;

/// The origin of an option's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// The command line.
    Flag,
    /// This environment variable.
    Environment(String),
    /// The configuration file at this path.
    File(String),
    /// The option was not set.
    Default,
}

/// Values as text, with their origins, by the option's name.
#[derive(Default)]
pub(super) struct Given(BTreeMap<&'static str, (Vec<String>, Origin)>);

impl Given {
    pub(super) fn note(&mut self, option: &'static str, values: Vec<String>, origin: Origin) {
        self.0.insert(option, (values, origin));
    }

    /// Returns the names of the command's options.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }

    /// Returns the values of an option. The slice is empty if the option is not set and has no
    /// default.
    pub(super) fn values(&self, option: &str) -> &[String] {
        self.0.get(option).map_or(&[], |(values, _)| values)
    }

    /// Returns the origin of an option's values.
    pub(super) fn origin(&self, option: &str) -> &Origin {
        self.0.get(option).map_or(&Origin::Default, |(_, origin)| origin)
    }
}

impl std::fmt::Debug for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Prints only names, because values may be secrets.
        f.debug_set().entries(self.0.keys()).finish()
    }
}
