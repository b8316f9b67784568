//! The attributes of a message, in compact form.

use std::collections::BTreeMap;
use std::fmt;

/// All attributes of a message.
///
/// The attributes are stored as the JSON object of strings that the database receives. This takes a
/// tenth of the memory of a map, and a consumer may hold twenty thousand of them.
#[derive(Clone, PartialEq, Eq)]
pub struct Attributes(Box<str>);

impl Attributes {
    /// Creates the attributes from a map.
    #[must_use]
    pub fn of(map: &BTreeMap<String, String>) -> Self {
        Self::of_pairs(&Pairs::from(map))
    }

    pub(crate) fn of_pairs(pairs: &Pairs<'_>) -> Self {
        let Pairs(pairs) = pairs;
        let size = pairs.iter().map(|(name, value)| name.len() + value.len() + "\"\":\"\",".len());
        let mut json = Vec::with_capacity("{}".len() + size.sum::<usize>());
        json.push(b'{');
        for (index, (name, value)) in pairs.iter().enumerate() {
            if index > 0 {
                json.push(b',');
            }
            // Strings can always be written as JSON, and a `Vec` accepts every write.
            drop(serde_json::to_writer(&mut json, name));
            json.push(b':');
            drop(serde_json::to_writer(&mut json, value));
        }
        json.push(b'}');
        Self(String::from_utf8(json).unwrap_or_else(|_| "{}".to_owned()).into())
    }

    /// Creates the attributes from a stored JSON object, which a person may have edited.
    pub(crate) fn of_json(json: String) -> Self {
        Self(json.into())
    }

    /// Returns the value of one attribute. Parses all of them, so use [`to_map`](Self::to_map) to
    /// read several.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<String> {
        self.to_map().remove(name)
    }

    /// Returns the raw value of one attribute from the JSON text, without parsing the others. Only
    /// correct for values without escapes. `None` if there is no such attribute.
    pub(crate) fn plain(&self, name: &str) -> Option<&str> {
        // An unescaped quote after a brace or a comma begins a name. Inside names and values,
        // quotes are escaped.
        let mut found = self.0.match_indices(name).filter(|(at, _)| {
            let (before, after) = (&self.0[..*at], &self.0[at + name.len()..]);
            (before.ends_with("{\"") || before.ends_with(",\"")) && after.starts_with("\":\"")
        });
        let (at, _) = found.next()?;
        let value = &self.0[at + name.len() + "\":\"".len()..];
        value.split('"').next()
    }

    /// Returns all attributes by name.
    #[must_use]
    pub fn to_map(&self) -> BTreeMap<String, String> {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// Returns the JSON object.
    #[must_use]
    pub fn as_json(&self) -> &str {
        &self.0
    }
}

/// Borrowed attributes sorted by name, each name once.
#[derive(Debug)]
pub(crate) struct Pairs<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Pairs<'a> {
    /// Sorts the pairs. If a name occurs several times the last value counts, as in the protobuf
    /// encoding of a map.
    pub(crate) fn of(mut pairs: Vec<(&'a str, &'a str)>) -> Self {
        pairs.sort_by_key(|(name, _)| *name);
        pairs.dedup_by(|later, kept| {
            let is_same = later.0 == kept.0;
            if is_same {
                kept.1 = later.1;
            }
            is_same
        });
        Self(pairs)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        let Self(pairs) = self;
        let at = pairs.binary_search_by_key(&name, |(known, _)| *known).ok()?;
        Some(pairs[at].1)
    }
}

impl<'a> From<&'a BTreeMap<String, String>> for Pairs<'a> {
    fn from(map: &'a BTreeMap<String, String>) -> Self {
        Self(map.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect())
    }
}

impl Default for Attributes {
    fn default() -> Self {
        Self("{}".into())
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The values are left out, because this text may be logged.
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
    fn of_several_values_of_one_name_the_last_counts() {
        let pairs = Pairs::of(vec![("b", "1"), ("a", "x"), ("b", "2"), ("c", ""), ("b", "3")]);
        assert_eq!(
            (pairs.get("a"), pairs.get("b"), pairs.get("c")),
            (Some("x"), Some("3"), Some(""))
        );
        assert_eq!(pairs.get("d"), None);
        assert_eq!(Attributes::of_pairs(&pairs).as_json(), r#"{"a":"x","b":"3","c":""}"#);
        assert_eq!(Attributes::of_pairs(&Pairs::of(Vec::new())), Attributes::default());
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
