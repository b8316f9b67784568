//! Counts the pending and dead rows of the inbox, often and cheaply.

use serde_json::{Value, json};
use tokio_postgres::Row;
use walrelay_pg_client::{SqlText, sql};

/// The maximum number of rows to count per status. The query runs every few seconds, and may cost
/// milliseconds.
pub(crate) const COUNTED_MAX: i64 = 10_000;

/// Each count reads one partial index in index order, so that the limit bounds the cost:
/// `app_inbox_waiting`, `app_inbox_due`, `app_inbox_dead` and `app_inbox_implausible`. `app_inbox_key` has no index for held
/// keys. However, the first event of each held key is due at some time, or is dead for ever. An
/// event waits no longer than the first event of its key.
pub(crate) static WAITING: SqlText = SqlText::new(|| sql!("pending_counts.sql", "waiting"));

/// Events that wait because they alone fail with an error that does not count as an attempt. The
/// query reads only the rows that are due first, because it runs every few seconds.
pub(crate) static STUCK: SqlText = SqlText::new(|| sql!("pending_counts.sql", "stuck"));

/// The number of events that `STUCK` reads.
pub(crate) const STUCK_COUNTED: i64 = 1_000;

/// The counts of pending and dead rows. A count of [`COUNTED_MAX`] means that many or more.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Waiting {
    pub(crate) retrying: u64,
    pub(crate) dead: u64,
    pub(crate) keys_held: u64,
    /// The age of the oldest event that waits, or is dead and holds its key.
    pub(crate) oldest_seconds: Option<f64>,
    /// The number of keys whose position is proved wrong.
    pub(crate) implausible_positions: u64,
}

impl Waiting {
    pub(crate) fn of_row(row: &Row) -> Self {
        let count = |index: usize| u64::try_from(row.get::<_, i64>(index)).unwrap_or_default();
        Self {
            retrying: count(0),
            dead: count(1),
            keys_held: count(2),
            oldest_seconds: row.get::<_, Option<f64>>(3).map(|seconds| seconds.max(0.0)),
            implausible_positions: count(4),
        }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.retrying == 0 && self.dead == 0
    }

    /// Returns the JSON that `/status` shows.
    pub(crate) fn shown(&self) -> Value {
        json!({
            "retrying": self.retrying,
            "dead": self.dead,
            "keys_held": self.keys_held,
            "oldest_seconds": self.oldest_seconds,
            "implausible_positions": self.implausible_positions,
            "counted_at_most": COUNTED_MAX,
        })
    }
}

/// Returns the report of an event that fails alone, because something that it needs is missing or
/// locked, with the next step.
pub(crate) fn stuck(consumer: &str, row: &Row) -> String {
    let (id, code, error): (String, String, Option<String>) = (row.get(0), row.get(1), row.get(2));
    let who = match row.get::<_, i64>(3) - 1 {
        0 => format!("event {id} waits with its key"),
        others => format!(
            "event {id} and {others} of the {STUCK_COUNTED} that are due first wait with their keys"
        ),
    };
    // The error text begins with the code.
    let why = error.filter(|line| !line.is_empty()).unwrap_or(code);
    format!(
        "{who}: {why}; fix the cause, or end the session that locks it, and the event is applied; if the event itself is wrong, \
         discard it in the inbox of {consumer}"
    )
}
