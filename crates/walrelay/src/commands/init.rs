//! `walrelay init`: creates tables, publication, slot, and optionally topics. Safe to run again.

use std::time::Duration;

use tokio::time::timeout;
use walrelay_errors::Chain;
use walrelay_outbox_admin::lifecycle::operation_resumer::OperationResumer;
use walrelay_outbox_admin::lifecycle::outcome::{Outcome, mark_failover};
use walrelay_outbox_admin::lifecycle::preflight_check::shard_key;
use walrelay_outbox_admin::recovery;
use walrelay_outbox_admin::{
    AdminError, InitOptions, InitPlan, InitReport, LostSlot, LostSlotPolicy, SQL_ASCII_FIX,
    SQL_ASCII_RISK, SettledBound, SettledRecord, SlotCreation, SlotOperation, SlotRecovery,
    UpgradePreparation, UpgradeStage, describe_unfinished, finish_recovery, give_up_operation,
    init, read_loss, read_operation, read_slot_holder, read_unchecked_database, release_operation,
    rows_at_risk, take_operation,
};
use walrelay_pg_client::{ConnectConfig, ServerErrorKind, SqlClient, connect_sql, read_columns};
use walrelay_pg_replication::{Failover, read_slot};
use walrelay_pubsub::{Admin, PubsubError};
use walrelay_relay::observe::health::Health;
use walrelay_relay::shutdown::Shutdown;

use super::shared::cancellable::attended;
use super::shared::preconditions::{unfinished_as, unpublished_rows_text, with_slot_holder};
use super::shared::topics::{self, InvalidTopicRows, Routes};
use crate::config::{CreateTopics, ExistingRows, InitConfig, SlotKind};
use crate::error::Error;
use crate::output::print;

/// Creates the missing objects and prints their names. With `--sql` it only prints the SQL.
///
/// # Errors
///
/// Postgres or Pub/Sub cannot be reached, or refuses. Earlier steps have taken effect, and a second
/// run continues after them.
pub async fn execute(config: InitConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let shards = options(&config);
    let Some(connect) = &config.connect else {
        let plans = shards.iter().map(InitPlan::new).collect::<Result<Vec<_>, _>>()?;
        return print(&InitPlan::joined(plans).script());
    };
    let client = tokio::select! {
        connected = connect_sql(connect) => connected?,
        () = shutdown.requested() => return Err(Error::Interrupted),
    };
    let work = set_up(&client, (&config, connect), &shards, shutdown);
    let done = attended((connect, &client), work, shutdown).await;
    let done = with_slot_holder(&client, done).await;
    client.close().await;
    done
}

/// Returns the options of each shard, or of the one unsharded outbox.
fn options(config: &InitConfig) -> Vec<InitOptions> {
    let shard_key = shard_key(&config.router);
    let of_shard = |outbox| InitOptions {
        outbox,
        shard_key: shard_key.clone(),
        failover: failover(config.slot_kind),
        on_lost: config.on_lost,
        making: SlotCreation::Slot,
    };
    config.outbox.shards(config.shards).into_iter().map(of_shard).collect()
}

pub(super) fn failover(kind: SlotKind) -> Failover {
    match kind {
        SlotKind::PlainHarness => Failover::No,
        SlotKind::Failover => Failover::Yes,
    }
}

async fn set_up(
    client: &SqlClient,
    (config, connect): (&InitConfig, &ConnectConfig),
    shards: &[InitOptions],
    stop: &Shutdown,
) -> Result<(), Error> {
    let mut told = InitReport::default();
    for options in shards {
        // All shards share the tables, so the tables are printed only once.
        let made = set_up_slot(client, (config, connect), options, stop).await?;
        print(&report(&made, &told))?;
        told.created.extend(made.created);
        told.already_there.extend(made.already_there);
    }
    if let Some(database) = read_unchecked_database(client).await? {
        print(&format!("warning: database {database} {SQL_ASCII_RISK}\n  fix: {SQL_ASCII_FIX}\n"))?;
    }
    create_topics(client, config).await
}

/// Sets up the slot of one shard, or of the unsharded outbox.
async fn set_up_slot(
    client: &SqlClient,
    (config, connect): (&InitConfig, &ConnectConfig),
    options: &InitOptions,
    stop: &Shutdown,
) -> Result<InitReport, Error> {
    let (slot, health) = (options.outbox.slot.as_str(), &Health::new());
    if let Some(operation) = unfinished(client, slot).await? {
        match (&operation, options.on_lost) {
            (recovery @ SlotOperation::Recovery(_), LostSlotPolicy::Accept) => {
                give_up(client, slot, recovery).await?;
            }
            // Preparing the upgrade dropped the slot. Without a slot, `init` below fails with the
            // right hint.
            (
                SlotOperation::Upgrade(UpgradePreparation {
                    stage: UpgradeStage::Prepared, ..
                }),
                _,
            ) => {}
            (
                SlotOperation::Recovery(_)
                | SlotOperation::Reset(_)
                | SlotOperation::Upgrade(_)
                | SlotOperation::Resharding(_),
                _,
            ) => {
                finish(&OperationResumer { client, connect, slot, health, stop }, &operation)
                    .await?;
            }
        }
    }
    if options.on_lost == LostSlotPolicy::Accept
        && let Some(lost) = read_loss(client, slot).await?
    {
        print(&told(client, options, &lost).await?)?;
    }
    convert(client, connect, options).await?;
    match config.already_there {
        ExistingRows::Left => Ok(init(client, options).await?),
        ExistingRows::Published | ExistingRows::Unpublished { .. } => {
            backfill(&OperationResumer { client, connect, slot, health, stop }, config, options)
                .await
        }
    }
}

