//! Shards: several slots that share an outbox, each with the rows of its own ordering keys.
//!
//! A shard's publication filters rows by a hash of the ordering key, so that a key is on exactly one
//! shard and its order holds. Their number is part of the names of slots and publications: shards of
//! another number are others, and can stand beside these while the number is changed.

use std::fmt;
use std::str::FromStr;

use walrelay_pg_client::{QualifiedName, quote_literal};

/// One of several shards, or the whole outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard {
    index: u32,
    count: u32,
}

/// The text is no shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a shard and their number, as in 0/4: the number is a power of two up to 64, the shard is below it"
)]
pub struct ParseShardError;

impl Shard {
    /// The most shards there may be. Each decodes the whole log, so more of them cost the server more
    /// than they bring.
    pub const COUNT_MAX: u32 = 64;

    /// The whole outbox: the only shard there is.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Whether there can be so many shards: a mask of the hash selects one of them.
    #[must_use]
    pub const fn is_count(count: u32) -> bool {
        count.is_power_of_two() && count <= Self::COUNT_MAX
    }

    /// All shards, if there are so many.
    ///
    /// # Panics
    ///
    /// When there cannot be so many.
    pub fn all(count: u32) -> impl Iterator<Item = Self> {
        assert!(Self::is_count(count), "{count} shards");
        (0..count).map(move |index| Self { index, count })
    }

    /// Which one, from 0.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// How many there are.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// Whether it is the only one.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.count == 1
    }

    /// The name of this shard's slot or publication, where that of the whole outbox is `base`.
    #[must_use]
    pub fn name(self, base: &str) -> String {
        match self.is_whole() {
            true => base.to_owned(),
            false => format!("{base}_{}_of_{}", self.index, self.count),
        }
    }

    /// The name of the whole outbox's slot or publication, where this shard's is `name`.
    #[must_use]
    pub fn base(self, name: &str) -> &str {
        let suffix = self.name("");
        name.strip_suffix(suffix.as_str()).unwrap_or(name)
    }

    /// Which shard has this name, if one has.
    #[must_use]
    pub fn of_name(name: &str, base: &str) -> Option<Self> {
        let rest = name.strip_prefix(base)?;
        if rest.is_empty() {
            return Some(Self::WHOLE);
        }
        let (index, count) = rest.strip_prefix('_')?.split_once("_of_")?;
        let shard: Self = format!("{index}/{count}").parse().ok()?;
        (shard.name(base) == name).then_some(shard)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = ParseShardError;

    fn from_str(text: &str) -> Result<Self, ParseShardError> {
        let (index, count) = text.trim().split_once('/').ok_or(ParseShardError)?;
        let number = |part: &str| part.trim().parse::<u32>().map_err(|_| ParseShardError);
        let (index, count) = (number(index)?, number(count)?);
        match Self::is_count(count) && index < count {
            true => Ok(Self { index, count }),
            false => Err(ParseShardError),
        }
    }
}

/// What rows are distributed by: the ordering key, as the template makes it of columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardKey {
    /// In the order of the template.
    pub pieces: Vec<KeyPiece>,
}

/// A piece of an ordering key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPiece {
    /// Text that is the same in every key.
    Literal(String),
    /// The text of a column, which has one of these names; the first that the table has.
    Column(Vec<String>),
}

impl ShardKey {
    /// A scalar SQL expression whose value is the row filter of a shard, as text; null where the table
    /// lacks a column, or one has a type that no row filter can turn into text.
    ///
    /// It is text in the very form in which the server shows it again (`pg_get_expr`), so that what is
    /// there can be compared with what should be. Which form a column takes depends on its type, which
    /// the server knows; so the server makes the text.
    ///
    /// What is hashed is the text of the key itself: two rows with one key are on one shard whatever
    /// columns it came from, and dispatch state finds the shard by the key it holds. A null counts as
    /// empty, as in the key, or else the row would be on no shard at all. The collation is given
    /// because the hash depends on it, and columns may have different ones. `hashtext` keeps its values
    /// across upgrades: hash indexes of text are carried over by `pg_upgrade`, and hold them.
    ///
    /// A mask and not `abs(..) %`: `abs` of the least integer is an error, raised while decoding, where
    /// it would stop the slot for ever.
    #[must_use]
    pub fn filter_sql(&self, table: &QualifiedName, shard: Shard) -> String {
        let mut pieces = self.pieces.iter().map(|piece| piece.sql(table));
        let first = pieces.next().unwrap_or_else(|| quote_literal("''::text"));
        let key =
            pieces.fold(first, |left, right| format!("'(' || {left} || ' || ' || {right} || ')'"));
        let (mask, index) = (shard.count - 1, shard.index);
        format!("('((hashtext((' || {key} || ' COLLATE \"C\")) & {mask}) = {index})')")
    }
}

