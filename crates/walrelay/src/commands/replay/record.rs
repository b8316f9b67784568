//! A replay or a backfill on record: its id, how it is taken up again, and what is said of either.

use walrelay_postgres::{ReplayRow, SqlClient, read_replay, take_replay};
use walrelay_relay::replay::Tally;
use walrelay_relay::seed::random_seed;

use crate::error::Error;

/// The id of a new one.
pub(in crate::commands) fn new_id() -> String {
    format!("{:08x}", random_seed() & u64::from(u32::MAX))
}

/// One of these slots that is not done, and that no other process does now. `slot` is named where there is
/// none.
pub(in crate::commands) async fn take_up(
    client: &SqlClient,
    (command, id): (&str, &str),
    (slot, slots): (&str, &[&str]),
) -> Result<ReplayRow, Error> {
    // Before the row is read: whoever had it until now may have come further.
    if !take_replay(client, id).await? {
        return Err(Error::ReplayTaken { id: id.to_owned() });
    }
    let row = read_replay(client, id).await?;
    let row = row.filter(|row| slots.contains(&row.slot.as_str()));
    let row = row.ok_or_else(|| Error::Unfit {
        what: format!("slot {slot:?} has no {command} {id:?}"),
        hint: "the id stands in the line that told how to go on",
    })?;
    if row.is_finished {
        return Err(Error::Unfit {
            what: format!("{command} {id} is done: {} row(s) were published", row.rows),
            hint: "begin a new one",
        });
    }
    Ok(row)
}

/// Only one in place can be given up.
pub(in crate::commands) fn nothing_is_held(command: &str, id: &str, topic: &str) -> Error {
    Error::Unfit {
        what: format!("{command} {id} publishes to {topic}: nothing is held for it"),
        hint: "leave it as it is; what was published stays",
    }
}

/// A line about the rows that were left out; empty without any.
pub(in crate::commands) fn left_out(tally: &Tally) -> String {
    match tally.left_out() {
        0 => String::new(),
        dead => {
            format!("left out: {dead} row(s) that Pub/Sub would never take, named in the log\n")
        }
    }
}
