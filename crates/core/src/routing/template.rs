//! Parses templates such as `{aggregatetype}.events`: text with column names in braces.

use std::fmt;

/// The number of columns that the templates may name in addition to the fields. Topics and keys are
/// short.
pub(crate) const TEMPLATE_COLUMNS_MAX: usize = 7;

const FULL_NAME_START: &str = "projects/";

/// A topic or ordering-key template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Column(String),
}

/// The template cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A brace has no partner.
    #[error(
        "\"{0}\" has a brace without its partner; columns stand in braces, as in {{aggregateid}}"
    )]
    Unbalanced(String),
    /// The template contains `{}`.
    #[error("\"{0}\" has empty braces; name a column in them, as in {{aggregateid}}")]
    NoName(String),
    /// The template names more columns than a row has places for.
    #[error("\"{text}\" names {count} columns; a template takes at most {max}", max = TEMPLATE_COLUMNS_MAX / 2)]
    TooMany {
        /// The text of the template.
        text: String,
        /// The number of columns in the template.
        count: usize,
    },
}

impl Template {
    /// Returns the template of this text, which names no column.
    #[must_use]
    pub fn literal(text: &str) -> Self {
        Self { text: text.to_owned(), pieces: vec![Piece::Literal(text.to_owned())] }
    }

    /// Parses a template.
    ///
    /// # Errors
    ///
    /// Braces are unbalanced or empty, or the template names too many columns.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let unbalanced = || TemplateError::Unbalanced(text.to_owned());
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((literal, after)) = rest.split_once('{') {
            let (column, after) = after.split_once('}').ok_or_else(unbalanced)?;
            if literal.contains('}') || column.contains('{') {
                return Err(unbalanced());
            }
            if column.trim().is_empty() {
                return Err(TemplateError::NoName(text.to_owned()));
            }
            if !literal.is_empty() {
                pieces.push(Piece::Literal(literal.to_owned()));
            }
            pieces.push(Piece::Column(column.trim().to_owned()));
            rest = after;
        }
        if rest.contains('}') {
            return Err(unbalanced());
        }
        if !rest.is_empty() {
            pieces.push(Piece::Literal(rest.to_owned()));
        }
        let template = Self { text: text.to_owned(), pieces };
        // Topic and ordering key share the places, so each may name half of them.
        let count = template.columns().count();
        if count > TEMPLATE_COLUMNS_MAX / 2 {
            return Err(TemplateError::TooMany { text: text.to_owned(), count });
        }
        Ok(template)
    }

    /// The columns in the template.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Column(name) => Some(name.as_str()),
            Piece::Literal(_) => None,
        })
    }

    /// Whether the text of this topic template names a project.
    #[must_use]
    pub fn names_project(&self) -> bool {
        self.text.starts_with(FULL_NAME_START)
    }

    /// The full name of the topic that this template expands to. If a value contains a separator, no
    /// topic can have the name: only the text of the template may name a project.
    #[must_use]
    pub fn full_topic_name(&self, project: &str, expanded: &str) -> String {
        let literals = self.pieces.iter().filter_map(|piece| piece.part().ok());
        let separators: usize = literals.map(separator_count).sum();
        match self.names_project() && separator_count(expanded) == separators {
            true => expanded.to_owned(),
            false => format!("{FULL_NAME_START}{project}/topics/{expanded}"),
        }
    }

    /// The pieces of the template: `Ok` for literal text, `Err` for the name of a column.
    #[must_use]
    pub fn parts(&self) -> Vec<Result<&str, &str>> {
        self.pieces.iter().map(Piece::part).collect()
    }
}

fn separator_count(text: &str) -> usize {
    text.matches('/').count()
}

impl Piece {
    fn part(&self) -> Result<&str, &str> {
        match self {
            Self::Literal(text) => Ok(text),
            Self::Column(name) => Err(name),
        }
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_in_braces() {
        let template = Template::parse("a-{x}.{ y }").unwrap();
        assert_eq!(template.parts(), [Ok("a-"), Err("x"), Ok("."), Err("y")]);
        assert_eq!(Template::parse("").unwrap().parts(), []);
        assert_eq!(Template::parse("plain").unwrap().parts(), [Ok("plain")]);
    }

    #[test]
    fn only_the_text_of_a_template_names_a_project() {
        let full = "projects/other/topics/video";
        for (template, expanded, name) in [
            ("{a}", "video", Some("projects/p/topics/video")),
            ("{a}", full, None),
            ("{a}.events", "projects/other/topics/video.events", None),
            ("{a}projects/q/topics/video", "projects/q/topics/video", None),
            ("projects/q/topics/{a}", "projects/q/topics/video", Some("projects/q/topics/video")),
            (
                "projects/{a}/topics/video",
                "projects/q/topics/video",
                Some("projects/q/topics/video"),
            ),
            ("projects/{a}", full, None),
            ("projects/q/topics/{a}", "projects/q/topics/video/y", None),
        ] {
            let found = Template::parse(template).unwrap().full_topic_name("p", expanded);
            let is_name = crate::limits::is_topic_name(&found);
            assert_eq!(is_name.then_some(found.as_str()), name, "{template}: {found}");
        }
    }

    #[test]
    fn braces_that_do_not_pair_are_refused() {
        for text in ["{a", "a}", "{a{b}}", "}{", "{}", "{ }", "{a}{b}{c}{d}"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_bound_on_columns_is_named() {
        let error = Template::parse("{a}{b}{c}{d}").unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"{a}{b}{c}{d}\" names 4 columns; a template takes at most 3"
        );
    }
}
