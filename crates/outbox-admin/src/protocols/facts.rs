//! Reads what is under way beside a change, and refuses the change.

use walrelay_outbox_replay::{AdminError, SlotOperation, read_operation, unfinished_replays};
use walrelay_outbox_store::{
    Outbox, read_anchors, read_recorded_system_identifier, slots_with_operations,
};
use walrelay_pg_client::SqlClient;

use super::conflicts::{Conflict, Facts, SlotFacts, Wanted, conflicts};
use super::preconditions::{if_recorded, not_finished, other_shards, refuse_hidden_state};
use super::protocol_error::ProtocolError;
use crate::resharding::read_resharding;

impl Facts {
    /// Reads what is under way on this slot.
    ///
    /// # Errors
    ///
    /// Something cannot be read, or row level security hides it. Nothing may begin then.
    pub(super) async fn of_slot(client: &SqlClient, outbox: &Outbox) -> Result<Self, AdminError> {
        let shards = std::slice::from_ref(outbox);
        let other_shards = other_shards(client, outbox).await?;
        Ok(Self { other_shards, ..Self::of_shards(client, shards).await? })
    }

    /// Reads what is under way on these slots of one outbox. See [`of_slot`](Self::of_slot).
    pub(super) async fn of_shards(
        client: &SqlClient,
        shards: &[Outbox],
    ) -> Result<Self, AdminError> {
        refuse_hidden_state(client).await?;
        let mut facts = Self::default();
        let Some(first) = shards.first() else { return Ok(facts) };
        for Outbox { slot, .. } in shards {
            let operation = if_recorded(read_operation(client, slot).await)?.flatten();
            let anchors = read_anchors(client, slot).await?;
            let anchors = anchors.into_iter().map(|anchor| anchor.name).collect();
            facts.slots.push(SlotFacts { slot: slot.clone(), operation, anchors });
        }
        let change = if_recorded(read_resharding(client, first).await)?.flatten();
        facts.resharding = change.map(|begun| SlotOperation::Resharding(begun.change));
        let slots: Vec<String> = shards.iter().map(|shard| shard.slot.clone()).collect();
        let replays = if_recorded(unfinished_replays(&**client, Some(&slots)).await)?;
        facts.replays = replays.unwrap_or_default();
        facts.system_identifier = read_recorded_system_identifier(client, &first.slot).await?;
        Ok(facts)
    }

    /// Reads what is under way on every slot of the schema. See [`of_slot`](Self::of_slot).
    pub(super) async fn of_schema(client: &SqlClient) -> Result<Self, AdminError> {
        refuse_hidden_state(client).await?;
        let mut facts = Self::default();
        for slot in slots_with_operations(client).await? {
            let operation = read_operation(client, &slot).await?;
            facts.slots.push(SlotFacts { slot, operation, ..SlotFacts::default() });
        }
        facts.replays = unfinished_replays(&**client, None).await?;
        Ok(facts)
    }

    /// Refuses the change if something is in its way.
    ///
    /// # Errors
    ///
    /// The error names what is in the way.
    pub(super) async fn refuse(
        &self,
        client: &SqlClient,
        wanted: Wanted<'_>,
    ) -> Result<(), ProtocolError> {
        Err(match conflicts(wanted, self) {
            None => return Ok(()),
            Some(Conflict::OtherShards { count, wanted }) => {
                AdminError::OtherShard { count, wanted }.into()
            }
            Some(Conflict::Operation { slot, operation }) => {
                not_finished(client, slot, operation).await?.into()
            }
            Some(Conflict::Resharding { slot, change }) => {
                change.unfinished(slot, change.describe(slot)).into()
            }
            Some(Conflict::Replay(replay, why)) => {
                ProtocolError::ReplayInTheWay { replay: Box::new(replay.clone()), why }
            }
            Some(Conflict::Anchors { slot, names }) => {
                ProtocolError::AnchorsInTheWay { slot: slot.to_owned(), names: names.to_vec() }
            }
        })
    }
}

/// Refuses the change of this slot if something is in its way.
///
/// # Errors
///
/// The error names what is in the way.
pub async fn refuse_conflicts(
    client: &SqlClient,
    outbox: &Outbox,
    wanted: Wanted<'_>,
) -> Result<(), ProtocolError> {
    Facts::of_slot(client, outbox).await?.refuse(client, wanted).await
}
