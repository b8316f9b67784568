//! Shards: several slots that share an outbox, each with the rows of its own ordering keys.
//!
//! A shard's publication filters rows by a hash of the ordering key. A key is therefore on exactly
//! one shard, and its order holds. Slots and publications have the number of shards in their names.
//! Shards of two numbers can therefore exist at once while the number is changed.

use std::fmt;
use std::str::FromStr;

use walrelay_pg_client::{QualifiedName, quote_literal};

/// One of several shards, or the whole outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard {
    index: u32,
    count: u32,
}

/// The text is not a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a shard and their number, as in 0/4: the number is a power of two up to 64, the shard is below it"
)]
pub struct ParseShardError;

impl Shard {
    /// Maximum number of shards. Each decodes the whole WAL, so more shards cost the server more
    /// than they gain.
    pub const COUNT_MAX: u32 = 64;

    /// The whole outbox as its only shard.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Returns whether this number of shards is valid. A mask of the hash must select one of them.
    #[must_use]
    pub const fn is_count(count: u32) -> bool {
        count.is_power_of_two() && count <= Self::COUNT_MAX
    }

    /// Returns all shards of a number of shards.
    ///
    /// # Panics
    ///
    /// The number is not valid.
    pub fn all(count: u32) -> impl Iterator<Item = Self> {
        assert!(Self::is_count(count), "{count} shards");
        (0..count).map(move |index| Self { index, count })
    }

    /// Returns the index of the shard, from 0.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// Returns whether this is the only shard.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.count == 1
    }

    /// Returns the name of this shard's slot or publication. `base` is the name for the whole
    /// outbox.
    #[must_use]
    pub fn name(self, base: &str) -> String {
        match self.is_whole() {
            true => base.to_owned(),
            false => format!("{base}_{}_of_{}", self.index, self.count),
        }
    }

    /// Returns the name for the whole outbox. `name` is this shard's slot or publication.
    #[must_use]
    pub fn base(self, name: &str) -> &str {
        let suffix = self.name("");
        name.strip_suffix(suffix.as_str()).unwrap_or(name)
    }

    /// Returns the shard with this name, if there is one.
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

    /// Returns the shard that the name of a slot ends with. The whole outbox if it ends with none.
    #[must_use]
    pub fn of_slot(slot: &str) -> Self {
        let rest = slot.rsplit_once("_of_").and_then(|(rest, _)| rest.rsplit_once('_'));
        rest.and_then(|(base, _)| Self::of_name(slot, base)).unwrap_or(Self::WHOLE)
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

/// The key that distributes rows among shards: the ordering key's template over columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardKey {
    /// Pieces in the order of the template.
    pub pieces: Vec<KeyPiece>,
}

/// A piece of an ordering key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPiece {
    /// Text that is the same in every key.
    Literal(String),
    /// The text of a column. Of these names, the first that the table has counts.
    Column(Vec<String>),
}

impl ShardKey {
    /// Returns a scalar SQL expression for a shard's row filter, as text. The result is null if the
    /// table lacks a column, or if no row filter can convert a column to text.
    ///
    /// The filter has the form in which the server shows it (`pg_get_expr`), so that existing and
    /// expected filters can be compared. That form depends on the columns' types. The server knows
    /// the types, and therefore generates the text.
    ///
    /// The hash is of the key's text. Two rows with one key are therefore on one shard, in any
    /// columns, and dispatch state finds the shard from its stored key. A null counts as empty, as
    /// in the key. Otherwise the row would be on no shard. The collation is explicit, because the
    /// hash depends on it and columns may differ. `hashtext` keeps its values across upgrades,
    /// because `pg_upgrade` keeps hash indexes of text.
    ///
    /// The filter uses a mask instead of `abs(..) %`. `abs` of the least integer fails, and a
    /// failure during decoding would stop the slot for ever.
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
    /// Returns a scalar SQL expression for the SQL text of this piece.
    ///
    /// Text is used as it is. Any other type goes through its output function, as in replication. A
    /// row filter accepts no cast, because a cast is not a function call. The type's output must
    /// not depend on a setting.
    fn sql(&self, table: &QualifiedName) -> String {
        let names = match self {
            Self::Literal(text) => {
                // In the server's own form for any content (`simple_quote_literal` in
                // `ruleutils.c`).
                return quote_literal(&format!("'{}'::text", text.replace('\'', "''")));
            }
            Self::Column(names) => names.iter().map(|name| quote_literal(name)).collect::<Vec<_>>(),
        };
        let (names, table) = (names.join(", "), quote_literal(&table.to_string()));
        // spliced: the names of the column and its table.
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
        assert_eq!(Shard::of_slot("my_of_walrelay_3_of_4"), shard);
        assert_eq!(Shard::of_slot("walrelay_4_of_4"), Shard::WHOLE);
        // Anchors, other outboxes, and numbers in another form.
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
