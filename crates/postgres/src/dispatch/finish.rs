//! Writing down what became of claimed rows.

use std::time::{Duration, SystemTime};

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::history::{
    CODE_BYTES_MAX, ERROR_BYTES_MAX, attempt_line, prepend_line, storable, storable_line,
};
use super::{Claim, DispatchStatus, DispatchStore, seconds, signed};
use crate::store_error::StoreError;

/// What became of a claimed row.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// Pub/Sub stored it.
    Published {
        /// The claim.
        claim: Claim,
        /// Pub/Sub's id of the message.
        message_id: String,
    },
    /// It did not go out and will be tried again.
    Retry {
        /// The claim.
        claim: Claim,
        /// How often it has been tried by now.
        attempts: u32,
        /// When it is due; None for a row that waits behind the head of its key.
        next_attempt_in: Option<Duration>,
        /// A gRPC code, or our own reason.
        code: String,
        /// The same in words.
        error: String,
    },
    /// It did not go out and will not be tried again.
    Dead {
        /// The claim.
        claim: Claim,
        /// How often it has been tried by now.
        attempts: u32,
        /// A gRPC code, or our own reason.
        code: String,
        /// The same in words.
        error: String,
    },
    /// It was not tried: it waits behind a row that failed, or we are stopping. The lease is given
    /// back. A row without ordering key is then due at once; any other when its key is next claimed.
    Release {
        /// The claim.
        claim: Claim,
    },
}

impl DispatchStore {
    /// Writes these outcomes down, all or none. Returns how many counted.
    ///
    /// An outcome counts while its claim stands: not when an operator has meanwhile edited or
    /// discarded the row, nor when its lease was over and it has been claimed again.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended; the outcomes may be written again.
    pub async fn finish(&self, client: &Client, outcomes: &[Outcome]) -> Result<u64, StoreError> {
        if outcomes.is_empty() {
            return Ok(0);
        }
        let columns = Columns::of(outcomes)?;
        client
            .execute_typed(
                &finish_sql(),
                &[
                    (&self.slot, Type::TEXT),
                    (&columns.event_id, Type::TEXT_ARRAY),
                    (&columns.version, Type::TIMESTAMPTZ_ARRAY),
                    (&columns.status, Type::TEXT_ARRAY),
                    (&columns.attempts, Type::INT4_ARRAY),
                    (&columns.delay, Type::FLOAT8_ARRAY),
                    (&columns.error_code, Type::TEXT_ARRAY),
                    (&columns.error, Type::TEXT_ARRAY),
                    (&columns.message_id, Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(StoreError::sql("write down what became of parked rows"))
    }
}

/// The outcomes, column by column. `attempts` is null where the row was not tried, `error_code`
/// where nothing went wrong.
#[derive(Default)]
struct Columns<'a> {
    event_id: Vec<&'a str>,
    version: Vec<SystemTime>,
    status: Vec<&'static str>,
    attempts: Vec<Option<i32>>,
    delay: Vec<Option<f64>>,
    error_code: Vec<Option<String>>,
    error: Vec<Option<String>>,
    message_id: Vec<Option<String>>,
}

impl<'a> Columns<'a> {
    fn of(outcomes: &'a [Outcome]) -> Result<Self, StoreError> {
        let mut columns = Self::default();
        outcomes.iter().try_for_each(|outcome| columns.push(outcome))?;
        Ok(columns)
    }

    fn push(&mut self, outcome: &'a Outcome) -> Result<(), StoreError> {
        let (mut tried, mut delay, mut failure, mut message_id) = (None, None, None, None);
        let (claim, status) = match outcome {
            Outcome::Published { claim, message_id: id } => {
                message_id = Some(storable(id, ERROR_BYTES_MAX).into_owned());
                (claim, DispatchStatus::Published)
            }
            Outcome::Retry { claim, attempts, next_attempt_in, code, error } => {
                tried = Some(signed(*attempts, "number of attempts")?);
                delay = next_attempt_in.map(seconds);
                failure = Some((code, error));
                (claim, DispatchStatus::Retrying)
            }
            Outcome::Dead { claim, attempts, code, error } => {
                tried = Some(signed(*attempts, "number of attempts")?);
                failure = Some((code, error));
                (claim, DispatchStatus::Dead)
            }
            Outcome::Release { claim } => (claim, DispatchStatus::Retrying),
        };
        self.event_id.push(&claim.event_id);
        self.version.push(claim.version);
        self.status.push(status.as_str());
        self.attempts.push(tried);
        self.delay.push(delay);
        self.error_code.push(failure.map(|(code, _)| storable_line(code, CODE_BYTES_MAX)));
        self.error.push(failure.map(|(_, error)| storable_line(error, ERROR_BYTES_MAX)));
        self.message_id.push(message_id);
        Ok(())
    }
}

// Rows are locked in one order here and in what operators do, so that the two cannot deadlock. The
// claim is compared under the lock: a row changed since our snapshot is looked at again. For
// `coalesce(status, '')` see claim.rs.
fn finish_sql() -> String {
    let history =
        prepend_line(&attempt_line("o.attempts", "o.error_code", "o.error"), "d.last_error");
    format!(
        "WITH outcome AS (
           SELECT *
             FROM unnest($2, $3, $4, $5, $6, $7, $8, $9)
                  AS o(event_id, version, status, attempts, delay, error_code, error, message_id)
         ), held AS MATERIALIZED (
           SELECT event_id
             FROM public.app_outbox_dispatch
            WHERE slot = $1 AND event_id = ANY ($2) AND coalesce(status, '') = 'retrying'
            ORDER BY event_id
              FOR UPDATE
         )
         UPDATE public.app_outbox_dispatch AS d
            SET status = o.status,
                attempts = coalesce(o.attempts, d.attempts + (o.status = 'published')::int),
                next_attempt_at = CASE
                  WHEN o.status <> 'retrying' THEN NULL
                  WHEN d.ordering_key = '' THEN now() + make_interval(secs => coalesce(o.delay, 0))
                  ELSE now() + make_interval(secs => o.delay)
                END,
                error_code = coalesce(o.error_code, d.error_code),
                last_error = CASE WHEN o.error_code IS NULL THEN d.last_error ELSE {history} END,
                message_id = coalesce(o.message_id, d.message_id),
                updated_at = greatest(clock_timestamp(), d.updated_at + interval '1 microsecond')
           FROM outcome AS o
           JOIN held USING (event_id)
          WHERE d.slot = $1 AND d.event_id = o.event_id AND d.event_id = ANY ($2)
            AND coalesce(d.status, '') = 'retrying' AND d.updated_at = o.version"
    )
}
