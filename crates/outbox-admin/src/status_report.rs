//! The report of a command about one slot: the relay's report, the operation on record and the
//! unfinished replays.

use serde_json::{Map, Value, json};
use walrelay_outbox_store::{DispatchStore, IncrementalCount, SlotFigures, read_survey};
use walrelay_pg_client::SqlClient;
use walrelay_pg_replication::SlotError;
use walrelay_relay::observe::report::{report_of, report_without_slot};

use crate::admin_error::AdminError;
use crate::operation::{SlotOperation, read_operation};
use crate::slot_holder::describe_unfinished;
use crate::unfinished_replay::{PausingReplay, TopicReplay, open_topic_replays, pausing_replays};

/// An error of the status report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The slot is lost. Its unconfirmed changes can no longer be read from the WAL.
    #[error("slot {slot:?} {how}")]
    SlotLost {
        /// The slot.
        slot: String,
        /// How it was lost.
        how: &'static str,
    },
    /// The server refuses a statement.
    #[error(transparent)]
    Store(#[from] AdminError),
}

/// Returns the report of `walrelay status --output json`.
///
/// # Errors
///
/// The server refuses, the slot is missing (lost, if it existed before), or there is no dispatch
/// state.
pub async fn report(client: &SqlClient, slot: &str) -> Result<Map<String, Value>, ReportError> {
    let store = DispatchStore::new(slot.to_owned());
    let mut counting = IncrementalCount::default();
    let mut survey = read_survey(client, &store, &mut counting).await.map_err(AdminError::from)?;
    while survey.is_counting {
        survey = read_survey(client, &store, &mut counting).await.map_err(AdminError::from)?;
    }
    let operation = operation(client, slot, &survey).await?;
    let begun = match &operation {
        Some(operation) => Some(describe_unfinished(client, slot, operation).await?),
        None => None,
    };
    let found = match (report_of(&survey), &operation) {
        (found @ Some(_), _) => found,
        // The report on an upgrade is only that the relay waits for it.
        (None, Some(SlotOperation::Upgrade(_)) | None) => None,
        // During an operation the slot may not exist.
        (None, Some(_)) => Some(report_without_slot(slot, &survey)),
    };
    match found {
        Some(mut report) => {
            report.insert("operation".into(), json!(begun));
            let finishing_command = operation.as_ref().map(SlotOperation::finishing_command);
            report.insert("finished_by".into(), json!(finishing_command));
            let is_vain = match &operation {
                Some(SlotOperation::Reset(reset)) => !reset.has_anchor(client).await?,
                Some(_) | None => false,
            };
            report.insert("is_vain".into(), json!(is_vain));
            let holding = pausing_replays(client, slot).await?;
            report.insert("held".into(), holding.iter().map(held).collect());
            report.insert("replays".into(), replays_of(client, slot).await?);
            Ok(report)
        }
        None if let Some(SlotOperation::Upgrade(_)) = operation => {
            Err(AdminError::UpgradePrepared { slot: slot.to_owned() }.into())
        }
        None if survey.relay_row.is_some() => {
            Err(ReportError::SlotLost { slot: slot.to_owned(), how: "no longer exists" })
        }
        None => Err(AdminError::from(SlotError::SlotMissing { slot: slot.to_owned() }).into()),
    }
}

/// Returns the unfinished replays of this slot to a topic.
///
/// # Errors
///
/// The server refuses.
pub async fn replays_of(client: &SqlClient, slot: &str) -> Result<Value, AdminError> {
    let replays = open_topic_replays(client, slot).await?;
    Ok(replays.iter().map(replay).collect())
}

/// Returns the unfinished operation that was begun with the slot.
async fn operation(
    client: &SqlClient,
    slot: &str,
    survey: &SlotFigures,
) -> Result<Option<SlotOperation>, AdminError> {
    let has_begun = survey.relay_row.as_ref().is_some_and(|row| row.operation.is_some());
    if has_begun { read_operation(client, slot).await } else { Ok(None) }
}

fn held(PausingReplay { id, keys, is_being_done }: &PausingReplay) -> Value {
    json!({ "id": id, "command": "replay", "keys": keys, "is_being_done": is_being_done })
}

fn replay(TopicReplay { id, topic, is_being_done }: &TopicReplay) -> Value {
    json!({ "id": id, "command": "replay", "to_topic": topic, "is_being_done": is_being_done })
}
