//! What is written into text columns: bounded, and free of what Postgres cannot store.
//!
//! `last_error` is one text column that keeps a history: a line for each attempt, newest first.

use std::borrow::Cow;

use tokio_postgres::error::SqlState;

use crate::store_error::StoreError;

/// Longest topic, ordering key or event id that is stored whole. Pub/Sub accepts no longer key or
/// attribute, and together they must fit into an index entry (2,704 bytes): a longer one belongs to
/// a dead row, whose `message` still holds it whole.
pub(super) const NAME_BYTES_MAX: usize = 1024;

/// Longest error text of one attempt; leaves room for others within the 4 KiB of the column.
pub(super) const ERROR_BYTES_MAX: usize = 1024;

/// Longest error code; ours and gRPC's are far shorter.
pub(super) const CODE_BYTES_MAX: usize = 64;

/// The SQL expression for `last_error` once `line` has been put before what `old` holds: at most
/// 20 lines and 4 KiB, whole lines only.
pub(super) fn prepend_line(line: &str, old: &str) -> String {
    format!(
        "(SELECT string_agg(kept.line, E'\\n' ORDER BY kept.n)
            FROM (SELECT h.line, h.n, sum(octet_length(h.line) + 1) OVER (ORDER BY h.n) AS bytes
                    FROM string_to_table({line} || E'\\n' || coalesce({old}, ''), E'\\n')
                         WITH ORDINALITY AS h(line, n)) AS kept
           WHERE kept.n <= 20 AND kept.bytes <= 4096 AND kept.line <> '')"
    )
}

/// The SQL expression for the moment of a line, UTC.
pub(super) const MOMENT: &str =
    "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";

/// The SQL expression for the line of one attempt.
pub(super) fn attempt_line(attempts: &str, code: &str, error: &str) -> String {
    format!(
        "format('attempt %s at %s: %s: %s', {attempts}, {MOMENT}, coalesce({code}, '?'), coalesce({error}, ''))"
    )
}

/// The text cut to `bytes_max` at a character; a zero byte, which `text` cannot hold, is replaced.
pub(super) fn storable(text: &str, bytes_max: usize) -> Cow<'_, str> {
    let cut = &text[..text.floor_char_boundary(bytes_max)];
    if cut.contains('\0') { Cow::Owned(cut.replace('\0', "?")) } else { Cow::Borrowed(cut) }
}

/// As [`storable`], and on one line.
pub(super) fn storable_line(text: &str, bytes_max: usize) -> String {
    let is_control = |c: char| c.is_control();
    storable(text, bytes_max).replace(is_control, " ")
}

/// Which characters a text for people may hold. The database's encoding may lack some, which is known
/// when it refuses one; all of them have ASCII.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Characters {
    All,
    Ascii,
}

impl Characters {
    /// A line for people, at most so long.
    pub(super) fn line(self, text: &str, bytes_max: usize) -> String {
        let line = storable_line(text, bytes_max);
        match self {
            Self::All => line,
            Self::Ascii => line.replace(|c: char| !c.is_ascii(), "?"),
        }
    }

    /// What to try after this failure, if other characters may help.
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
