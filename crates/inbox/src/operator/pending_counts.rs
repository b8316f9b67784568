//! Counts the pending and dead rows of the inbox, often and cheaply.

use std::sync::LazyLock;

use serde_json::{Value, json};
use tokio_postgres::Row;

/// The maximum number of rows to count per status. The query runs every few seconds, and may cost
/// milliseconds.
pub(crate) const COUNTED_MAX: i64 = 10_000;

/// Each count reads one partial index in index order, so that the limit bounds the cost:
/// `app_inbox_waiting`, `app_inbox_due`, `app_inbox_dead` and `app_inbox_implausible`. `app_inbox_key` has no index for held
/// keys. However, the first event of each held key is due at some time, or is dead for ever. An
/// event waits no longer than the first event of its key.
pub(crate) static WAITING: LazyLock<String> = LazyLock::new(|| {
    const MINE: &str = "FROM public.app_inbox AS i WHERE i.consumer = $1 AND i.generation = $2";
    format!(
        "WITH due AS MATERIALIZED ( \
           SELECT i.ordering_key, i.received_at {MINE} AND i.status = 'retrying' AND i.next_attempt_at IS NOT NULL \
            ORDER BY i.next_attempt_at LIMIT {COUNTED_MAX}), \
         dead AS MATERIALIZED ( \
           SELECT i.ordering_key, i.received_at, i.next_attempt_at = 'infinity' AS holds {MINE} AND i.status = 'dead' \
            ORDER BY i.received_at LIMIT {COUNTED_MAX}), \
         holding AS (SELECT ordering_key, received_at FROM due \
                     UNION ALL SELECT ordering_key, received_at FROM dead WHERE holds) \
         SELECT (SELECT count(*) FROM (SELECT {MINE} AND i.status = 'retrying' \
                  ORDER BY i.ordering_key, i.commit_lsn, i.tx_index, i.arrival LIMIT {COUNTED_MAX}) AS r), \
                (SELECT count(*) FROM dead), \
                (SELECT count(DISTINCT ordering_key) FROM holding WHERE ordering_key <> ''), \
                (SELECT extract(epoch FROM pg_catalog.now() - min(received_at))::float8 FROM holding), \
                (SELECT count(*) FROM (SELECT FROM public.app_inbox_key AS k \
                  WHERE k.consumer = $1 AND k.generation = $2 AND k.implausible > 0 LIMIT {COUNTED_MAX}) AS i)"
    )
});

/// Events that wait because they alone fail with an error that does not count as an attempt. The
/// query reads only the rows that are due first, because it runs every few seconds.
pub(crate) static STUCK: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT s.event_id, s.error_code, pg_catalog.split_part(s.last_error, E'\\n', 1), count(*) OVER () \
       FROM (SELECT * FROM public.app_inbox AS i \
              WHERE i.consumer = $1 AND i.generation = $2 AND i.status = 'retrying' AND i.next_attempt_at IS NOT NULL \
              ORDER BY i.next_attempt_at LIMIT {STUCK_COUNTED}) AS s \
      WHERE EXISTS (SELECT FROM pg_catalog.unnest($3::text[]) AS code(beginning) \
                     WHERE pg_catalog.starts_with(s.error_code, code.beginning)) \
        AND s.received_at < pg_catalog.now() - interval '10 seconds' \
      ORDER BY s.received_at LIMIT 1"
    )
});

/// The number of events that `STUCK` reads.
const STUCK_COUNTED: u32 = 1_000;

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
        "{who}: {why}; mend what it lacks, or end who keeps it locked, and it goes on; where nothing is the matter but the \
         event, `walrelay inbox discard {id} --consumer {consumer} --reason …` gives it up"
    )
}
