//! `walrelay consumer rebuild`: a read model made anew from what the topic keeps.
//!
//! Seeking the subscription that a consumer reads would rebuild nothing: the copies count as seen; and an
//! acknowledgement that is under way after a seek punches a hole into what comes again. Hence a new
//! generation of the inbox, and a new subscription that is sought before anybody pulls from it (C9).

use std::time::{Duration, SystemTime};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::Subscription;
use tokio::time::sleep;
use walrelay_inbox::admin;
use walrelay_postgres::SqlClient;
use walrelay_pubsub::Subscriber;
use walrelay_relay::observe::report::rfc3339;

use super::dispatch::edit::read;
use crate::config::Rebuild;
use crate::error::Error;
use crate::options::units::show_duration;
use crate::output::print;

/// Until a seek has taken effect everywhere. Whoever pulls sooner is given what is new before what is old.
const SEEK_SETTLES: Duration = Duration::from_secs(60);

/// `--seek-to 7d` is a little more than seven days ago by the time it is compared.
const ROUNDING: Duration = Duration::from_mins(1);

/// Makes it, and says each step.
pub(super) async fn rebuild(client: &mut SqlClient, order: &Rebuild) -> Result<(), Error> {
    let Rebuild { name, since, endpoint, .. } = order;
    let reset = reset(order)?;
    let before = admin::status(client, name).await.map_err(Error::Inbox)?;
    let was_paused = before["paused"] == true;
    let old = admin::subscription(client, name).await.map_err(Error::Inbox)?;
    let subscriber = Subscriber::connect(endpoint)?;
    let found = subscriber.subscription(&old).await?.ok_or_else(|| {
        Error::Inbox(walrelay_inbox::InboxError::SubscriptionMissing { subscription: old.clone() })
    })?;
    refuse_beyond(*since, &found)?;
    refuse_future(*since)?;
    let next_generation = before["generation"].as_i64().unwrap_or_default() + 1;
    let new = order.subscription.clone().unwrap_or_else(|| format!("{old}-g{next_generation}"));
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
    print(&format!("{}: subscription {new}\n", if is_new { "created" } else { "already there" }))?;
    admin::pause(client, name).await.map_err(Error::Inbox)?;
    print(&format!("paused: consumer {name}\n"))?;
    let moved = async {
        subscriber.seek(&new, *since).await?;
        admin::rebuild(client, name, &new, &reset).await.map_err(Error::Inbox)
    };
    let generation = match moved.await {
        Ok(generation) => generation,
        Err(error) => {
            if !was_paused {
                admin::resume(client, name).await.map_err(Error::Inbox)?;
            }
            return Err(error);
        }
    };
    print(&format!("begun: generation {generation}, from {}\n", rfc3339(*since)))?;
    if was_paused {
        return print(&format!(
            "it was paused before and stays so: walrelay consumer resume {name}, in a minute at the earliest\n"
        ));
    }
    if !endpoint.is_emulator() {
        print("waiting a minute for the seek to take effect\n")?;
        sleep(SEEK_SETTLES).await;
    }
    admin::resume(client, name).await.map_err(Error::Inbox)?;
    print(&format!(
        "resumed: consumer {name}; running instances follow within seconds, but for those that were given a \
         --subscription: start them anew. Then nobody reads {old} any more\n"
    ))
}

fn reset(order: &Rebuild) -> Result<String, Error> {
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

/// A new subscription reaches as far back as its topic keeps messages, whatever the old one keeps.
fn refuse_beyond(since: SystemTime, of: &Subscription) -> Result<(), Error> {
    let kept = of.topic_message_retention_duration.and_then(|kept| Duration::try_from(kept).ok());
    let Some(kept) = kept.filter(|kept| !kept.is_zero()) else {
        return Err(Error::Unfit {
            what: format!("topic {} keeps no messages for new subscriptions", of.topic),
            hint: "set its --message-retention-duration for the next time; now publish the events again: \
                   docs/consumer-operations.md, Apply everything again",
        });
    };
    let age = SystemTime::now().duration_since(since).unwrap_or_default();
    if age > kept + ROUNDING {
        return Err(Error::Unfit {
            what: format!("topic {} keeps messages for {}", of.topic, show_duration(kept)),
            hint: "seek to a later time, or publish the events again: docs/consumer-operations.md, Apply \
                   everything again",
        });
    }
    Ok(())
}

/// What is published later would be passed over as well.
fn refuse_future(since: SystemTime) -> Result<(), Error> {
    match since > SystemTime::now() {
        false => Ok(()),
        true => Err(Error::Unfit {
            what: format!("--seek-to {} is in the future", rfc3339(since)),
            hint: "name a time from which on everything is applied again",
        }),
    }
}

/// One that is there already has to bring the same messages in the same order.
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

/// As the old one, under another name.
fn successor(old: &Subscription, name: &str) -> Subscription {
    Subscription {
        name: name.to_owned(),
        topic_message_retention_duration: None,
        state: 0,
        ..old.clone()
    }
}
