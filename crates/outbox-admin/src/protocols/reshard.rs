//! Changes the number of shards while producers write, without loss or reordering.
//!
//! ```text
//! new slots recorded ──▶ created ──▶ relays release the old ones ──▶ drained up to one position
//!                                                                              │
//!                      old slots and publications dropped ◀── switched ◀───────┘
//! ```
//!
//! The switch is one transaction. Before it the change can be cancelled, and after a failure the
//! old relays continue. After it the new shards own the rows, and their relays may start. A second
//! run continues where an earlier run ended.

use std::time::Duration;

use pgoutput_parser::Lsn;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;
use walrelay_errors::{Chain, Code};
use walrelay_outbox_replay::{
    AdminError, Resharding, existing_slot, read_row_filter, take_operation,
};
use walrelay_outbox_store::{
    Outbox, PublicationWatch, Shard, delete_relay_row, read_recorded_system_identifier,
    take_relay_row,
};
use walrelay_pg_client::{ServerErrorKind, SqlClient, SqlError, quote_identifier};
use walrelay_pg_replication::{Failover, drop_publication, read_server_identity, read_slot};
use walrelay_relay::error::RelayError;
use walrelay_relay::failpoint;
use walrelay_relay::observe::health::Health;
use walrelay_relay::settings::{Settings, Until};
use walrelay_relay::shutdown::Shutdown;

use super::conflicts::{Facts, Wanted};
use super::drain::{connect_publisher, drain, pause, wait_until_free};
use super::operator::{AdminSession, Change, DroppedShard, Operator, Step};
use super::preconditions::refuse_hidden_state;
use super::protocol_error::ProtocolError;
use crate::init::{EarlierRows, InitOptions, InitPlan, SlotCreation};
use crate::lifecycle::preflight_check::{gate, shard_key};
use crate::resharding::{
    ReshardingStep, ShardSlots, begin_resharding, block_shards, choose_switch, read_resharding,
    release_shards, switch_shards,
};
use crate::sharding::read_sharding;

#[derive(Debug)]
pub struct Reshard<'a, O> {
    /// The settings of a relay of the whole outbox.
    pub settings: &'a Settings,
    /// The wanted number of shards.
    pub shards: u32,
    pub operator: &'a O,
    pub stop: &'a Shutdown,
}

#[derive(Debug)]
pub struct Resharded {
    pub end: ReshardEnd,
    /// The switch, if this run made it.
    pub switch: Option<Switch>,
    pub dropped: Vec<DroppedShard>,
    /// The shards that own the rows now, unless the change was cancelled.
    pub shards: Vec<Shard>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReshardEnd {
    /// The number was right already.
    Unchanged,
    Changed,
    /// The change that was begun earlier is cancelled.
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// Rows committed before this position belong to the old shards.
    pub at: Lsn,
    /// Rows of dispatch state that moved to the new shards.
    pub handed_over: u64,
}

/// The outbox before and after the change.
struct ShardChange<'a, O> {
    reshard: &'a Reshard<'a, O>,
    of: Resharding,
    old: Vec<Outbox>,
    new: Vec<Outbox>,
}

impl<'a, O: Operator> ShardChange<'a, O> {
    fn new(reshard: &'a Reshard<'a, O>, of: Resharding) -> Self {
        let outbox = &reshard.settings.relay.outbox;
        Self { reshard, of, old: outbox.shards(of.from), new: outbox.shards(of.to) }
    }

    fn session<'b>(&'b self, client: &'b SqlClient) -> AdminSession<'b, O> {
        let Reshard { settings, operator, stop, .. } = self.reshard;
        AdminSession { client, connect: &settings.connect, operator, stop }
    }
}

