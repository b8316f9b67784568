//! `walrelay reshard`: changes the number of shards while producers write, without loss or
//! reordering.
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
use walrelay_outbox_admin::{
    AdminError, InitOptions, InitPlan, LostSlotPolicy, Resharding, ReshardingRefusal,
    ReshardingStep, SlotCreation, begin_resharding, block_shards, choose_switch, read_resharding,
    read_sharding, release_shards, switch_shards, take_operation,
};
use walrelay_outbox_store::{
    Outbox, delete_relay_row, read_anchors, read_recorded_system_identifier, read_relay_row,
    take_relay_row,
};
use walrelay_pg_client::SqlError;
use walrelay_pg_replication::{
    Failover, SlotError, drop_publication, read_server_identity, read_slot,
};

use pgoutput_parser::Lsn;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use walrelay_errors::Chain;
use walrelay_pg_client::{ServerErrorKind, SqlClient, connect_sql};
use walrelay_relay::failpoint;
use walrelay_relay::lifecycle::operation_resumer::OperationResumer;
use walrelay_relay::lifecycle::preflight_check::{gate, shard_key};
use walrelay_relay::observe::health::Health;
use walrelay_relay::settings::{Settings, Until};
use walrelay_relay::shutdown::Shutdown;

use super::shared::cancellable::attended;
use super::shared::draining::{drain, publisher, wait_until_free};
use super::shared::preconditions::{refuse_hidden_state, refuse_open_replay};
use crate::config::{ReshardConfig, ReshardMode};
use crate::error::Error;
use crate::output::print;

/// Changes the number of shards, and prints which relays to start.
///
/// # Errors
///
/// A precondition fails, the server or Pub/Sub refuses, or the command was interrupted. Before the
/// switch the old relays then continue.
pub async fn execute(config: ReshardConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let mut client = connect_sql(&config.settings.connect).await?;
    let done = Box::pin(reshard(&mut client, &config, shutdown)).await;
    client.close().await;
    print(&done?)
}

/// The outbox before and after the change.
struct Change<'a> {
    settings: &'a Settings,
    of: Resharding,
    old: Vec<Outbox>,
    new: Vec<Outbox>,
}

impl<'a> Change<'a> {
    fn new(settings: &'a Settings, of: Resharding) -> Self {
        let outbox = &settings.relay.outbox;
        Self { settings, of, old: outbox.shards(of.from), new: outbox.shards(of.to) }
    }
}

async fn reshard(
    client: &mut SqlClient,
    config: &ReshardConfig,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let ReshardConfig { settings, shards, resharded } = config;
    let outbox = &settings.relay.outbox;
    lock_shard_count(client, outbox, shutdown).await?;
    refuse_hidden_state(client).await?;
    let sharding = read_sharding(client, outbox).await?;
    let begun = match sharding.of_count.is_empty() {
        true => None,
        false => read_resharding(client, outbox).await?,
    };
    let step = ReshardingStep::next(&sharding, begun, *shards).map_err(refused)?;
    if *resharded == ReshardMode::Told {
        return told(client, settings, step).await;
    }
    match step {
        ReshardingStep::Nothing => Ok(format!("nothing to do: shards: {shards}\n")),
        ReshardingStep::Begin(of) | ReshardingStep::GoOn(of) => {
            let change = Change::new(settings, of);
            check_preconditions(client, &change).await?;
            let handed_over = Box::pin(switch(client, &change, shutdown)).await?;
            Ok(handed_over + &clean_up(client, &change, shutdown).await?)
        }
        ReshardingStep::CallOff(of) => {
            cancel_change(client, &Change::new(settings, of), shutdown).await
        }
        ReshardingStep::CleanUp(of) => clean_up(client, &Change::new(settings, of), shutdown).await,
    }
}

/// Longest wait for the lock of a killed process, whose end the server notices with a delay.
const SHARD_LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between lock attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Locks the change of the shard count until the connection ends.
async fn lock_shard_count(
    client: &SqlClient,
    outbox: &Outbox,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let name = format!("shards of {}", outbox.base_slot());
    let until = Instant::now() + SHARD_LOCK_TIMEOUT;
    while !take_operation(client, &name).await? {
        if Instant::now() >= until {
            return Err(Error::Unfit {
                what: "another process changes the number of shards".to_owned(),
                hint: "wait until it is done",
            });
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            () = shutdown.requested() => return Err(Error::Interrupted),
        }
    }
    Ok(())
}

fn refused(refusal: ReshardingRefusal) -> Error {
    let hint = match refusal {
        ReshardingRefusal::NotSetUp => {
            "correct --slot, or set it up: `walrelay init`, with --shards where it is to be divided"
        }
        ReshardingRefusal::SeveralNumbers(..) => {
            "walrelay did not make them so: `walrelay check` shows them; remove those that no relay has used"
        }
        ReshardingRefusal::Incomplete { .. } => {
            "`walrelay init` with the number that there is makes what is missing; a slot that was lost is \
             recovered first: `walrelay slot recover`"
        }
        ReshardingRefusal::AnotherBegun(_) => {
            "finish it with the number that it leads to; before the switch the number that there was calls it off"
        }
    };
    Error::Unfit { what: refusal.to_string(), hint }
}

