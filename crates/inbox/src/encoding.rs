//! Refuses a database that cannot store every text of an event.
//!
//! Messages are UTF-8. In a database with another encoding, one character can keep an event from
//! being applied and from being recorded as failed. The event would block its batch for ever.

use walrelay_pg_client::{SqlClient, sql};

use crate::access::failed;
use crate::error::InboxError;

/// Refuses a consumer's database whose encoding is not UTF-8.
pub async fn refuse_other_encoding(client: &SqlClient) -> Result<(), InboxError> {
    let row = client.query_typed_one(sql!("encoding.sql", "encoding"), &[]).await;
    let row = row.map_err(failed("read the encoding of the database"))?;
    let (encoding, database): (String, String) = (row.get(0), row.get(1));
    match encoding.as_str() {
        "UTF8" => Ok(()),
        _ => Err(InboxError::Encoding { database, encoding }),
    }
}
