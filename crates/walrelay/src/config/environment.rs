//! The environment of the process, and the variables of options.

use std::collections::BTreeMap;
use std::ffi::OsString;

/// The environment of the process. Only `main` reads the real one.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Keeps the variables that are valid text. Other variables cannot belong to walrelay.
    pub fn new<N, V>(variables: impl IntoIterator<Item = (N, V)>) -> Self
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let text = |(name, value): (N, V)| {
            Some((name.into().into_string().ok()?, value.into().into_string().ok()?))
        };
        Self(variables.into_iter().filter_map(text).collect())
    }

    /// Returns the value of a variable that is set and not empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns the variables whose names begin with a prefix, and that are not empty.
    pub(crate) fn with_prefix(&self, prefix: &str) -> Vec<(String, String)> {
        let named =
            self.0.iter().filter(|(name, value)| name.starts_with(prefix) && !value.is_empty());
        named.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Returns the name of a variable that has this value, if it is a name in a shell.
    pub(crate) fn variable_with(&self, value: &str) -> Option<&str> {
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let mut named = self.0.iter().filter(|(name, held)| *held == value && is_name(name));
        named.next().map(|(name, _)| name.as_str())
    }

    /// Returns the variable that sets an option: its own, which may be empty, or an established
    /// one.
    pub(crate) fn of_option(&self, option: &str) -> Option<(String, &str)> {
        let own = variable(option);
        if let Some(value) = self.0.get(&own) {
            return Some((own, value));
        }
        established_variables(option)
            .iter()
            .find_map(|name| Some(((*name).to_owned(), self.get(name)?)))
    }
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Prints only names, because values may be secrets.
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Returns the variable of an option: `park-after` → `WALRELAY_PARK_AFTER`.
#[must_use]
pub fn variable(option: &str) -> String {
    format!("WALRELAY_{}", option.to_uppercase().replace('-', "_"))
}

/// Returns the variables of other programs that an option follows if its own variable is not set.
#[must_use]
pub fn established_variables(option: &str) -> &'static [&'static str] {
    match option {
        "database-url" => &["DATABASE_URL"],
        "listen" => &["PUBSUB_EMULATOR_HOST"],
        "project" => &["PUBSUB_PROJECT_ID", "GOOGLE_CLOUD_PROJECT"],
        "log-level" => &["RUST_LOG"],
        _ => &[],
    }
}
