//! The values that the options of a command were given, and where they came from.

use std::collections::BTreeMap;

/// Where the value of an option came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// The command line.
    Flag,
    /// This environment variable.
    Environment(String),
    /// The configuration file.
    File(String),
    /// It was not set.
    Default,
}

/// Values, still text, and their origins, by the option's name.
#[derive(Default)]
pub(super) struct Given(BTreeMap<&'static str, (Vec<String>, Origin)>);

impl Given {
    pub(super) fn note(&mut self, option: &'static str, values: Vec<String>, origin: Origin) {
        self.0.insert(option, (values, origin));
    }

    /// The options of the command.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }

    /// The values of an option; none when nobody gave it any and it has no default.
    pub(super) fn values(&self, option: &str) -> &[String] {
        self.0.get(option).map_or(&[], |(values, _)| values)
    }

    /// Where they came from.
    pub(super) fn origin(&self, option: &str) -> &Origin {
        self.0.get(option).map_or(&Origin::Default, |(_, origin)| origin)
    }
}

impl std::fmt::Debug for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Names only: values may be secrets.
        f.debug_set().entries(self.0.keys()).finish()
    }
}
