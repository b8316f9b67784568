//! Rebuilds a read model from the messages that the topic retains.
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

use std::time::{Duration, SystemTime};

use crate::admin::{self, NewGeneration};
use crate::consumer_status::consumer_status;
use crate::event_commands::{ConsumerGeneration, OperatorDecisions};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::Subscription;
use tokio::time::sleep;
use walrelay_inbox::InboxError;
use walrelay_pg_client::{SqlClient, backend_pid, connect_shared};
use walrelay_pubsub::Subscriber;
use walrelay_relay::failpoint;

use crate::rebuild::lock_retry::when_free;
use crate::rebuild::orders::ConsumerRebuild;
use crate::rebuild::rebuild_error::RebuildError;
use crate::rebuild::rebuild_step::{RebuildChange, RebuildNote, RebuildStep, SubscriptionStep};
use crate::rebuild::session::{RebuildOperator, RebuildSession};
use crate::rebuild::subscription_names::successor_name;

/// Time until a seek has taken effect everywhere. A reader that pulls sooner receives new messages
/// before old ones.
const SEEK_DELAY: Duration = Duration::from_secs(60);

/// Tolerance in the comparison with the retention: a start 7 days ago is already a little more than
/// seven days ago.
const ROUNDING: Duration = Duration::from_mins(1);

struct ReplacementSubscription {
    subscriber: Subscriber,
    old: String,
    name: String,
    /// The time from which the subscription delivers messages.
    since: SystemTime,
    /// Whether this command has created the subscription.
    is_new: bool,
}

impl<O: RebuildOperator> RebuildSession<'_, O> {
    /// Rebuilds the read model from the messages that were published since a time.
    ///
    /// # Errors
    ///
    /// A rebuild in another schema is unfinished, the topic does not reach that far, the operator did
    /// not agree, or a stop was requested.
    pub async fn rebuild_from_topic(
        &self,
        client: &mut SqlClient,
        order: &ConsumerRebuild,
        since: SystemTime,
    ) -> Result<(), RebuildError> {
        let found = admin::registered(client, Some(&order.consumer)).await?.pop();
        if let Some(rebuild) = found.and_then(|it| it.rebuild) {
            let consumer = order.consumer.clone();
            return Err(RebuildError::RebuildUnfinished { consumer, rebuild });
        }
        self.report_reach(client, order, since).await?;
        if !self.agree(client, order, since).await? {
            return self.report(RebuildStep::NothingChanged);
        }
        let prepared = Box::pin(self.until_stopped(prepare(client, order, since)));
        let successor = prepared.await?;
        let (name, is_new) = (successor.name.clone(), successor.is_new);
        self.report(SubscriptionStep::SubscriptionReady { name, is_new })?;
        failpoint::hit("rebuild-subscribed");
        let begun = Box::pin(self.begin_sought(client, order, &successor));
        if let Err(error) = begun.await {
            match self.is_moved(&order.consumer, &successor.name).await {
                Ok(true) => self.report(RebuildNote::ReplyLost)?,
                Ok(false) => {
                    take_back(&successor).await;
                    return Err(error);
                }
                // The transaction may have committed, and then the consumer needs the subscription.
                Err(_) => return Err(error),
            }
        }
        failpoint::hit("rebuild-begun");
        self.report_begun(order, since, successor.old).await
    }

    /// Seeks the subscription, waits for the seek, and begins the generation.
    async fn begin_sought(
        &self,
        client: &mut SqlClient,
        order: &ConsumerRebuild,
        successor: &ReplacementSubscription,
    ) -> Result<(), RebuildError> {
        let ReplacementSubscription { subscriber, name, since, .. } = successor;
        let settling = async {
            subscriber.seek(name, *since).await?;
            if !order.endpoint.is_emulator() {
                self.report(SubscriptionStep::SubscriptionSought)?;
                sleep(SEEK_DELAY).await;
            }
            Ok(())
        };
        self.until_stopped(settling).await?;
        failpoint::hit("rebuild-sought");
        let pid = backend_pid(client).await?;
        let reset = order.reset_sql.as_deref().unwrap_or_default();
        let generation = NewGeneration { subscription: name, reset };
        self.cancellable(pid, begin(client, &order.consumer, generation)).await.map(drop)
    }

    async fn report_begun(
        &self,
        order: &ConsumerRebuild,
        since: SystemTime,
        old: String,
    ) -> Result<(), RebuildError> {
        let consumer = order.consumer.clone();
        let now = connect_shared(self.connect).await?;
        let status = consumer_status(&now, &consumer).await;
        now.close().await;
        let status = status?;
        let generation = status.generation;
        self.report(SubscriptionStep::BegunFromTopic { generation, since })?;
        if status.paused {
            self.report(SubscriptionStep::ConsumerPaused { consumer: consumer.clone() })?;
        }
        self.report(SubscriptionStep::InstancesFollow { consumer, old })
    }

    /// Reports how far back the rebuild reaches. Older events are not applied again, and a reset
    /// that empties the read model would silently lose them.
    async fn report_reach(
        &self,
        client: &SqlClient,
        order: &ConsumerRebuild,
        since: SystemTime,
    ) -> Result<(), RebuildError> {
        self.report(RebuildStep::ReachesBackTo(since))?;
        if order.reset_sql.is_none() {
            // Without a reset nothing is emptied.
            return Ok(());
        }
        let place = ConsumerGeneration::find(client, Some(&order.consumer)).await?;
        let earlier = place.earlier(client, since).await?;
        let generation = place.generation();
        self.report(RebuildNote::EventsOutOfReach { earlier, generation })
    }

    /// Reports the edits, discards and rows that the rebuild loses. Asks for consent if events were
    /// edited or discarded, or if readers will miss rows. Returns false in a dry run.
    async fn agree(
        &self,
        client: &SqlClient,
        order: &ConsumerRebuild,
        since: SystemTime,
    ) -> Result<bool, RebuildError> {
        let decisions = self.report_decisions(client, &order.consumer).await?;
        let is_emptied = order.reset_sql.is_some();
        if is_emptied {
            self.report(RebuildStep::TablesEmptied { since })?;
        }
        if self.operator.is_dry_run() {
            return Ok(false);
        }
        let consumer = order.consumer.clone();
        let change = match (decisions, is_emptied) {
            (0, false) => return Ok(true),
            (0, true) => RebuildChange::InPlace { consumer },
            (events, _) => RebuildChange::WithoutDecisions { consumer, events },
        };
        self.may_change(&change).await
    }

    /// Reports the edits and discards that the next generation does not take over. Returns the number
    /// of their events.
    pub(crate) async fn report_decisions(
        &self,
        client: &SqlClient,
        consumer: &str,
    ) -> Result<i64, RebuildError> {
        let place = ConsumerGeneration::find(client, Some(consumer)).await?;
        let decided = place.decided(client).await?;
        if decided != OperatorDecisions::default() {
            let generation = place.generation();
            self.report(RebuildStep::DecisionsForgotten { decided, generation })?;
        }
        Ok(decided.edited + decided.discarded)
    }

    /// Returns whether the transaction has committed. Its reply may have been lost.
    async fn is_moved(&self, consumer: &str, new: &str) -> Result<bool, RebuildError> {
        let client = connect_shared(self.connect).await?;
        let reads = admin::subscription(&client, consumer).await;
        client.close().await;
        Ok(reads? == new)
    }
}

