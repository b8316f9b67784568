//! `walrelay consumer rebuild`: rebuilds a read model from the messages that the topic retains.
//!
//! Seeking the consumer's current subscription would rebuild nothing, because the inbox skips the
//! copies. Also, an acknowledgement that is in flight during a seek drops its message from the
//! redelivered ones. Hence a rebuild uses a new generation of the inbox, and a new subscription
//! that is sought before anybody pulls from it (C9).
//!
//! ```text
//! new subscription ──▶ sought, a minute ──▶ reset, generation and subscription in one transaction
//! ```
//!
//! Until that transaction commits the consumer continues as before, and a failure leaves the
//! database unchanged. After the commit nothing is left to do.

pub(super) mod reset_key;

pub(super) mod key_rebuild;
pub(super) mod outbox_row_check;
pub(super) mod rebuild_from_outbox;
pub(super) mod rebuild_into;
pub(super) mod rebuild_reach;

use std::time::{Duration, SystemTime};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::Subscription;
use tokio::time::sleep;
use walrelay_inbox::operator::admin::{self, Filling, NewGeneration};
use walrelay_inbox::operator::consumer_status::consumer_status;
use walrelay_inbox::operator::event_commands::{ConsumerGeneration, OperatorDecisions};
use walrelay_pg_client::{ConnectConfig, SqlClient, backend_pid, connect_sql};
use walrelay_pubsub::Subscriber;
use walrelay_relay::failpoint;
use walrelay_relay::observe::report::rfc3339;
use walrelay_relay::shutdown::Shutdown;

use super::dispatch::edit::read;
use super::shared::cancellable::{run_cancellable_in, run_until_shutdown};
use super::shared::consent::agreed;
use crate::config::{ChangeMode, Consent, Rebuild};
use crate::error::Error;
use crate::options::units::show_duration;
use crate::output::print;

/// Time until a seek has taken effect everywhere. A reader that pulls sooner receives new messages
/// before old ones.
const SEEK_DELAY: Duration = Duration::from_secs(60);

/// Tolerance in the comparison with the retention: `--from-time 7d` is already a little more than
/// seven days ago.
const ROUNDING: Duration = Duration::from_mins(1);

/// Pause between lock attempts, so that sessions queued behind ours can proceed.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Rebuilds the read model, and prints each step.
pub(super) async fn rebuild(
    (connect, client): (&ConnectConfig, &mut SqlClient),
    (order, since): (&Rebuild, SystemTime),
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let reset = reset(order)?;
    rebuild_reach::tell(client, (order, since)).await?;
    if !agree(client, order, at_risk(order, since), shutdown).await? {
        return print("nothing was changed\n");
    }
    let prepared = Box::pin(run_until_shutdown(prepare(client, (order, since)), shutdown));
    let (subscriber, successor) = prepared.await?;
    let ReplacementSubscription { old, name: new, is_new } = &successor;
    print(&format!("{}: subscription {new}\n", if *is_new { "created" } else { "already there" }))?;
    failpoint::hit("rebuild-subscribed");
    let begun = async {
        run_until_shutdown(settle(&subscriber, new, (order, since)), shutdown).await?;
        failpoint::hit("rebuild-sought");
        let pid = backend_pid(client).await?;
        let generation =
            NewGeneration { subscription: new, reset: &reset, filling: Filling::Nothing };
        run_cancellable_in((connect, pid), begin(client, order, generation), shutdown)
            .await
            .map(drop)
    };
    if let Err(error) = begun.await {
        match is_moved(connect, &order.name, new).await {
            Ok(true) => tracing::warn!("it was done all the same: the answer was lost"),
            Ok(false) => {
                take_back(&subscriber, &successor).await;
                return Err(error);
            }
            // The transaction may have committed, and then the consumer needs the subscription.
            Err(_) => return Err(error),
        }
    }
    failpoint::hit("rebuild-begun");
    let now = connect_sql(connect).await?;
    let status = consumer_status(&now, &order.name).await;
    now.close().await;
    let status = status.map_err(Error::Inbox)?;
    print(&format!("begun: generation {}, from {}\n", status.generation, rfc3339(since)))?;
    if status.paused {
        let name = &order.name;
        print(&format!("it was paused before and stays so: walrelay consumer resume {name}\n"))?;
    }
    print(&format!(
        "running instances follow within seconds, but for those that were given a --subscription: start them \
         anew. Then nobody reads {old} any more: delete it\n\
         what fails this time waits or is dead again: `walrelay consumer status {}` counts it\n",
        order.name
    ))
}

