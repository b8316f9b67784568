//! What several commands ask before they touch a slot: is something unfinished, and where was the log when.

use std::time::SystemTime;

use pgoutput_parser::Lsn;
use walrelay_postgres::{
    ServerErrorKind, SqlClient, StoreError, position_at, read_history, read_operation,
    read_relay_row,
};
use walrelay_relay::observe::report::rfc3339;

use crate::error::Error;

/// What was begun with the slot is finished first: in the middle of it the slot may be gone, or not be
/// the one that it will be.
pub(super) async fn refuse_unfinished(client: &SqlClient, slot: &str) -> Result<(), Error> {
    let unfinished = match read_operation(client, slot).await {
        Err(error) if error.server_kind() == Some(ServerErrorKind::TableMissing) => None,
        read => read?,
    };
    let Some(reset) = unfinished else { return Ok(()) };
    let what = reset.describe(slot);
    Err(StoreError::OperationUnfinished { slot: slot.to_owned(), what }.into())
}

/// Which rows are settled is known from the record that the relay keeps of its slot.
pub(super) async fn refuse_unrecorded(client: &SqlClient, slot: &str) -> Result<(), Error> {
    match read_relay_row(client, slot).await? {
        Some(_) => Ok(()),
        None => Err(Error::Unfit {
            what: format!(
                "nothing is recorded about slot {slot:?}, so no row is known to be settled"
            ),
            hint: "let `walrelay run` record it first, or correct --slot",
        }),
    }
}

/// The position from which on everything committed at `time` or later lies.
pub(super) async fn at_time(
    client: &SqlClient,
    slot: &str,
    time: SystemTime,
) -> Result<Lsn, Error> {
    let system = read_history(client, slot).await?;
    match position_at(client, &system, time).await? {
        Some(noted) => Ok(noted.lsn),
        None => Err(Error::Unfit {
            what: format!("no position is noted from {} or before", rfc3339(time)),
            hint: "the relay notes one a minute while it runs: name a position with its LSN instead",
        }),
    }
}
