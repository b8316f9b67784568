//! The encoding of the database, and the risk of an encoding that checks no text.

use tokio_postgres::Client;

use crate::admin_error::AdminError;

/// The encoding that accepts any bytes as text.
pub const UNCHECKED_ENCODING: &str = "SQL_ASCII";

pub const SQL_ASCII_RISK: &str = "has the encoding SQL_ASCII, which checks no text: the server cannot send an outbox \
                                  row whose text is not valid UTF-8, and the relay stops there";

pub const SQL_ASCII_FIX: &str = "move it to a database with ENCODING 'UTF8' (pg_dump and pg_restore); until then write \
                                 valid UTF-8 only";

/// Returns the name of the database if its encoding is SQL_ASCII.
pub async fn read_unchecked_database(client: &Client) -> Result<Option<String>, AdminError> {
    let sql = "SELECT current_database()::text AS name, getdatabaseencoding()::text AS encoding";
    let row = client.query_typed_one(sql, &[]).await;
    let row = row.map_err(AdminError::sql("read the encoding of the database"))?;
    let is_unchecked = row.get::<_, &str>("encoding") == UNCHECKED_ENCODING;
    Ok(is_unchecked.then(|| row.get("name")))
}