impl<O: Operator> Reshard<'_, O> {
    /// Changes the number of shards. Returns `None` after a dry run.
    ///
    /// # Errors
    ///
    /// A precondition fails, or the operator asked to stop. Before the switch the old relays then
    /// continue.
    pub async fn run(&self, client: &mut SqlClient) -> Result<Option<Resharded>, ProtocolError> {
        let outbox = &self.settings.relay.outbox;
        self.lock_shard_count(client).await?;
        refuse_hidden_state(client).await?;
        let sharding = read_sharding(client, outbox).await?;
        let begun = match sharding.of_count.is_empty() {
            true => None,
            false => read_resharding(client, outbox).await?,
        };
        match ReshardingStep::next(&sharding, begun, self.shards)? {
            ReshardingStep::Nothing => Ok(Some(Resharded {
                end: ReshardEnd::Unchanged,
                switch: None,
                dropped: Vec::new(),
                shards: Shard::all(self.shards).collect(),
            })),
            ReshardingStep::Begin(of) | ReshardingStep::GoOn(of) => {
                self.begin_or_continue(client, of).await
            }
            ReshardingStep::CallOff(of) => self.cancel(client, of).await,
            ReshardingStep::CleanUp(of) => {
                let change = ShardChange::new(self, of);
                let old = slots(&change.old);
                let session = change.session(client);
                match session.agree(async || Ok(Change::DropOldShards { old })).await? {
                    true => clean_up(client, &change, None).await.map(Some),
                    false => Ok(None),
                }
            }
        }
    }

    async fn begin_or_continue(
        &self,
        client: &mut SqlClient,
        of: Resharding,
    ) -> Result<Option<Resharded>, ProtocolError> {
        let change = ShardChange::new(self, of);
        if check_preconditions(client, &change).await.is_err() {
            // A slot that is lost meanwhile can be recovered only without this operation on it, and says
            // only then that it is lost. After its recovery, the same command continues.
            release_shards(client, &slots(&change.old)).await?;
            check_preconditions(client, &change).await?;
        }
        let (new, old) = (slots(&change.new), slots(&change.old));
        let session = change.session(client);
        if !session.agree(async || Ok(Change::Reshard { new, old })).await? {
            return Ok(None);
        }
        let switch = Box::pin(switch(client, &change)).await?;
        clean_up(client, &change, Some(switch)).await.map(Some)
    }

    /// Cancels the change, and drops the new slots and publications.
    async fn cancel(
        &self,
        client: &SqlClient,
        of: Resharding,
    ) -> Result<Option<Resharded>, ProtocolError> {
        let change = ShardChange::new(self, of);
        let new = slots(&change.new);
        let session = change.session(client);
        if !session.agree(async || Ok(Change::CancelReshard { new })).await? {
            return Ok(None);
        }
        release_shards(client, &slots(&change.old)).await?;
        failpoint::hit("reshard-released");
        session.report(&Step::ReshardCancelled)?;
        let dropped = remove(client, &change, &change.new).await?;
        let (end, shards) = (ReshardEnd::Cancelled, Vec::new());
        Ok(Some(Resharded { end, switch: None, dropped, shards }))
    }

    /// Locks the change of the shard count until the connection ends.
    async fn lock_shard_count(&self, client: &SqlClient) -> Result<(), ProtocolError> {
        let name = format!("shards of {}", self.settings.relay.outbox.base_slot());
        let until = Instant::now() + SHARD_LOCK_TIMEOUT;
        while !take_operation(client, &name).await? {
            if Instant::now() >= until {
                return Err(ProtocolError::ReshardRunning);
            }
            pause(PAUSE, self.stop).await?;
        }
        Ok(())
    }
}

/// Longest wait for the lock of a killed process, whose end the server notices with a delay.
const SHARD_LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between lock attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Refuses what is in the way of dropping the old slots, a lost slot among them.
async fn check_preconditions<O: Operator>(
    client: &SqlClient,
    change: &ShardChange<'_, O>,
) -> Result<(), ProtocolError> {
    for Outbox { slot, .. } in &change.old {
        existing_slot(client, slot).await?;
    }
    for outbox in change.old.iter().filter(|outbox| outbox.shard.is_whole()) {
        refuse_row_filter(client, outbox).await?;
    }
    let facts = Facts::of_shards(client, &change.old).await?;
    facts.refuse(client, Wanted::ChangeShards).await
}

