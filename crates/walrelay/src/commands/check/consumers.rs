//! Findings about the consumers of the published events. A consumer cannot keep `run` from working,
//! so these findings are at most warnings.

use std::collections::BTreeMap;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::Subscription;
use tokio::time::timeout;
use walrelay_errors::{Chain, Code, Coded};
use walrelay_inbox::{
    InboxError, SubscriptionWarning, UnfinishedRebuild, redelivery_window_with_dead_letters,
    refuse_other_encoding, unlogged_inbox_tables,
};
use walrelay_inbox_admin::admin::{RegisteredConsumer, registered};
use walrelay_outbox_admin::Finding;
use walrelay_pg_client::{SqlClient, connect_shared};
use walrelay_pubsub::{DELETED_TOPIC, Endpoint, Subscriber};

use super::super::shared::answer_timeout::ANSWER_TIMEOUT;
use crate::config::InboxPlace;
use crate::error::explain;
use crate::error::fixes::{create_subscription, replace_orphan};
use crate::options::units::show_duration;

/// The registered consumers, and findings about databases that cannot be read.
#[derive(Debug, Default)]
pub(super) struct Consumers {
    registered: Vec<RegisteredConsumer>,
    /// Consumers that are not checked, and may read the same subscriptions.
    unchecked: Vec<RegisteredConsumer>,
    findings: Vec<Finding>,
}

impl Consumers {
    pub(super) async fn in_outbox_database(outbox: &SqlClient) -> Self {
        let mut found = Self::default();
        found.add("consumers", registered(outbox, None).await);
        found.findings.extend(unlogged("consumers", outbox).await);
        if !found.registered.is_empty() {
            found.findings.extend(other_encoding("consumers", outbox).await);
        }
        found
    }

    /// Replaces the consumers of the outbox's database by those of other databases.
    pub(super) async fn replaced_by(self, places: &[InboxPlace]) -> Self {
        let mut found = Self { unchecked: self.registered, ..Self::default() };
        for InboxPlace { consumer, connect } in places {
            let connect = connect.clone().with_patience(ANSWER_TIMEOUT);
            let answer = match connect_shared(&connect).await {
                Ok(client) => {
                    let answer = registered(&client, Some(consumer)).await;
                    let subject = format!("consumer {consumer}");
                    found.findings.extend(unlogged(&subject, &client).await);
                    found.findings.extend(other_encoding(&subject, &client).await);
                    client.close().await;
                    answer
                }
                Err(error) => Err(InboxError::Connect(error)),
            };
            let answer = answer.and_then(|these| match these.is_empty() {
                true => Err(InboxError::Unregistered { consumer: consumer.clone() }),
                false => Ok(these),
            });
            found.add(&format!("consumer {consumer}"), answer);
        }
        found
    }

    fn add(&mut self, subject: &str, answer: Result<Vec<RegisteredConsumer>, InboxError>) {
        match answer {
            Ok(registered) => self.registered.extend(registered),
            Err(error) => self.findings.push(
                Finding::warning(
                    Code::ConsumerUnchecked,
                    subject,
                    format!("cannot be checked: {}", Chain(&error)),
                )
                .fix(explain::fix(error.code())),
            ),
        }
    }

    pub(super) async fn findings(self, endpoint: &Endpoint) -> Vec<Finding> {
        let Self { registered, unchecked, mut findings } = self;
        if registered.is_empty() {
            return findings;
        }
        // If Pub/Sub is unreachable, another finding already reports it.
        let Ok(subscriber) = Subscriber::connect(endpoint) else { return findings };
        for it in &registered {
            findings.extend(unfinished(it));
            let answer = timeout(ANSWER_TIMEOUT, subscriber.subscription(&it.subscription)).await;
            match answer {
                Ok(Ok(None)) => findings.push(missing(it)),
                Ok(Ok(Some(subscription))) => {
                    let warnings = SubscriptionWarning::read(&subscriber, &subscription).await;
                    let kept =
                        redelivery_window_with_dead_letters(&subscriber, &subscription).await;
                    let others = other_readers(it, registered.iter().chain(&unchecked));
                    findings.extend(about((it, &others), &subscription, warnings, kept));
                }
                Ok(Err(error)) => {
                    let message = format!("its subscription cannot be checked: {}", Chain(&error));
                    findings.push(
                        warning(Code::ConsumerUnchecked, it, &message)
                            .fix("grant the account roles/pubsub.viewer"),
                    );
                }
                Err(_) => return findings,
            }
        }
        findings
    }
}

/// Returns a finding if a crash of the server would empty tables of the inbox. If the catalog cannot
/// be read, other findings report that.
async fn unlogged(subject: &str, client: &SqlClient) -> Option<Finding> {
    let tables = unlogged_inbox_tables(client).await.ok().filter(|tables| !tables.is_empty())?;
    let error = InboxError::Unlogged { tables };
    let finding = Finding::warning(error.code(), subject, error.to_string());
    Some(finding.fix(error.fix().unwrap_or_default()))
}

