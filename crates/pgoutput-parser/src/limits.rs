//! Every bound of the decoder, each with its reason.
//!
//! Only relations are kept between messages, so only they need bounds; everything else borrows from
//! the bytes it was decoded from. Beyond a bound the answer is an error, never forgetting: the server
//! describes a relation once per connection, so a forgotten one would make its next row unreadable.

/// Columns of one relation. Postgres's own `MaxTupleAttributeNumber`; a table stops at 1,600.
pub const COLUMNS_MAX: usize = 1_664;

/// Relations kept by one decoder. Publications name a handful of tables; even `FOR ALL TABLES` over a
/// large schema stays below this, and a peer that invents oids is stopped here.
pub const RELATIONS_MAX: usize = 4_096;

/// Columns kept over all relations: 64 for each of [`RELATIONS_MAX`]. Without it the two bounds above
/// would multiply to 6.8 million columns, far more memory than a relay has.
pub const COLUMNS_KEPT_MAX: usize = 262_144;

/// Bytes of a schema, table or column name. Postgres's limit is 63 unless it was compiled with a
/// larger `NAMEDATALEN`, for which this leaves room.
pub const NAME_BYTES_MAX: usize = 1_023;
