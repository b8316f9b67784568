//! The tables that the server has described on this connection.
//!
//! Owns the latest Relation message per oid, within [`limits`](crate::limits). The server describes
//! a table before its first row and again after each change of the table.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::cursor::Cursor;
use crate::error::{DecodeError, ExpectedBytes, Found};
use crate::limits::{
    COLUMNS_KEPT_MAX, COLUMNS_MAX, NAME_BYTES_MAX, RELATIONS_MAX, RELATIONS_RESERVED,
};

/// A table, as the server last described it.
#[derive(Debug, Clone)]
pub struct Relation {
    /// The table's oid.
    pub id: u32,
    /// The table's schema, with `pg_catalog` spelled out.
    pub namespace: String,
    /// The table's name.
    pub name: String,
    /// The columns that identify a row in an update or delete.
    pub replica_identity: ReplicaIdentity,
    /// The published columns, in the order of the values in a tuple.
    pub columns: Vec<RelationColumn>,
    /// Changes with every Relation message. Data derived from the columns stays valid while this is
    /// equal.
    pub generation: Generation,
}

impl Relation {
    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let id = cursor.u32("relation id")?;
        let namespace = bounded_name(cursor, Cursor::namespace)?;
        let name = bounded_name(cursor, Cursor::text)?;
        let replica_identity = ReplicaIdentity::parse(cursor)?;
        let at_count = *cursor;
        let count = usize::from(cursor.u16("column count")?);
        if count > COLUMNS_MAX {
            return Err(too_many(&at_count, "columns", COLUMNS_MAX, count));
        }
        let mut columns = Vec::with_capacity(count);
        for _ in 0..count {
            columns.push(RelationColumn::parse(cursor)?);
        }
        let generation = Generation::next();
        Ok(Self { id, namespace, name, replica_identity, columns, generation })
    }
}

/// One published column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelationColumn {
    /// The column's name.
    pub name: String,
    /// The oid of the column's type. Of a domain over a type that a reader distinguishes, such as
    /// `bytea`, the oid of that type, at any depth.
    pub type_oid: u32,
    /// The modifier of the column's type, -1 for none.
    pub type_modifier: i32,
    /// Whether the column is part of the replica identity.
    pub is_key: bool,
}

impl RelationColumn {
    const KEY: u8 = 1;

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let is_key = cursor.known_flags(Self::KEY)? == Self::KEY;
        Ok(Self {
            name: bounded_name(cursor, Cursor::text)?,
            type_oid: cursor.u32("type oid")?,
            type_modifier: cursor.i32("type modifier")?,
            is_key,
        })
    }
}

/// The columns that identify a row in an update or delete, `pg_class.relreplident`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaIdentity {
    /// The primary key, if there is one.
    Default,
    /// No columns.
    Nothing,
    /// The whole row.
    Full,
    /// A chosen unique index.
    Index,
}

impl ReplicaIdentity {
    pub(crate) fn tag(self) -> u8 {
        match self {
            Self::Default => b'd',
            Self::Nothing => b'n',
            Self::Full => b'f',
            Self::Index => b'i',
        }
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let identity = match cursor.peek() {
            Some(b'd') => Self::Default,
            Some(b'n') => Self::Nothing,
            Some(b'f') => Self::Full,
            Some(b'i') => Self::Index,
            Some(_) | None => {
                return Err(cursor.wrong_byte("a replica identity 'd', 'n', 'f' or 'i'"));
            }
        };
        cursor.u8("replica identity")?;
        Ok(identity)
    }
}

/// The number of a table description, unique in a process.
///
/// The counter is global and not per decoder. Otherwise a reader that keeps a layout over a
/// reconnect could mistake the new connection's description for the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation(u64);

