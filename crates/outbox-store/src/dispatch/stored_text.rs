//! Texts for the table's columns: bounded, and without characters that Postgres cannot store.
//!
//! `last_error` is one text column with a history: one line per attempt, newest first.

use std::borrow::Cow;

use tokio_postgres::error::SqlState;

use crate::store_error::StoreError;

/// Maximum bytes of a topic, ordering key or event id that is stored whole. Pub/Sub accepts no
/// longer key or attribute, and together they must fit into an index entry (2,704 bytes). A longer
/// one belongs to a dead row, whose `message` still contains it whole.
pub(super) const NAME_BYTES_MAX: usize = 1024;

/// Maximum bytes of the error text of one attempt. It leaves space for others in the column's 4
/// KiB.
pub(super) const ERROR_BYTES_MAX: usize = 1024;

/// Maximum bytes of an error code. Our codes and gRPC's codes are far shorter.
pub(super) const CODE_BYTES_MAX: usize = 64;

/// Returns SQL that puts `line` before the history `old`. The result has at most 20 lines and 4
/// KiB, in whole lines.
pub(super) fn prepend_line(line: &str, old: &str) -> String {
    // spliced: the line and the column.
    format!(
        "(SELECT string_agg(kept.line, E'\\n' ORDER BY kept.n)
            FROM (SELECT h.line, h.n, sum(octet_length(h.line) + 1) OVER (ORDER BY h.n) AS bytes
                    FROM string_to_table({line} || E'\\n' || coalesce({old}, ''), E'\\n')
                         WITH ORDINALITY AS h(line, n)) AS kept
           WHERE kept.n <= 20 AND kept.bytes <= 4096 AND kept.line <> '')"
    )
}

/// SQL for the time of a line, in UTC.
pub(super) const MOMENT: &str =
    "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";

/// Shortens the text to `bytes_max` at a character boundary. Replaces zero bytes, which `text`
/// cannot store.
pub(super) fn storable(text: &str, bytes_max: usize) -> Cow<'_, str> {
    let cut = &text[..text.floor_char_boundary(bytes_max)];
    if cut.contains('\0') { Cow::Owned(cut.replace('\0', "?")) } else { Cow::Borrowed(cut) }
}

/// Like [`storable`], but on one line.
pub(super) fn storable_line(text: &str, bytes_max: usize) -> String {
    let is_control = |c: char| c.is_control();
    storable(text, bytes_max).replace(is_control, " ")
}

/// The characters that a text for people may contain. The database's encoding may lack some, which
/// only its refusal shows. Every encoding has ASCII.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AllowedCharacters {
    All,
    Ascii,
}

impl AllowedCharacters {
    /// Returns one line for people, at most `bytes_max` long.
    pub(super) fn line(self, text: &str, bytes_max: usize) -> String {
        let line = storable_line(text, bytes_max);
        match self {
            Self::All => line,
            Self::Ascii => line.replace(|c: char| !c.is_ascii(), "?"),
        }
    }

    /// Returns the characters to try after this failure, if others may succeed.
    pub(super) fn after(self, error: &StoreError) -> Option<Self> {
        let is_lacking = error.sql_state() == Some(&SqlState::UNTRANSLATABLE_CHARACTER);
        (is_lacking && self == Self::All).then_some(Self::Ascii)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_at_a_character_and_lose_their_zero_bytes() {
        assert_eq!(storable("aé", 2), "a");
        assert_eq!(storable("a\0b", 10), "a?b");
        assert_eq!(storable_line("a\nb\0c", 10), "a b?c");
        assert!(matches!(storable("plain", 10), Cow::Borrowed("plain")));
    }
}