/// Describes the rows that readers of the tables miss until the new subscription is applied.
fn at_risk(order: &Rebuild, since: SystemTime) -> Option<String> {
    order.reset_sql.as_ref().map(|_| {
        format!(
            "--reset-sql empties the tables first: until the events since {} are applied again, readers find a part, and \
             older events are gone from them",
            rfc3339(since)
        )
    })
}

/// A subscription that replaces another one.
struct ReplacementSubscription {
    old: String,
    name: String,
    /// Whether this command has created the subscription.
    is_new: bool,
}

/// Refuses a rebuild that would be incomplete, and creates the subscription.
async fn prepare(
    client: &SqlClient,
    (order, since): (&Rebuild, SystemTime),
) -> Result<(Subscriber, ReplacementSubscription), Error> {
    let Rebuild { name, endpoint, .. } = order;
    let status = consumer_status(client, name).await.map_err(Error::Inbox)?;
    let generation = i64::from(status.generation);
    let reads = admin::subscription(client, name).await.map_err(Error::Inbox)?;
    // An unfinished refill reads a subscription of its own, so its suffix is removed.
    let old = usual(&reads, generation).to_owned();
    let subscriber = Subscriber::connect(endpoint)?;
    let found = described(&subscriber, &old).await?;
    refuse_beyond(since, &found)?;
    refuse_future(since)?;
    let new = order.subscription.clone().unwrap_or_else(|| successor_name(&old, generation));
    if new == old {
        return Err(Error::Unfit {
            what: format!("consumer {name:?} reads {old} already"),
            hint: "name another --subscription, or none: a rebuild needs one that nobody has pulled from",
        });
    }
    let wanted = successor(&found, &new);
    let is_new = subscriber.create_subscription(wanted.clone()).await?;
    if !is_new {
        refuse_other(subscriber.subscription(&new).await?, &wanted)?;
    }
    Ok((subscriber, ReplacementSubscription { old, name: new, is_new }))
}

/// Returns the subscription of this name, or an error if it does not exist.
pub(super) async fn described(subscriber: &Subscriber, name: &str) -> Result<Subscription, Error> {
    subscriber.subscription(name).await?.ok_or_else(|| {
        Error::Inbox(walrelay_inbox::InboxError::SubscriptionMissing {
            subscription: name.to_owned(),
        })
    })
}

/// Returns the next name: `billing`, `billing-g2`, `billing-g3`. The suffix of an earlier rebuild
/// is replaced.
fn successor_name(old: &str, generation: i64) -> String {
    format!("{}-g{}", base(old, generation), generation + 1)
}

/// Removes the suffix of an earlier rebuild. The suffix may be older than the current generation,
/// because refills keep the name.
fn base(name: &str, generation: i64) -> &str {
    match name.rsplit_once("-g").map(|(base, number)| (base, number.parse::<i64>())) {
        Some((base, Ok(number))) if (2..=generation).contains(&number) => base,
        Some(_) | None => name,
    }
}

/// Returns the subscription that the consumer reads outside a refill, by removing the suffix of an
/// unfinished refill.
pub(super) fn usual(reads: &str, generation: i64) -> &str {
    reads.strip_suffix(&format!("-refill-g{generation}")).unwrap_or(reads)
}

/// Returns whether rebuilds derived the name `reads` from the subscription of `consumer init`.
pub(super) fn succeeds(reads: &str, (first, generation): (&str, i64)) -> bool {
    reads != first && base(usual(reads, generation), generation) == base(first, generation)
}