/// Describes the next step without changing anything.
async fn told(
    client: &SqlClient,
    settings: &Settings,
    step: ReshardingStep,
) -> Result<String, Error> {
    let names = |outboxes: &[Outbox]| {
        outboxes.iter().map(|it| it.slot.clone()).collect::<Vec<_>>().join(", ")
    };
    Ok(match step {
        ReshardingStep::Nothing => "nothing to do\n".to_owned(),
        ReshardingStep::Begin(of) | ReshardingStep::GoOn(of) => {
            let change = Change::new(settings, of);
            check_preconditions(client, &change).await?;
            format!(
                "would make, where missing: publications and slots {}\nwould drain and drop: {}\n",
                names(&change.new),
                names(&change.old)
            )
        }
        ReshardingStep::CallOff(of) => {
            format!("would call off: drop {}\n", names(&Change::new(settings, of).new))
        }
        ReshardingStep::CleanUp(of) => {
            format!("switched already; would drop {}\n", names(&Change::new(settings, of).old))
        }
    })
}

/// Refuses a lost slot, an unfinished operation, an unfinished replay, and anchors: dropping the
/// old slots would break each of them.
async fn check_preconditions(client: &SqlClient, change: &Change<'_>) -> Result<(), Error> {
    for Outbox { slot, .. } in &change.old {
        let state = read_slot(client, slot).await?;
        let Some(state) = state else {
            return Err(AdminError::Slot(SlotError::SlotMissing { slot: slot.clone() }).into());
        };
        if state.is_lost() {
            let problem = "is invalidated".to_owned();
            return Err(AdminError::SlotLost { slot: slot.clone(), problem }.into());
        }
        let row = read_relay_row(client, slot).await?;
        if let Some(kind) = row.and_then(|row| row.operation).filter(|kind| kind != "resharding") {
            let (slot, what) = (slot.clone(), format!("a {kind}"));
            return Err(AdminError::OperationUnfinished { slot, what }.into());
        }
    }
    // The replay comes before its anchor, because an open replay prevents the anchor from being
    // dropped.
    refuse_open_replay(client, &slots(&change.old)).await?;
    refuse_anchors(client, change).await
}

/// Refuses while old slots have anchors. Without its slot, an anchor would retain WAL, and no
/// command would list or drop it.
async fn refuse_anchors(client: &SqlClient, change: &Change<'_>) -> Result<(), Error> {
    for Outbox { slot, .. } in &change.old {
        if let Some(anchor) = read_anchors(client, slot).await?.first() {
            return Err(Error::Unfit {
                what: format!(
                    "slot {slot:?} has the anchor {:?}, which would be of no use without it",
                    anchor.name
                ),
                hint: "drop it with `walrelay anchor drop`; a relay with --anchor-keep is stopped first",
            });
        }
    }
    Ok(())
}

fn slots(outboxes: &[Outbox]) -> Vec<String> {
    outboxes.iter().map(|outbox| outbox.slot.clone()).collect()
}

/// Runs all steps up to the switch, including the switch.
async fn switch(
    client: &mut SqlClient,
    change: &Change<'_>,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let (old, new) = (slots(&change.old), slots(&change.new));
    let server = read_server_identity(client).await?;
    let system = read_recorded_system_identifier(client, &old[0]).await?;
    for slot in &old {
        // A slot that no relay has used has no row yet.
        take_relay_row(client, slot, &system, server.timeline).await?;
    }
    let failover = failover(client, &old).await?;
    let plans = change.new.iter().map(|outbox| plan(change, outbox, failover));
    let plans = plans.collect::<Result<Vec<_>, _>>()?;
    begin_resharding(client, (&old, &new), change.of).await?;
    failpoint::hit("reshard-recorded");
    let connect = &change.settings.connect;
    let making = make(client, change, &plans, shutdown);
    attended((connect, client), making, shutdown).await?;
    failpoint::hit("reshard-made");
    if !block_shards(client, &old, change.of).await? {
        release_shards(client, &old).await?;
        let what = "something else".to_owned();
        return Err(AdminError::OperationUnfinished { slot: old.join(", "), what }.into());
    }
    failpoint::hit("reshard-held");
    let switched = Box::pin(drain_and_switch(client, change, shutdown)).await;
    if switched.is_err()
        && let Err(error) = release_shards(client, &old).await
    {
        tracing::warn!(error = %Chain(&error), "relays of the old shards wait until this command is run again");
    }
    switched
}

/// Drains the old slots and switches. Relays of the old slots wait meanwhile, and continue after a
/// failure.
async fn drain_and_switch(
    client: &mut SqlClient,
    change: &Change<'_>,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let at = drain_all(client, change, shutdown).await?;
    failpoint::hit("reshard-drained");
    // An anchor may be new since the first check: an operator or a relay with `--anchor-keep` may
    // have created one during the waits.
    refuse_anchors(client, change).await?;
    let rows = switch_shards(client, (&slots(&change.old), &slots(&change.new)), at).await?;
    failpoint::hit("reshard-switched");
    Ok(format!(
        "switched at {at}: what was committed before went out through the old slots, or is in dispatch state\n\
         handed over: {rows} row(s) of dispatch state\n"
    ))
}