/// Returns a finding if the database cannot store every event. If the encoding cannot be read, other
/// findings report that.
async fn other_encoding(subject: &str, client: &SqlClient) -> Option<Finding> {
    let error = refuse_other_encoding(client).await.err()?;
    matches!(error, InboxError::Encoding { .. }).then(|| {
        let finding = Finding::warning(error.code(), subject, error.to_string());
        finding.fix(error.fix().unwrap_or_default())
    })
}

/// Returns a finding if a rebuild of the consumer is unfinished.
fn unfinished(consumer: &RegisteredConsumer) -> Option<Finding> {
    let rebuild = consumer.rebuild.as_ref()?;
    let finding = warning(Code::RebuildUnfinished, consumer, &rebuild.state());
    Some(finding.fix(UnfinishedRebuild::NEXT_STEP))
}

/// Returns the finding that the consumer's subscription does not exist.
fn missing(consumer: &RegisteredConsumer) -> Finding {
    let RegisteredConsumer { consumer: name, subscription, .. } = consumer;
    let fix = create_subscription(name, subscription);
    let message = format!("{subscription} does not exist");
    warning(Code::SubscriptionNotFound, consumer, &message).fix(fix)
}

/// Returns the other consumers that read the same subscription. The command may have been given one
/// consumer twice.
fn other_readers<'a>(
    consumer: &RegisteredConsumer,
    all: impl Iterator<Item = &'a RegisteredConsumer>,
) -> Vec<&'a RegisteredConsumer> {
    let is_other = |it: &&RegisteredConsumer| {
        it.subscription == consumer.subscription && it.row != consumer.row
    };
    let others: BTreeMap<&str, _> = all.filter(is_other).map(|it| (&*it.row, it)).collect();
    others.into_values().collect()
}

/// Returns findings about one consumer and its subscription, which other consumers may also read, and
/// whose messages Pub/Sub may deliver again for the duration `kept`.
fn about(
    (consumer, others): (&RegisteredConsumer, &[&RegisteredConsumer]),
    subscription: &Subscription,
    warnings: Vec<SubscriptionWarning>,
    kept: Duration,
) -> Vec<Finding> {
    let name = &consumer.subscription;
    if subscription.topic == DELETED_TOPIC {
        let message = format!(
            "the topic of {name} was deleted: nothing arrives, even if a topic of the same name exists again"
        );
        let fix = replace_orphan(&consumer.consumer, name);
        return vec![warning(Code::TopicNotFound, consumer, &message).fix(fix)];
    }
    let mut findings: Vec<Finding> = warnings
        .into_iter()
        .map(|remark| {
            let message = format!("{name} {}", remark.told());
            warning(Code::SubscriptionUnsuitable, consumer, &message).fix(fix_of(remark, consumer))
        })
        .collect();
    if !others.is_empty() {
        let others: Vec<&str> = others.iter().map(|other| other.consumer.as_str()).collect();
        let message = format!(
            "another consumer ({}) also reads {name}: each message goes to one of them only",
            others.join(", ")
        );
        let fix =
            "give each consumer a subscription of its own, then run `walrelay audit` for each";
        findings.push(warning(Code::SubscriptionUnsuitable, consumer, &message).fix(fix));
    }
    if let Some(ago) = consumer.pruned_ago.filter(|ago| *ago < kept) {
        let message = format!(
            "events that it finished until {} ago were deleted from its inbox, and Pub/Sub may deliver messages of {name} again for {}, \
             dead letters and snapshots included: an older message that is redelivered is applied again",
            show_duration(rounded(ago)),
            show_duration(kept)
        );
        let fix = "do not seek it back there, or give subscription and topic a shorter retention";
        findings.push(warning(Code::InboxPrunedTooFar, consumer, &message).fix(fix));
    }
    if findings.is_empty() {
        let message = format!("reads {name}, in order");
        findings.push(Finding::passed("consumer", subject(consumer), message));
    }
    findings.extend(forgetful_topic(consumer, subscription));
    findings
}

fn fix_of(remark: SubscriptionWarning, consumer: &RegisteredConsumer) -> String {
    match remark {
        SubscriptionWarning::Unordered => remark.fix().to_owned(),
        SubscriptionWarning::DeadLetters => format!(
            "remove the dead-letter policy, or drain the dead letters through the same inbox: walrelay consumer run {} \
             --subscription DEAD_LETTER_SUBSCRIPTION --handler FUNCTION --until-caught-up",
            consumer.consumer
        ),
    }
}

/// Returns a finding if a rebuild from the topic would find no messages. A rebuild reads them
/// through a new subscription, so only the topic's own retention counts.
fn forgetful_topic(consumer: &RegisteredConsumer, subscription: &Subscription) -> Option<Finding> {
    if subscription.topic_message_retention_duration.is_some() {
        return None;
    }
    let topic = &subscription.topic;
    let message = format!(
        "{topic} retains no acknowledged messages: `consumer rebuild --from-time` finds nothing to apply again"
    );
    let fix = format!("gcloud pubsub topics update {topic} --message-retention-duration=7d");
    Some(warning(Code::TopicRetentionMissing, consumer, &message).fix(fix))
}