/// Refuses row filters of the operator. The publications of shards have filters of their own, so rows
/// that are left out today would be published.
async fn refuse_row_filter(client: &SqlClient, outbox: &Outbox) -> Result<(), ProtocolError> {
    for table in &outbox.tables {
        if let Some(filter) = read_row_filter(client, outbox, table).await? {
            let name = quote_identifier(&outbox.publication);
            let all: Vec<String> = outbox.tables.iter().map(|it| format!("ONLY {it}")).collect();
            let all = all.join(", ");
            let summary = format!(
                "publication {name} has the row filter {filter} on {table}, and those of shards replace it (fix: stop the \
                 relay when it has caught up, and remove the filter: ALTER PUBLICATION {name} SET TABLE {all})"
            );
            let code = Code::PublicationUnsuitable;
            return Err(RelayError::Setup { code, summary }.into());
        }
    }
    Ok(())
}

fn slots(outboxes: &[Outbox]) -> Vec<String> {
    outboxes.iter().map(|outbox| outbox.slot.clone()).collect()
}

/// Runs all steps up to the switch, including the switch.
async fn switch<O: Operator>(
    client: &mut SqlClient,
    change: &ShardChange<'_, O>,
) -> Result<Switch, ProtocolError> {
    let (old, new) = (slots(&change.old), slots(&change.new));
    take_rows(client, &old).await?;
    let failover = failover(client, &old).await?;
    let plans = change.new.iter().map(|outbox| plan(change, outbox, failover));
    let plans = plans.collect::<Result<Vec<_>, _>>()?;
    begin_resharding(client, ShardSlots { old: &old, new: &new }, change.of).await?;
    failpoint::hit("reshard-recorded");
    change.session(client).cancellable(create_shards(client, change, &plans)).await?;
    failpoint::hit("reshard-made");
    if !block_shards(client, &old, change.of).await? {
        release_shards(client, &old).await?;
        let what = "something else".to_owned();
        return Err(AdminError::OperationUnfinished { slot: old.join(", "), what }.into());
    }
    failpoint::hit("reshard-held");
    let switched = Box::pin(drain_and_switch(client, change)).await;
    if switched.is_err()
        && let Err(error) = release_shards(client, &old).await
    {
        tracing::warn!(error = %Chain(&error), "relays of the old shards wait until this command is run again");
    }
    switched
}

/// Creates the rows of slots that no relay has used.
async fn take_rows(client: &SqlClient, old: &[String]) -> Result<(), ProtocolError> {
    let server = read_server_identity(client).await?;
    let Some(first) = old.first() else { return Ok(()) };
    let system = read_recorded_system_identifier(client, first).await?;
    for slot in old {
        take_relay_row(client, slot, &system, server.timeline).await?;
    }
    Ok(())
}

/// Drains the old slots and switches. Relays of the old slots wait meanwhile, and continue after a
/// failure.
async fn drain_and_switch<O: Operator>(
    client: &mut SqlClient,
    change: &ShardChange<'_, O>,
) -> Result<Switch, ProtocolError> {
    let at = drain_all(client, change).await?;
    failpoint::hit("reshard-drained");
    // An anchor or a replay may be new since the first check: the waits are long.
    check_preconditions(client, change).await?;
    let (old, new) = (slots(&change.old), slots(&change.new));
    let handed_over = switch_shards(client, ShardSlots { old: &old, new: &new }, at).await?;
    failpoint::hit("reshard-switched");
    change.session(client).report(&Step::ShardsSwitched { at, handed_over })?;
    Ok(Switch { at, handed_over })
}

/// Returns whether the new slots are failover slots, as the old ones are.
async fn failover(client: &SqlClient, old: &[String]) -> Result<Failover, ProtocolError> {
    for slot in old {
        if read_slot(client, slot).await?.is_some_and(|slot| slot.failover == Some(true)) {
            return Ok(Failover::Yes);
        }
    }
    Ok(Failover::No)
}

fn plan<O: Operator>(
    change: &ShardChange<'_, O>,
    outbox: &Outbox,
    failover: Failover,
) -> Result<InitPlan, ProtocolError> {
    let options = InitOptions {
        columns: change.reshard.settings.relay.router.columns.clone(),
        shard_key: shard_key(&change.reshard.settings.relay.router),
        failover,
        making: SlotCreation::RecordedSlot,
        earlier_rows: EarlierRows::Leave,
        ..InitOptions::new(outbox.clone())
    };
    Ok(InitPlan::new(&options)?)
}

