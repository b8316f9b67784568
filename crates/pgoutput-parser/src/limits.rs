//! The limits of the decoder, each with its reason.
//!
//! Only relations are kept between messages, and the domains before a relation, so only they need
//! limits. Everything else borrows from the decoded bytes. A relation beyond a limit is an error, and the decoder never evicts one. The
//! server describes a relation once per connection, so rows of an evicted relation would be
//! unreadable. A new connection starts from none, so a caller connects again between two transactions
//! while the decoder is nearly full.

/// Columns of one relation. Postgres's own `MaxTupleAttributeNumber`. A table has at most 1,600.
pub const COLUMNS_MAX: usize = 1_664;

/// Relations kept by one decoder. Publications name a handful of tables, and even `FOR ALL TABLES`
/// over a large schema stays below this limit. Partitions that come and go reach it after some time.
pub const RELATIONS_MAX: usize = 4_096;

/// Columns kept over all relations: 64 for each of [`RELATIONS_MAX`]. Without it, the two limits
/// above would multiply to 6.8 million columns, far more memory than a relay has.
pub const COLUMNS_KEPT_MAX: usize = 262_144;

/// Relations for which a decoder keeps capacity: more than one transaction describes for the first
/// time. See [`Decoder::is_nearly_full`](crate::Decoder::is_nearly_full).
pub const RELATIONS_RESERVED: usize = 256;

/// Bytes of a schema, table or column name. Postgres's limit is 63 unless it was compiled with a
/// larger `NAMEDATALEN`, which this limit allows for.
pub const NAME_BYTES_MAX: usize = 1_023;
