//! Rows and keys for the tests, and helpers that check them.

use std::sync::Arc;
use std::time::Duration;
use walrelay_testkit::postgres::TestClient;

use pgoutput_parser::{Lsn, Position};
use walrelay_core::{CallCode, FailureCause, FailureClass, Outcome, PublishFailure};
use walrelay_outbox_store::{
    Claim, ClaimLimits, ClaimedRow, DispatchStatus, DispatchStore, Key, ParkRow, ParkStatus,
};

pub(crate) const TOPIC: &str = "projects/p/topics/t";
pub(crate) const NOW: ParkStatus = ParkStatus::Retrying { next_attempt_in: Some(Duration::ZERO) };
pub(crate) const BEHIND: ParkStatus = ParkStatus::Retrying { next_attempt_in: None };
pub(crate) const LATER: ParkStatus =
    ParkStatus::Retrying { next_attempt_in: Some(Duration::from_secs(3600)) };
pub(crate) const LIMITS: ClaimLimits =
    ClaimLimits { per_key_rows: 100, bytes_max: 1 << 20, lease: Duration::from_secs(60) };

pub(crate) fn store() -> DispatchStore {
    DispatchStore::new("walrelay".to_owned())
}

pub(crate) fn at(commit_lsn: u64, tx_index: u32) -> Position {
    Position { commit_lsn: Lsn::new(commit_lsn), tx_index }
}

pub(crate) fn row<'a>(
    event_id: &'a str,
    position: Position,
    key: &'a str,
    status: ParkStatus,
) -> ParkRow<'a> {
    ParkRow {
        event_id,
        position,
        topic: TOPIC,
        ordering_key: key,
        event_type: Some("made"),
        message: event_id.as_bytes(),
        status,
        attempts: 3,
        error_code: (status != BEHIND).then_some("UNAVAILABLE"),
        failed_with: None,
        last_error: (status != BEHIND).then_some("no route"),
    }
}

pub(crate) fn key(ordering_key: &str) -> Key<'_> {
    Key { topic: TOPIC, ordering_key }
}

pub(crate) fn ids(rows: &[ClaimedRow]) -> Vec<&str> {
    rows.iter().map(|row| row.claim.event_id()).collect()
}

/// Returns the ordering keys that are due, in order of their time.
pub(crate) async fn due(store: &DispatchStore, client: &TestClient) -> Vec<String> {
    let due = store.due_keys(client, &[], 10).await.expect("the due keys");
    due.keys.into_iter().map(|(_, ordering_key)| ordering_key).collect()
}

pub(crate) async fn status_of(
    store: &DispatchStore,
    client: &TestClient,
    event_id: &str,
) -> DispatchStatus {
    store.show(client, event_id).await.expect("the row").row.status
}

pub(crate) fn published() -> Outcome {
    Outcome::Published { message_id: "1".to_owned() }
}

/// The row was not tried, and the lease is given back.
pub(crate) const RELEASED: Outcome =
    Outcome::Again { attempts: 0, after: None, failure: None, blame: FailureCause::Nobody };

pub(crate) fn failure(code: CallCode, error: &str) -> Arc<PublishFailure> {
    Arc::new(PublishFailure::new(FailureClass::Transient, code, error))
}

/// Returns the same outcome for all of these rows.
pub(crate) fn all(claimed: Vec<ClaimedRow>, outcome: &Outcome) -> Vec<(Claim, &Outcome)> {
    claimed.into_iter().map(|row| (row.claim, outcome)).collect()
}