/// Longest wait for the conversion. Postgres waits if another session acquires the slot between our
/// check and our statement.
const CONVERTING_MAX: Duration = Duration::from_secs(10);

/// Turns an existing slot into a failover slot if `--failover` was given. [`init`], which runs
/// next, refuses a slot that cannot be used.
async fn convert(
    client: &SqlClient,
    connect: &ConnectConfig,
    options: &InitOptions,
) -> Result<(), Error> {
    let slot = options.outbox.slot.as_str();
    let Some(state) = read_slot(client, slot).await? else { return Ok(()) };
    let is_asked = options.failover == Failover::Yes && state.failover == Some(false);
    if !is_asked || state.is_lost() || state.mismatch(connect.database()).is_some() {
        return Ok(());
    }
    let held = |holder| Error::Store(AdminError::SlotHeld { slot: slot.to_owned(), holder });
    if let Some(pid) = state.active_pid {
        return Err(held(read_slot_holder(client, pid).await?.to_string()));
    }
    let converted = timeout(CONVERTING_MAX, mark_failover(connect, slot)).await;
    converted.map_err(|_| held("a process that has taken it since".to_owned()))??;
    print(&format!("converted: slot {slot} is a failover slot now\n"))
}

/// Creates the topics. A topic name that Pub/Sub rejects does not stop the creation of the others.
async fn create_topics(client: &SqlClient, config: &InitConfig) -> Result<(), Error> {
    let CreateTopics::Yes { named } = &config.create_topics else { return Ok(()) };
    let Routes { topics: mut wanted, nowhere } =
        topics::of_rows(client, &config.router, &config.outbox.tables).await?;
    let full_name = |name: &String| topics::full_name(&config.router.project, name);
    let named: Vec<String> = named.iter().map(full_name).collect();
    wanted.extend(named.iter().cloned());
    if wanted.is_empty() && nowhere.is_none() {
        return print(
            "no topics: the outbox is empty, so nobody can tell which; name them with \
             --create-topics=NAME,NAME\n",
        );
    }
    let admin = Admin::connect(&config.pubsub.publisher.endpoint)?;
    let mut refused = None;
    for topic in wanted {
        match create_topic(&admin, &topic).await {
            Ok(verb) => print(&format!("{verb}: topic {topic}\n"))?,
            Err(error) if error.is_about_the_name() => {
                print(&format!("not created: {}\n", Chain(&error)))?;
                refused = refused.or(named.contains(&topic).then_some(error));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(nowhere) = nowhere {
        print(&format!("no topic: {}\n  fix: {}\n", nowhere.told(), InvalidTopicRows::FIX))?;
    }
    refused.map_or(Ok(()), |error| Err(error.into()))
}

/// Creates a topic unless it exists. Returns the verb to print.
async fn create_topic(admin: &Admin, topic: &str) -> Result<&'static str, PubsubError> {
    if admin.topic_exists(topic).await? {
        return Ok("already there");
    }
    admin.create_topic(topic).await?;
    Ok("created")
}

/// Returns the unfinished operation of the slot. On the first run the table does not exist.
async fn unfinished(client: &SqlClient, slot: &str) -> Result<Option<SlotOperation>, Error> {
    match read_operation(client, slot).await {
        Err(error) if error.server_kind() == Some(ServerErrorKind::TableMissing) => Ok(None),
        read => Ok(read?),
    }
}

/// Finishes an operation that an operator began. In the middle of one the slot may be missing, and
/// a new slot would undo the operation.
async fn finish(finisher: &OperationResumer<'_>, operation: &SlotOperation) -> Result<(), Error> {
    let slot = finisher.slot;
    match finisher.finish().await? {
        // After a cancelled operation, the caller checks the slot again.
        Outcome::Nothing | Outcome::GivenUp(_) => Ok(()),
        Outcome::Finished(done) => print(&format!("finished: {}\n", done.describe(slot))),
        // The slot exists, and the relay does the remaining steps.
        Outcome::Pending(pending) => {
            print(&format!("to be finished by walrelay run: {}\n", pending.describe(slot)))
        }
        Outcome::CalledOff(begun) => print(&format!(
            "called off, because nobody is at it any more: {}\n",
            begun.describe(slot)
        )),
        Outcome::Elsewhere { what } => Err(unfinished_as((slot, operation), what).into()),
    }
}

/// Creates the slot together with a snapshot of the existing rows. If an earlier run began the
/// backfill, this run only does the missing steps.
async fn backfill(
    finisher: &OperationResumer<'_>,
    config: &InitConfig,
    options: &InitOptions,
) -> Result<InitReport, Error> {
    let OperationResumer { client, slot, .. } = finisher;
    let is_begun = matches!(
        unfinished(client, slot).await?,
        Some(SlotOperation::Recovery(SlotRecovery { bound: SettledBound::Nothing, .. }))
    );
    if !is_begun && read_slot(client, slot).await?.is_some() {
        return Err(Error::Unfit {
            what: format!(
                "slot {slot:?} exists already: --backfill publishes what was there when the slot is made"
            ),
            hint: "`walrelay replay start --source table` publishes rows of the table to another topic",
        });
    }
    let all_but_slot = InitOptions { making: SlotCreation::AllButSlot, ..options.clone() };
    let made = init(client, &all_but_slot).await?;
    if !is_begun {
        let column = unpublished_column(client, config, options).await?;
        recovery::begin_first(client, &options.outbox, options.failover, column).await?;
    }
    let Outcome::Pending(pending) = finisher.finish().await? else {
        print("the backfill is finished: a relay has done it\n")?;
        return Ok(made);
    };
    print(&format!("slot {slot}: {}\n", pending.describe(slot)))?;
    print(&unpublished_rows_text(client, &options.outbox, &config.router.columns).await?)?;
    if is_begun {
        print("that backfill was begun before and is not finished: nothing new is begun\n")?;
    }
    print("start the relay: it publishes them first, and then what the slot streams\n")?;
    Ok(made)
}

/// Returns the column that is null in unpublished rows, after checking that each outbox table has
/// it.
async fn unpublished_column(
    client: &SqlClient,
    config: &InitConfig,
    options: &InitOptions,
) -> Result<Option<String>, Error> {
    let ExistingRows::Unpublished { column } = &config.already_there else { return Ok(None) };
    for table in &options.outbox.tables {
        let (_, columns) = read_columns(client, table).await?;
        if !columns.iter().any(|found| found.name == *column) {
            return Err(Error::Unfit {
                what: format!("{table} has no column {column:?}, which --unpublished-column names"),
                hint: "name the column that the old publisher sets when it has published a row",
            });
        }
    }
    Ok(Some(column.clone()))
}

/// Cancels a recovery, because the operator accepted the loss: the relay publishes no more rows
/// from the table. A slot that the recovery created stays, and streams from its start.
async fn give_up(client: &SqlClient, slot: &str, recovery: &SlotOperation) -> Result<(), Error> {
    if !take_operation(client, slot).await? {
        let what = describe_unfinished(client, slot, recovery).await?;
        return Err(AdminError::OperationUnfinished { slot: slot.to_owned(), what }.into());
    }
    let has_slot = read_slot(client, slot).await?.is_some_and(|slot| !slot.is_lost());
    let is_filling = matches!(recovery, SlotOperation::Recovery(begun) if begun.filling.is_some());
    match has_slot && is_filling {
        true => finish_recovery(client, slot).await?,
        false => give_up_operation(client, slot).await?,
    }
    release_operation(client, slot).await?;
    print(&format!("given up: {}\n", recovery.describe(slot)))
}

/// Reports the rows that are lost with the slot. The report must come first, because `init` then
/// overwrites the recorded position.
async fn told(client: &SqlClient, options: &InitOptions, lost: &LostSlot) -> Result<String, Error> {
    let mut text = format!("lost: slot {} {}\n", options.outbox.slot, lost.problem);
    let Some(settled) = &lost.settled else {
        text.push_str(
            "nothing is on record about it: any row in the outbox may not have been published\n",
        );
        return Ok(text);
    };
    for (table, rows) in rows_at_risk(client, &options.outbox.tables, settled).await? {
        text.push_str(&format!("may not have been published: {rows} row(s) of {table}\n"));
    }
    let SettledRecord { system_identifier, lsn, xid, .. } = settled;
    text.push_str(&format!(
        "keep this, it is forgotten now: settled_lsn {lsn}, settled_xid {xid}, server {system_identifier}\n"
    ));
    Ok(text)
}

/// Returns the lines of `made` that `told` does not contain.
fn report(made: &InitReport, told: &InitReport) -> String {
    let is_new =
        |part: &&String| !told.created.contains(part) && !told.already_there.contains(part);
    let created = made.created.iter().filter(is_new).map(|part| format!("created: {part}\n"));
    let present = made.already_there.iter().filter(is_new);
    created.chain(present.map(|part| format!("already there: {part}\n"))).collect()
}