/// Prints the edits, discards and rows that the rebuild loses. Asks for consent if events were
/// edited or discarded, or if readers will miss rows. Returns false in a dry run.
pub(super) async fn agree(
    client: &SqlClient,
    order: &Rebuild,
    at_risk: Option<String>,
    shutdown: &Shutdown,
) -> Result<bool, Error> {
    let place = ConsumerGeneration::find(client, Some(&order.name)).await?;
    let decided = place.decided(client).await?;
    if let Some(text) = forgotten(decided, place.generation()) {
        print(&text)?;
    }
    if let Some(text) = &at_risk {
        print(&format!("{text}\n"))?;
    }
    let consent = match order.mode {
        ChangeMode::DryRun => return Ok(false),
        ChangeMode::Ask => Consent::Asked,
        ChangeMode::Agreed => Consent::Given,
    };
    let OperatorDecisions { edited, discarded, .. } = decided;
    let (what, question, hint) = match (edited + discarded, at_risk) {
        (0, None) => return Ok(true),
        (0, Some(text)) => (
            format!("nobody can be asked whether to rebuild in place: {text}"),
            "rebuild in place?",
            "add --yes to rebuild in place, or fill beside the tables with --into SCHEMA and --handler",
        ),
        (count, _) => (
            format!(
                "nobody can be asked whether to rebuild without what was decided about {count} event(s)"
            ),
            "rebuild without them?",
            "`walrelay inbox list --status discarded` lists those that were given up; add --yes to rebuild all the same",
        ),
    };
    let alone = || Err(Error::Unfit { what, hint });
    agreed((question, consent), alone, shutdown).await.map(|()| true)
}

/// Describes the events of a generation whose state the next generation does not take over.
fn forgotten(decided: OperatorDecisions, generation: i32) -> Option<String> {
    let OperatorDecisions { edited, discarded, unfinished } = decided;
    if decided == OperatorDecisions::default() {
        return None;
    }
    let mut parts = Vec::new();
    if edited + discarded > 0 {
        parts.push(format!(
            "{edited} edited and {discarded} discarded event(s), which come again as they were published, with \
             nothing of that carried over"
        ));
    }
    if unfinished > 0 {
        parts.push(format!("{unfinished} event(s) that wait or are dead, which come again too"));
    }
    Some(format!("in generation {generation}: {}\n", parts.join("; ")))
}

/// Seeks the subscription, and waits until the seek is in effect.
async fn settle(
    subscriber: &Subscriber,
    name: &str,
    (order, since): (&Rebuild, SystemTime),
) -> Result<(), Error> {
    subscriber.seek(name, since).await?;
    if !order.endpoint.is_emulator() {
        print(
            "sought; waiting a minute until that is in effect everywhere, the consumer goes on meanwhile\n",
        )?;
        sleep(SEEK_DELAY).await;
    }
    Ok(())
}

/// Runs the transaction, and retries while other sessions hold a lock. Returns the generation.
pub(super) async fn begin(
    client: &mut SqlClient,
    order: &Rebuild,
    new: NewGeneration<'_>,
) -> Result<i32, Error> {
    loop {
        match admin::rebuild(client, &order.name, new).await {
            Ok(generation) => return Ok(generation),
            Err(error) if error.is_in_the_way() => {
                tracing::debug!(%error, "trying again");
                sleep(AGAIN_AFTER).await;
            }
            Err(error) => return Err(Error::Inbox(error)),
        }
    }
}

/// Returns whether the transaction has committed. Its reply may have been lost.
pub(super) async fn is_moved(
    connect: &ConnectConfig,
    name: &str,
    new: &str,
) -> Result<bool, Error> {
    let client = connect_sql(connect).await?;
    let reads = admin::subscription(&client, name).await;
    client.close().await;
    Ok(reads.map_err(Error::Inbox)? == new)
}

/// Deletes the new subscription, which nobody has pulled from.
async fn take_back(
    subscriber: &Subscriber,
    ReplacementSubscription { name, is_new, .. }: &ReplacementSubscription,
) {
    if !is_new {
        return;
    }
    match subscriber.delete_subscription(name).await {
        Ok(()) => tracing::info!(subscription = name, "deleted again"),
        Err(error) => tracing::warn!(%error, "the new subscription stays behind: delete it"),
    }
}

pub(super) fn reset(order: &Rebuild) -> Result<String, Error> {
    let Some(path) = &order.reset_sql else {
        tracing::warn!(
            "without --reset-sql the handler sees every event again on top of what is there"
        );
        return Ok(String::new());
    };
    String::from_utf8(read(path)?).map_err(|_| Error::Unfit {
        what: format!("{} is not text", path.display()),
        hint: "--reset-sql is a file of SQL",
    })
}

