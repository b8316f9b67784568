//! A message's attributes, as little as they take.

use std::collections::BTreeMap;
use std::fmt;

/// The attributes of a message, all of them.
///
/// They are kept as the JSON object of strings that the database is given: a tenth of what a map takes, of
/// which a consumer would hold twenty thousand.
#[derive(Clone, PartialEq, Eq)]
pub struct Attributes(Box<str>);

impl Attributes {
    /// Those of a map.
    #[must_use]
    pub fn of(map: &BTreeMap<String, String>) -> Self {
        // A map of strings always can be written.
        Self(serde_json::to_string(map).unwrap_or_else(|_| "{}".to_owned()).into())
    }

    /// Those that are stored: what was written by [`of`](Self::of), whoever has edited it since.
    pub(crate) fn of_json(json: String) -> Self {
        Self(json.into())
    }

    /// The value of one. Reads them all: who asks for several takes the [map](Self::to_map).
    #[must_use]
    pub fn get(&self, name: &str) -> Option<String> {
        self.to_map().remove(name)
    }

    /// The value of one, as it stands in the JSON object, without reading the others: for values that
    /// need no escapes. `None` when there is no such attribute.
    pub(crate) fn plain(&self, name: &str) -> Option<&str> {
        // An unescaped quote behind a bracket or a comma begins a name, and no name or value has one in it.
        let mut found = self.0.match_indices(name).filter(|(at, _)| {
            let (before, after) = (&self.0[..*at], &self.0[at + name.len()..]);
            (before.ends_with("{\"") || before.ends_with(",\"")) && after.starts_with("\":\"")
        });
        let (at, _) = found.next()?;
        let value = &self.0[at + name.len() + "\":\"".len()..];
        value.split('"').next()
    }

    /// All of them by name.
    #[must_use]
    pub fn to_map(&self) -> BTreeMap<String, String> {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// The JSON object.
    #[must_use]
    pub fn as_json(&self) -> &str {
        &self.0
    }
}

impl Default for Attributes {
    fn default() -> Self {
        Self("{}".into())
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No values: they may end up in a log.
        f.debug_set().entries(self.to_map().keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_value_is_found_where_it_stands() {
        let attributes = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Attributes::of(&pairs.collect())
        };
        let first = attributes(&[("it", "00-1-01"), ("z", "z")]);
        assert_eq!(first.plain("it"), Some("00-1-01"));
        let last = attributes(&[("a", "\\"), ("it", "00-1-01")]);
        assert_eq!(last.plain("it"), Some("00-1-01"));
        for other in [
            &[][..],
            &[("a", "it")],
            &[("submit", "no")],
            &[("it's", "no")],
            &[("a", "{\"it\":\"no\"}")],
            &[("a", "x,\"it\":\"no\"")],
            &[("a,\"it", "no")],
            &[("{\"it", "no")],
        ] {
            assert_eq!(attributes(other).plain("it"), None, "{other:?}");
        }
    }

    #[test]
    fn what_goes_in_comes_out_and_values_are_not_shown() {
        let map: BTreeMap<String, String> = [("tenant", "a\"b\\c\u{1}"), ("secret", "hunter2")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let attributes = Attributes::of(&map);
        assert_eq!(attributes.to_map(), map);
        assert_eq!(attributes.get("secret").as_deref(), Some("hunter2"));
        assert_eq!(attributes.get("other"), None);
        let shown = format!("{attributes:?}");
        assert!(shown.contains("secret") && !shown.contains("hunter2"), "{shown}");
        assert!(Attributes::of_json("no JSON".into()).to_map().is_empty());
    }
}