fn warning(code: Code, consumer: &RegisteredConsumer, message: &str) -> Finding {
    Finding::warning(code, subject(consumer), message)
}

fn subject(consumer: &RegisteredConsumer) -> String {
    format!("consumer {}", consumer.consumer)
}

/// Rounds down to whole seconds.
fn rounded(age: Duration) -> Duration {
    Duration::from_secs(age.as_secs())
}

#[cfg(test)]
mod tests {
    use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::DeadLetterPolicy;

    use super::*;

    const WEEK: Duration = Duration::from_hours(7 * 24);

    fn billing(pruned_ago: Option<Duration>) -> RegisteredConsumer {
        RegisteredConsumer {
            consumer: "billing".into(),
            subscription: "s".into(),
            pruned_ago,
            rebuild: None,
            row: "one".into(),
        }
    }

    fn ordered() -> Subscription {
        Subscription {
            enable_message_ordering: true,
            topic_message_retention_duration: Some(prost_types::Duration {
                seconds: 7 * 24 * 3600,
                nanos: 0,
            }),
            ..Subscription::default()
        }
    }

    #[test]
    fn a_topic_that_forgets_is_a_warning_with_the_command_that_lets_it_retain() {
        let topic = "projects/p/topics/t".to_owned();
        let forgetful = Subscription { topic_message_retention_duration: None, topic, ..ordered() };
        let found = about((&billing(None), &[]), &forgetful, Vec::new(), WEEK);
        let [reads, finding] = &found[..] else { panic!("{found:?}") };
        assert!(reads.message.contains("in order"), "{}", reads.message);
        assert!(finding.message.contains("rebuild --from-time"), "{}", finding.message);
        assert!(finding.fix.contains("update projects/p/topics/t"), "{}", finding.fix);
    }

    #[test]
    fn a_subscription_of_a_deleted_topic_is_the_only_finding_with_its_cure() {
        let orphan = Subscription {
            topic: DELETED_TOPIC.to_owned(),
            topic_message_retention_duration: None,
            ..ordered()
        };
        let found = about((&billing(None), &[]), &orphan, Vec::new(), WEEK);
        let [finding] = &found[..] else { panic!("{found:?}") };
        assert!(finding.message.contains("nothing arrives"), "{}", finding.message);
        assert!(finding.fix.contains("--create --topic TOPIC"), "{}", finding.fix);
    }

    #[test]
    fn the_warning_about_dead_letters_has_the_command_that_drains_them() {
        let policy = Some(DeadLetterPolicy::default());
        let letters = Subscription { dead_letter_policy: policy, ..ordered() };
        let warnings = SubscriptionWarning::of(&letters, None);
        let found = about((&billing(None), &[]), &letters, warnings, WEEK);
        let command = "walrelay consumer run billing --subscription DEAD_LETTER_SUBSCRIPTION";
        assert!(found[0].fix.contains(command), "{}", found[0].fix);
    }

    fn messages(consumer: &RegisteredConsumer, subscription: &Subscription) -> Vec<String> {
        let warnings = SubscriptionWarning::of(subscription, None);
        about((consumer, &[]), subscription, warnings, WEEK)
            .into_iter()
            .map(|it| it.message)
            .collect()
    }

    #[test]
    fn what_harms_a_consumer_is_told_and_nothing_where_all_is_well() {
        let ordered = ordered();
        assert_eq!(messages(&billing(None), &ordered), ["reads s, in order"]);
        assert!(missing(&billing(None)).message.contains("does not exist"));
        let bad = Subscription {
            dead_letter_policy: Some(DeadLetterPolicy::default()),
            ..Subscription::default()
        };
        let told = messages(&billing(None), &bad);
        assert!(told[0].contains("order") && told[1].contains("dead-letter"), "{told:?}");
    }

    #[test]
    fn consumers_of_two_databases_that_share_a_subscription_are_told() {
        let there = RegisteredConsumer { row: "two".into(), ..billing(None) };
        let elsewhere =
            RegisteredConsumer { subscription: "own".into(), row: "three".into(), ..billing(None) };
        let all = [billing(None), billing(None), there.clone(), there, elsewhere];
        let others = other_readers(&all[0], all.iter());
        assert_eq!(others.iter().map(|it| &*it.row).collect::<Vec<_>>(), ["two"]);
        assert!(other_readers(&all[4], all.iter()).is_empty());
        let found = about((&all[0], &others), &ordered(), Vec::new(), WEEK);
        let [finding] = &found[..] else { panic!("{found:?}") };
        let message =
            "another consumer (billing) also reads s: each message goes to one of them only";
        assert_eq!(finding.message, message);
    }

    #[test]
    fn an_inbox_that_forgot_what_may_come_again_is_told() {
        let ordered = ordered();
        let days = |days: u64| Some(Duration::from_hours(24 * days));
        assert!(messages(&billing(days(3)), &ordered)[0].contains("applied again"));
        assert_eq!(messages(&billing(days(8)), &ordered), ["reads s, in order"]);
    }
}