impl KeyPiece {
    /// A scalar SQL expression whose value is the SQL text of this piece.
    ///
    /// Text is taken as it is. Anything else goes through the output function of its type, which is what
    /// replication sends; a cast would be no function call, and no row filter takes it. Only a type whose
    /// output depends on no setting will do.
    fn sql(&self, table: &QualifiedName) -> String {
        let names = match self {
            Self::Literal(text) => {
                // As the server writes it, whatever is in it (`simple_quote_literal` in `ruleutils.c`).
                return quote_literal(&format!("'{}'::text", text.replace('\'', "''")));
            }
            Self::Column(names) => names.iter().map(|name| quote_literal(name)).collect::<Vec<_>>(),
        };
        let (names, table) = (names.join(", "), quote_literal(&table.to_string()));
        format!(
            "(SELECT CASE
                WHEN t.oid = 'text'::regtype THEN format('COALESCE(%I, ''''::text)', a.attname)
                WHEN t.oid = 'varchar'::regtype THEN format('COALESCE((%I)::text, ''''::text)', a.attname)
                WHEN p.provolatile = 'i' AND t.typnamespace = 'pg_catalog'::regnamespace
                  THEN format('COALESCE(textin(%s(%I)), ''''::text)', p.proname, a.attname)
                END
           FROM pg_catalog.pg_attribute a
           JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
           JOIN pg_catalog.pg_proc p ON p.oid = t.typoutput
          WHERE a.attrelid = to_regclass({table}) AND a.attnum > 0 AND NOT a.attisdropped
            AND a.attgenerated = '' AND a.attname IN ({names})
          ORDER BY array_position(ARRAY[{names}], a.attname::text) LIMIT 1)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_below_their_number_which_is_a_power_of_two() {
        assert_eq!("0/1".parse(), Ok(Shard::WHOLE));
        assert_eq!("3/4".parse::<Shard>().unwrap().to_string(), "3/4");
        for text in ["", "4", "4/4", "0/3", "0/0", "-1/2", "0/128", "1/2/4", "a/2"] {
            assert_eq!(text.parse::<Shard>(), Err(ParseShardError), "{text}");
        }
    }

    #[test]
    fn names_tell_the_shard_and_their_number() {
        let shard: Shard = "3/4".parse().unwrap();
        assert_eq!(shard.name("walrelay"), "walrelay_3_of_4");
        assert_eq!(shard.base("walrelay_3_of_4"), "walrelay");
        assert_eq!(Shard::WHOLE.base("walrelay"), "walrelay");
        assert_eq!(Shard::of_name("walrelay_3_of_4", "walrelay"), Some(shard));
        assert_eq!(Shard::of_name("walrelay", "walrelay"), Some(Shard::WHOLE));
        // Anchors, other outboxes, and numbers that nobody would write so.
        for name in [
            "walrelay_0_of_2_anchor_a",
            "walrelay_anchor_0_of_2",
            "walrelay2",
            "walrelay_00_of_2",
            "walrelay_0_of_1",
            "walrelay_2_of_2",
            "other_0_of_2",
        ] {
            assert_eq!(Shard::of_name(name, "walrelay"), None, "{name}");
        }
    }

    #[test]
    fn all_shards_are_told_one_by_one() {
        let all: Vec<String> = Shard::all(4).map(|shard| shard.to_string()).collect();
        assert_eq!(all, ["0/4", "1/4", "2/4", "3/4"]);
    }
}
