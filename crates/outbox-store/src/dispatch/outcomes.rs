//! Records the outcomes of claimed rows.

use std::time::SystemTime;

use tokio_postgres::Client;
use tokio_postgres::types::Type;
use walrelay_core::{FailureCause, Outcome, PublishFailure};
use walrelay_pg_client::{SqlText, sql};

use super::stored_text::{
    AllowedCharacters, CODE_BYTES_MAX, ERROR_BYTES_MAX, storable, storable_line,
};
use super::{Claim, DispatchStatus, DispatchStore, SPILLED, seconds, signed};
use crate::store_error::StoreError;

/// Maximum rows of one statement. It ends long before a statement timeout, also on a busy server.
const STATEMENT_ROWS_MAX: usize = 1_000;

impl DispatchStore {
    /// Writes these outcomes, a thousand in each statement. Returns how many
    /// counted.
    ///
    /// An outcome counts only while its claim is valid. An operator's edit or discard ends the
    /// claim, and so does a new claim after the lease. A row that was not tried gives its lease
    /// back. If it has no ordering key, it is due at once. Otherwise it is due when its key is next
    /// claimed.
    ///
    /// # Errors
    ///
    /// Some outcomes may be written. The caller may write all of them again.
    pub async fn finish(
        &self,
        client: &Client,
        outcomes: &[(Claim, &Outcome)],
    ) -> Result<u64, StoreError> {
        let mut counted = 0;
        for chunk in outcomes.chunks(STATEMENT_ROWS_MAX) {
            let written = self.finish_with(client, chunk, AllowedCharacters::All).await;
            counted += match written.as_ref().err().and_then(|e| AllowedCharacters::All.after(e)) {
                Some(fewer) => self.finish_with(client, chunk, fewer).await?,
                None => written?,
            };
        }
        Ok(counted)
    }

    async fn finish_with(
        &self,
        client: &Client,
        outcomes: &[(Claim, &Outcome)],
        characters: AllowedCharacters,
    ) -> Result<u64, StoreError> {
        let columns = Columns::of(outcomes, characters)?;
        client
            .execute_typed(
                &FINISH,
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
                    (&columns.is_own_fault, Type::BOOL_ARRAY),
                    (&SPILLED, Type::TEXT),
                ],
            )
            .await
            .map_err(StoreError::sql("write down what became of parked rows"))
    }
}

/// The outcomes, column by column. `attempts` is null if the row was not tried, and `error_code` is
/// null if the attempt succeeded.
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
    /// Whether a failure is the row's own fault. Then the row loses its spilled mark.
    is_own_fault: Vec<bool>,
}

impl<'a> Columns<'a> {
    fn of(
        outcomes: &'a [(Claim, &Outcome)],
        characters: AllowedCharacters,
    ) -> Result<Self, StoreError> {
        let mut columns = Self::default();
        outcomes
            .iter()
            .try_for_each(|(claim, outcome)| columns.push(claim, outcome, characters))?;
        Ok(columns)
    }

    fn push(
        &mut self,
        claim: &'a Claim,
        outcome: &Outcome,
        characters: AllowedCharacters,
    ) -> Result<(), StoreError> {
        let attempts = |count: u32| signed(count, "number of attempts").map(Some);
        let (mut tried, mut delay, mut message_id) = (None, None, None);
        let mut failed: Option<&PublishFailure> = None;
        let mut is_own_fault = true;
        let status = match outcome {
            Outcome::Published { message_id: id } => {
                message_id = Some(storable(id, ERROR_BYTES_MAX).into_owned());
                DispatchStatus::Published
            }
            Outcome::Again { failure: None, .. } => DispatchStatus::Retrying,
            Outcome::Again { attempts: count, after, failure: Some(failure), blame } => {
                is_own_fault = *blame == FailureCause::Row;
                tried = attempts(*count)?;
                delay = after.map(seconds);
                failed = Some(failure);
                DispatchStatus::Retrying
            }
            Outcome::Dead { attempts: count, failure } => {
                tried = attempts(*count)?;
                failed = Some(failure);
                DispatchStatus::Dead
            }
        };
        self.event_id.push(&claim.event_id);
        self.version.push(claim.version);
        self.status.push(status.as_str());
        self.attempts.push(tried);
        self.delay.push(delay);
        self.error_code
            .push(failed.map(|failure| storable_line(failure.code.as_str(), CODE_BYTES_MAX)));
        self.error.push(failed.map(|failure| characters.line(&failure.message, ERROR_BYTES_MAX)));
        self.message_id.push(message_id);
        self.is_own_fault.push(is_own_fault);
        Ok(())
    }
}

/// This statement and the operators' commands lock rows in the same order, so they cannot deadlock.
/// The claim is compared under the lock, because the server then checks again a row that changed
/// since our snapshot. `claim.rs` explains `coalesce(status, '')`. The history of errors has at most
/// 20 lines and 4 KiB, as in `prepend_line`.
///
/// Each row finds its outcome by a search in one sorted `jsonb`, so the cost is linear under every
/// plan. With a join, Postgres 17 and 18 sort the array of ids again for each row.
static FINISH: SqlText = SqlText::new(|| sql!("outcomes.sql", "finish"));