impl Generation {
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// The domains that the server described since the last table.
///
/// Before it describes a table, the server describes each type of its columns that is not built in.
/// For a domain, that message has the oid of the domain, and the name of the type below all domains.
#[derive(Debug, Default)]
pub(crate) struct Domains(Vec<(u32, u32)>);

/// The built-in types that readers distinguish, with their oids from pg_type.dat.
const BASE_TYPES: [(&str, u32); 13] = [
    ("bool", 16),
    ("bytea", 17),
    ("int8", 20),
    ("int2", 21),
    ("int4", 23),
    ("text", 25),
    ("json", 114),
    ("varchar", 1043),
    ("date", 1082),
    ("timestamp", 1114),
    ("timestamptz", 1184),
    ("uuid", 2950),
    ("jsonb", 3802),
];

impl Domains {
    /// Learns a type. A table has at most [`COLUMNS_MAX`] columns, so more types are not kept.
    pub(crate) fn learn(&mut self, id: u32, (namespace, name): (&str, &str)) {
        let base = BASE_TYPES.iter().find(|(base, _)| *base == name);
        if namespace == "pg_catalog"
            && let Some((_, base)) = base
            && self.0.len() < COLUMNS_MAX
        {
            self.0.push((id, *base));
        }
    }

    /// Replaces domains among the types of a table, and forgets them.
    fn resolve(&mut self, relation: &mut Relation) {
        for (domain, base) in self.0.drain(..) {
            let columns = relation.columns.iter_mut();
            columns.filter(|it| it.type_oid == domain).for_each(|it| it.type_oid = base);
        }
    }
}

/// The latest description of each table.
#[derive(Debug, Default)]
pub(crate) struct Relations {
    /// Ordered by id.
    by_id: Vec<Relation>,
    /// The index of the last row's relation, because consecutive rows mostly belong to one table.
    last_found: usize,
    columns_kept: usize,
}

impl Relations {
    #[inline]
    pub(crate) fn get(&mut self, id: u32) -> Option<&Relation> {
        if self.by_id.get(self.last_found).is_none_or(|last| last.id != id) {
            self.last_found = self.by_id.binary_search_by_key(&id, |relation| relation.id).ok()?;
        }
        self.by_id.get(self.last_found)
    }

    /// Whether little capacity is left for relations that were not described yet.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.by_id.len() >= RELATIONS_MAX - RELATIONS_RESERVED
            || self.columns_kept >= COLUMNS_KEPT_MAX - COLUMNS_KEPT_MAX / 16
    }

    /// Decodes a Relation message and replaces the table's previous description.
    pub(crate) fn describe(
        &mut self,
        mut cursor: Cursor<'_>,
        domains: &mut Domains,
    ) -> Result<u32, DecodeError> {
        let start = cursor;
        let mut relation = Relation::parse(&mut cursor)?;
        cursor.finish()?;
        domains.resolve(&mut relation);

        let place = self.by_id.binary_search_by_key(&relation.id, |kept| kept.id);
        let replaced = place.ok().and_then(|place| self.by_id.get(place));
        let columns_kept = self
            .columns_kept
            .saturating_sub(replaced.map_or(0, |replaced| replaced.columns.len()))
            .saturating_add(relation.columns.len());
        if columns_kept > COLUMNS_KEPT_MAX {
            return Err(too_many(&start, "columns in all", COLUMNS_KEPT_MAX, columns_kept));
        }
        if replaced.is_none() && self.by_id.len() >= RELATIONS_MAX {
            let count = self.by_id.len().saturating_add(1);
            return Err(too_many(&start, "relations", RELATIONS_MAX, count));
        }

        self.columns_kept = columns_kept;
        let id = relation.id;
        match place {
            Err(place) => self.by_id.insert(place, relation),
            Ok(place) => {
                if let Some(kept) = self.by_id.get_mut(place) {
                    *kept = relation;
                }
            }
        }
        Ok(id)
    }
}

fn bounded_name<'a>(
    cursor: &mut Cursor<'a>,
    read: impl Fn(&mut Cursor<'a>) -> Result<&'a str, DecodeError>,
) -> Result<String, DecodeError> {
    let at_name = *cursor;
    let name = read(cursor)?;
    match name.len() {
        0..=NAME_BYTES_MAX => Ok(name.to_owned()),
        len => Err(too_many(&at_name, "bytes of name", NAME_BYTES_MAX, len)),
    }
}

#[cold]
fn too_many(at: &Cursor<'_>, what: &'static str, max: usize, found: usize) -> DecodeError {
    let found = u64::try_from(found).unwrap_or(u64::MAX);
    at.wrong(ExpectedBytes::AtMost { what, max }, Found::Number(found))
}