/// Creates the publications and slots of the new shards. A slot that an earlier run left
/// incomplete, or that was lost since, is created again. No relay has used it.
async fn create_shards<O: Operator>(
    client: &SqlClient,
    change: &ShardChange<'_, O>,
    plans: &[InitPlan],
) -> Result<(), ProtocolError> {
    for (outbox, plan) in change.new.iter().zip(plans) {
        let slot = outbox.slot.as_str();
        let is_usable = read_slot(client, slot).await?.map(|state| {
            !state.is_lost() && state.active_pid.is_none() && state.confirmed_flush_lsn.is_some()
        });
        if is_usable == Some(false) {
            change.session(client).resumer(slot, &Health::new()).drop_when_free().await?;
        }
        for step in plan.steps() {
            let created = client.batch_execute(&step.sql).await;
            created.map_err(SqlError::sql(format!("set up {}", step.title)))?;
        }
        if is_usable != Some(true) {
            let Outbox { publication, tables, .. } = outbox.clone();
            let publication = PublicationWatch::new(publication, tables);
            publication.begin(client).await?;
            publication.note(client, slot).await?;
        }
        let mut relay = change.reshard.settings.relay.clone();
        relay.outbox = outbox.clone();
        gate(client, &relay).await?;
        failpoint::hit("reshard-made-one");
    }
    Ok(())
}

/// Drains every old slot up to one position. No relay holds a slot when the position is chosen, so
/// the position is after every row that a relay has published.
async fn drain_all<O: Operator>(
    client: &SqlClient,
    change: &ShardChange<'_, O>,
) -> Result<Lsn, ProtocolError> {
    let Reshard { settings, stop, .. } = change.reshard;
    let old = slots(&change.old);
    for slot in &old {
        wait_until_free(client, slot, stop).await?;
    }
    let at = choose_switch(client, &old).await?;
    failpoint::hit("reshard-chosen");
    let publisher = connect_publisher(settings, stop).await?;
    let mut draining = JoinSet::new();
    for outbox in &change.old {
        let mut settings = (*settings).clone();
        settings.relay.outbox = outbox.clone();
        // All drains together use as much memory as one relay may use.
        let share = settings.relay.max_in_flight_bytes / change.old.len();
        settings.relay.max_in_flight_bytes = share.max(IN_FLIGHT_BYTES_MIN);
        let (publisher, stop) = (publisher.clone(), (*stop).clone());
        draining.spawn(async move {
            Box::pin(drain(&settings, publisher, Until::Position(at), &stop)).await
        });
    }
    let mut done = Ok(());
    while let Some(ended) = draining.join_next().await {
        let ended = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        done = done.and(ended);
    }
    done.map(|()| at)
}

/// The smallest byte budget that a relay works with.
const IN_FLIGHT_BYTES_MIN: usize = 8 << 20;

/// Drops the old slots and publications.
async fn clean_up<O: Operator>(
    client: &SqlClient,
    change: &ShardChange<'_, O>,
    switch: Option<Switch>,
) -> Result<Resharded, ProtocolError> {
    let dropped = remove(client, change, &change.old).await?;
    let shards = change.new.iter().map(|outbox| outbox.shard).collect();
    Ok(Resharded { end: ReshardEnd::Changed, switch, dropped, shards })
}

/// Drops each slot and its publication, and deletes the record last. As long as the record exists,
/// relays do not report the slot as lost.
async fn remove<O: Operator>(
    client: &SqlClient,
    change: &ShardChange<'_, O>,
    outboxes: &[Outbox],
) -> Result<Vec<DroppedShard>, ProtocolError> {
    let session = change.session(client);
    let mut removed = Vec::new();
    for Outbox { slot, publication, .. } in outboxes {
        session.resumer(slot, &Health::new()).drop_when_free().await?;
        failpoint::hit("reshard-dropped");
        let dropped = drop_publication(client, publication).await;
        let publication_dropped = match dropped {
            Ok(_) => true,
            Err(error) if error.server_kind() == Some(ServerErrorKind::Privilege) => false,
            Err(error) => return Err(error.into()),
        };
        let (slot, publication) = (slot.clone(), publication.clone());
        let shard = DroppedShard { slot, publication, publication_dropped };
        session.report(&Step::ShardDropped(shard.clone()))?;
        delete_relay_row(client, &shard.slot).await?;
        failpoint::hit("reshard-removed");
        removed.push(shard);
    }
    Ok(removed)
}