/// Returns whether the new slots are failover slots, as the old ones are.
async fn failover(client: &SqlClient, old: &[String]) -> Result<Failover, Error> {
    for slot in old {
        if read_slot(client, slot).await?.is_some_and(|slot| slot.failover == Some(true)) {
            return Ok(Failover::Yes);
        }
    }
    Ok(Failover::No)
}

fn plan(change: &Change<'_>, outbox: &Outbox, failover: Failover) -> Result<InitPlan, Error> {
    let options = InitOptions {
        outbox: outbox.clone(),
        shard_key: shard_key(&change.settings.relay.router),
        failover,
        // The slots are recorded before they exist, so their absence is no loss.
        on_lost: LostSlotPolicy::Accept,
        making: SlotCreation::Slot,
    };
    Ok(InitPlan::new(&options)?)
}

/// Creates the publications and slots of the new shards. A slot that an earlier run left
/// incomplete, or that was lost since, is created again. No relay has used it.
async fn make(
    client: &SqlClient,
    change: &Change<'_>,
    plans: &[InitPlan],
    stop: &Shutdown,
) -> Result<(), Error> {
    let connect = &change.settings.connect;
    for (outbox, plan) in change.new.iter().zip(plans) {
        let slot = outbox.slot.as_str();
        let is_usable = read_slot(client, slot).await?.is_none_or(|state| {
            !state.is_lost() && state.active_pid.is_none() && state.confirmed_flush_lsn.is_some()
        });
        if !is_usable {
            let health = &Health::new();
            OperationResumer { client, connect, slot, health, stop }.drop_when_free().await?;
        }
        for step in plan.steps() {
            let failed =
                |source| SqlError::Sql { action: format!("set up {}", step.title), source };
            client.batch_execute(&step.sql).await.map_err(failed)?;
        }
        let mut relay = change.settings.relay.clone();
        relay.outbox = outbox.clone();
        gate(client, &relay).await?;
        failpoint::hit("reshard-made-one");
    }
    Ok(())
}

/// Drains every old slot up to one position. No relay holds a slot when the position is chosen, so
/// the position is after every row that a relay has published.
async fn drain_all(
    client: &SqlClient,
    change: &Change<'_>,
    shutdown: &Shutdown,
) -> Result<Lsn, Error> {
    let old = slots(&change.old);
    for slot in &old {
        wait_until_free(client, slot, shutdown).await?;
    }
    let at = choose_switch(client, &old).await?;
    failpoint::hit("reshard-chosen");
    let publisher = publisher(change.settings, shutdown).await?;
    let mut draining = JoinSet::new();
    for outbox in &change.old {
        let mut settings = change.settings.clone();
        settings.relay.outbox = outbox.clone();
        // All drains together use as much memory as one relay may use.
        let share = settings.relay.max_in_flight_bytes / change.old.len();
        settings.relay.max_in_flight_bytes = share.max(IN_FLIGHT_BYTES_MIN);
        let (publisher, stop) = (publisher.clone(), shutdown.clone());
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
async fn clean_up(
    client: &SqlClient,
    change: &Change<'_>,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    let mut text = remove(client, change, &change.old, shutdown).await?;
    let runs: Vec<String> = match change.new.as_slice() {
        [_] => vec!["walrelay run".to_owned()],
        all => all.iter().map(|it| format!("walrelay run --shard {}", it.shard)).collect(),
    };
    text.push_str(&format!("next: an instance each of: {}\n", runs.join(", ")));
    Ok(text)
}

/// Cancels the change, and drops the new slots and publications.
async fn cancel_change(
    client: &SqlClient,
    change: &Change<'_>,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    release_shards(client, &slots(&change.old)).await?;
    failpoint::hit("reshard-released");
    let text = remove(client, change, &change.new, shutdown).await?;
    Ok(format!("called off: relays of the old shards go on\n{text}"))
}

/// Drops each slot and its publication, and deletes the record last. As long as the record exists,
/// relays do not report the slot as lost.
async fn remove(
    client: &SqlClient,
    change: &Change<'_>,
    outboxes: &[Outbox],
    stop: &Shutdown,
) -> Result<String, Error> {
    let mut text = String::new();
    let connect = &change.settings.connect;
    for Outbox { slot, publication, .. } in outboxes {
        let health = &Health::new();
        OperationResumer { client, connect, slot, health, stop }.drop_when_free().await?;
        failpoint::hit("reshard-dropped");
        let dropped = drop_publication(client, publication).await;
        let is_left = dropped
            .as_ref()
            .is_err_and(|error| error.server_kind() == Some(ServerErrorKind::Privilege));
        text.push_str(&match is_left {
            true => format!(
                "dropped: slot {slot}; left to its owner: publication {publication}, which nothing needs\n"
            ),
            false => {
                dropped?;
                format!("dropped: slot {slot} and publication {publication}\n")
            }
        });
        delete_relay_row(client, slot).await?;
        failpoint::hit("reshard-removed");
    }
    Ok(text)
}