/// Refuses a rebuild that would be incomplete, and creates the subscription.
async fn prepare(
    client: &SqlClient,
    order: &ConsumerRebuild,
    since: SystemTime,
) -> Result<ReplacementSubscription, RebuildError> {
    let ConsumerRebuild { consumer, endpoint, .. } = order;
    let status = consumer_status(client, consumer).await?;
    let generation = i64::from(status.generation);
    let old = status.subscription;
    let subscriber = Subscriber::connect(endpoint)?;
    let found = described(&subscriber, &old).await?;
    refuse_beyond(consumer, since, &found)?;
    if since > SystemTime::now() {
        return Err(RebuildError::TimeInFuture { since });
    }
    let new = order.subscription.clone().unwrap_or_else(|| successor_name(&old, generation));
    if new == old {
        let (consumer, subscription) = (consumer.clone(), old);
        return Err(RebuildError::SubscriptionInUse { consumer, subscription });
    }
    let wanted = successor(&found, &new);
    let is_new = subscriber.create_subscription(wanted.clone()).await?;
    if !is_new {
        refuse_other(subscriber.subscription(&new).await?, &wanted)?;
    }
    Ok(ReplacementSubscription { subscriber, old, name: new, since, is_new })
}

/// Returns the subscription of this name, or an error if it does not exist.
pub(crate) async fn described(
    subscriber: &Subscriber,
    name: &str,
) -> Result<Subscription, RebuildError> {
    let found = subscriber.subscription(name).await?;
    let missing = || InboxError::SubscriptionMissing { subscription: name.to_owned() };
    Ok(found.ok_or_else(missing)?)
}

/// Runs the transaction, and retries while other sessions hold a lock. Returns the generation.
async fn begin(
    client: &mut SqlClient,
    consumer: &str,
    new: NewGeneration<'_>,
) -> Result<i32, RebuildError> {
    when_free(async || Ok(admin::rebuild(client, consumer, new).await?)).await
}

/// Deletes the new subscription, which nobody has pulled from.
async fn take_back(successor: &ReplacementSubscription) {
    let ReplacementSubscription { subscriber, name, is_new, .. } = successor;
    if !is_new {
        return;
    }
    match subscriber.delete_subscription(name).await {
        Ok(()) => tracing::info!(subscription = name, "deleted again"),
        Err(error) => tracing::warn!(%error, "the new subscription stays behind: delete it"),
    }
}

/// Refuses a time before the topic's retention. A new subscription reaches back only as far as its
/// topic retains messages, regardless of the old subscription's retention.
fn refuse_beyond(consumer: &str, since: SystemTime, of: &Subscription) -> Result<(), RebuildError> {
    let (consumer, topic) = (consumer.to_owned(), of.topic.clone());
    let retained = of.topic_message_retention_duration;
    let retained = retained.and_then(|retained| Duration::try_from(retained).ok());
    let Some(retention) = retained.filter(|retained| !retained.is_zero()) else {
        return Err(RebuildError::TopicRetainsNothing { consumer, topic });
    };
    let age = SystemTime::now().duration_since(since).unwrap_or_default();
    match age > retention + ROUNDING {
        true => Err(RebuildError::TopicRetainsLess { consumer, topic, retention }),
        false => Ok(()),
    }
}

/// Refuses an existing subscription unless it delivers the same messages in the same order.
fn refuse_other(found: Option<Subscription>, wanted: &Subscription) -> Result<(), RebuildError> {
    let is_alike = found.is_some_and(|found| {
        found.topic == wanted.topic
            && found.filter == wanted.filter
            && found.enable_message_ordering == wanted.enable_message_ordering
    });
    match is_alike {
        true => Ok(()),
        false => Err(RebuildError::SubscriptionDiffers { subscription: wanted.name.clone() }),
    }
}

/// Returns a copy of the old subscription under another name.
fn successor(old: &Subscription, name: &str) -> Subscription {
    Subscription {
        name: name.to_owned(),
        topic_message_retention_duration: None,
        state: 0,
        ..old.clone()
    }
}