/// Refuses a time before the topic's retention. A new subscription reaches back only as far as its
/// topic retains messages, regardless of the old subscription's retention.
fn refuse_beyond(since: SystemTime, of: &Subscription) -> Result<(), Error> {
    let kept = of.topic_message_retention_duration.and_then(|kept| Duration::try_from(kept).ok());
    let Some(kept) = kept.filter(|kept| !kept.is_zero()) else {
        return Err(Error::Unfit {
            what: format!("topic {} keeps no messages for new subscriptions", of.topic),
            hint: "now rebuild from the outbox with `walrelay consumer rebuild NAME --from-outbox TOPIC`; for the \
                   next time, set the topic's message retention",
        });
    };
    let age = SystemTime::now().duration_since(since).unwrap_or_default();
    if age > kept + ROUNDING {
        return Err(Error::Unfit {
            what: format!("topic {} keeps messages for {}", of.topic, show_duration(kept)),
            hint: "name a later --from-time, or rebuild from the outbox with `walrelay consumer rebuild NAME \
                   --from-outbox TOPIC`",
        });
    }
    Ok(())
}

/// Refuses a time in the future, because a seek would also skip messages published until then.
fn refuse_future(since: SystemTime) -> Result<(), Error> {
    match since > SystemTime::now() {
        false => Ok(()),
        true => Err(Error::Unfit {
            what: format!("--from-time {} is in the future", rfc3339(since)),
            hint: "name a time from which on everything is applied again",
        }),
    }
}

/// Refuses an existing subscription unless it delivers the same messages in the same order.
fn refuse_other(found: Option<Subscription>, wanted: &Subscription) -> Result<(), Error> {
    let is_alike = found.is_some_and(|found| {
        found.topic == wanted.topic
            && found.filter == wanted.filter
            && found.enable_message_ordering == wanted.enable_message_ordering
    });
    match is_alike {
        true => Ok(()),
        false => Err(Error::Unfit {
            what: format!(
                "subscription {} exists, and its topic, filter or ordering is another one",
                wanted.name
            ),
            hint: "leave --subscription out, or name one that does not exist",
        }),
    }
}

/// Returns a copy of the old subscription under another name.
pub(super) fn successor(old: &Subscription, name: &str) -> Subscription {
    Subscription {
        name: name.to_owned(),
        topic_message_retention_duration: None,
        state: 0,
        ..old.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_subscriptions_do_not_grow_with_rebuilds() {
        assert_eq!(successor_name("billing", 1), "billing-g2");
        assert_eq!(successor_name("billing-g2", 2), "billing-g3");
        assert_eq!(successor_name("billing-g9", 9), "billing-g10");
        // Refills began the generations in between.
        assert_eq!(successor_name("billing-g2", 7), "billing-g8");
        assert_eq!(successor_name(usual("billing-g2-refill-g7", 7), 7), "billing-g8");
        // The suffix belongs to the user's own name.
        assert_eq!(successor_name("billing-g2", 1), "billing-g2-g2");
    }

    #[test]
    fn a_consumer_is_known_again_by_the_subscription_it_was_set_up_with() {
        for (reads, first, generation) in [
            ("billing-g2", "billing", 2),
            ("billing-g3", "billing-g2", 3),
            ("billing-refill-g2", "billing", 2),
            ("billing-g2-refill-g3", "billing", 3),
        ] {
            assert!(succeeds(reads, (first, generation)), "{reads} after {first}");
        }
        for (reads, first, generation) in
            [("billing", "billing", 2), ("ledger", "billing", 2), ("billing-g2", "billing", 1)]
        {
            assert!(!succeeds(reads, (first, generation)), "{reads} after {first}");
        }
    }

    #[test]
    fn what_was_decided_is_counted_before_it_is_forgotten() {
        assert_eq!(forgotten(OperatorDecisions::default(), 1), None);
        let text = forgotten(OperatorDecisions { edited: 2, discarded: 1, unfinished: 3 }, 4)
            .expect("a text");
        assert!(text.starts_with("in generation 4: 2 edited and 1 discarded event(s)"), "{text}");
        let waiting =
            forgotten(OperatorDecisions { unfinished: 3, ..OperatorDecisions::default() }, 1)
                .expect("a text");
        assert_eq!(
            waiting,
            "in generation 1: 3 event(s) that wait or are dead, which come again too\n"
        );
    }
}
