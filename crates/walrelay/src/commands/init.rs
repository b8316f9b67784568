//! `walrelay init`: tables, publication, slot, and the topics if asked for; safe to run again.

use walrelay_postgres::{
    ConnectConfig, Failover, InitOptions, InitPlan, InitReport, LostSlot, OnLost, Settled,
    SqlClient, StoreError, connect_sql, init, read_loss, rows_at_risk,
};
use walrelay_pubsub::Admin;
use walrelay_relay::lifecycle::operation::{self, Outcome};
use walrelay_relay::policy::Kind;
use walrelay_relay::shutdown::Shutdown;

use super::attended::attended;
use super::topics;
use crate::config::{CreateTopics, InitConfig, SlotKind};
use crate::error::Error;
use crate::output::print;

/// Sets up what is missing and prints what is new; or prints the SQL and touches nothing.
///
/// # Errors
///
/// Postgres or Pub/Sub cannot be reached, or refuse. What came before has taken effect, and
/// running it again goes on.
pub async fn execute(config: InitConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let options = InitOptions {
        outbox: config.outbox.clone(),
        row_filter: None,
        failover: failover(config.slot_kind),
        on_lost: config.on_lost,
    };
    let Some(connect) = &config.connect else {
        return print(&InitPlan::new(&options)?.script());
    };
    let client = tokio::select! {
        connected = connect_sql(connect) => connected?,
        () = shutdown.requested() => return Err(Error::Interrupted),
    };
    let work = set_up(&client, &config, &options);
    let done = attended((connect, &client), work, shutdown).await;
    client.close().await;
    done
}

pub(super) fn failover(kind: SlotKind) -> Failover {
    match kind {
        SlotKind::Plain => Failover::No,
        SlotKind::Failover => Failover::Yes,
    }
}

async fn set_up(
    client: &SqlClient,
    config: &InitConfig,
    options: &InitOptions,
) -> Result<(), Error> {
    finish_operation(client, config.connect.as_ref(), &options.outbox.slot).await?;
    if options.on_lost == OnLost::Accept
        && let Some(lost) = read_loss(client, &options.outbox.slot).await?
    {
        print(&told(client, options, &lost).await?)?;
    }
    print(&report(&init(client, options).await?))?;
    let CreateTopics::Yes { named } = &config.create_topics else { return Ok(()) };
    let mut wanted = topics::of_rows(client, &config.router, &config.outbox.tables).await?;
    wanted.extend(named.iter().map(|name| topics::full_name(&config.router.project, name)));
    if wanted.is_empty() {
        return print(
            "no topics: the outbox is empty, so nobody can tell which; name them with \
             --create-topics=NAME,NAME\n",
        );
    }
    let admin = Admin::connect(&config.pubsub.publisher.endpoint).await?;
    for topic in wanted {
        let existed = admin.topic_exists(&topic).await?;
        if !existed {
            admin.create_topic(&topic).await?;
        }
        let verb = if existed { "already there" } else { "created" };
        print(&format!("{verb}: topic {topic}\n"))?;
    }
    Ok(())
}

/// In the middle of what an operator has begun the slot may be gone; a new one would undo it.
async fn finish_operation(
    client: &SqlClient,
    connect: Option<&ConnectConfig>,
    slot: &str,
) -> Result<(), Error> {
    let Some(connect) = connect else { return Ok(()) };
    match operation::finish(client, connect, slot).await {
        Ok(Outcome::Nothing) => Ok(()),
        Ok(Outcome::Finished(done)) => print(&format!("finished: {}\n", done.describe(slot))),
        // The slot is there, and the relay does the rest.
        Ok(Outcome::Pending(_)) => Ok(()),
        Ok(Outcome::Elsewhere(reset)) => {
            let what = reset.describe(slot);
            Err(StoreError::OperationUnfinished { slot: slot.to_owned(), what }.into())
        }
        // The very first time there is no table yet.
        Err(error) if error.kind() == Kind::TableMissing => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What is given up with a lost slot. Printed before anything is done: afterwards it is not known.
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
    let Settled { system_identifier, lsn, xid, .. } = settled;
    text.push_str(&format!(
        "keep this, it is forgotten now: settled_lsn {lsn}, settled_xid {xid}, server {system_identifier}\n"
    ));
    Ok(text)
}

fn report(report: &InitReport) -> String {
    let created = report.created.iter().map(|part| format!("created: {part}\n"));
    let present = report.already_there.iter().map(|part| format!("already there: {part}\n"));
    created.chain(present).collect()
}
