//! `walrelay tail`: prints the messages of a topic, through a subscription of its own.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use clap::Args;
use futures_util::StreamExt as _;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::{
    ExpirationPolicy, StreamingPullRequest, Subscription,
};
use serde::Serialize;
use serde_json::value::RawValue;
use tonic::Status;
use walrelay_inbox::InboxError;
use walrelay_pubsub::{Endpoint, MessageRef, ReceivedMessage, Subscriber};
use walrelay_relay::seed::random_seed;
use walrelay_relay::shutdown::Shutdown;

use super::shared::subscription_setup::or_topic_missing;
use crate::config::{Checks, OutputFormat, ResourceKind};
use crate::error::Error;
use crate::options::values::{count, time};
use crate::options::{ARGUMENTS, EndpointOptions, OutputOptions, ProjectOption};
use crate::output::exact_json::data_json;
use crate::output::json::json_line;
use crate::output::live::LiveLine;
use crate::output::text::visible;
use crate::output::{Reader, print_part, reader_gone};
use crate::plan::Plan;

/// Pub/Sub deletes the subscription after this time without a reader. It is the least that Pub/Sub
/// accepts.
const EXPIRES_AFTER: Duration = Duration::from_hours(24);
/// Time between redeliveries. Messages are acknowledged as soon as they are printed.
const ACK_DEADLINE_SECONDS: i32 = 10;

/// Print the messages of a topic as they arrive.
///
/// Creates a subscription of its own, and deletes it at the end. If the command is killed, Pub/Sub deletes the
/// subscription after a day. Other subscriptions keep their messages.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay tail order.events\n  walrelay tail order.events -n 1 -o json"
)]
pub(crate) struct Tail {
    /// Topic, short or full name.
    #[arg(value_name = "TOPIC")]
    topic: String,
    /// Stop after this many messages; 1 to 1000000000.
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = count(1_u64, 1_000_000_000))]
    count: Option<u64>,
    /// Begin with messages published at this time or later: 2026-01-31T12:00:00Z, or how long ago (6h). The topic must
    /// retain them.
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<SystemTime>,
    /// Print only messages with this ordering key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    project: ProjectOption,
    #[command(flatten)]
    endpoint: EndpointOptions,
}

impl Tail {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let endpoint = checks.endpoint(&self.endpoint);
        let topic = checks.full_name("topic", &self.topic, &self.project, ResourceKind::Topic)?;
        Some(Plan::new(async move |shutdown| Box::pin(self.run(&endpoint, &topic, shutdown)).await))
    }

    /// Prints messages until the count is reached, a signal comes, or nobody reads the output. Then
    /// deletes the subscription.
    ///
    /// # Errors
    ///
    /// The topic does not exist, or standard output cannot be written.
    async fn run(
        &self,
        endpoint: &Endpoint,
        topic: &str,
        shutdown: &Shutdown,
    ) -> Result<(), Error> {
        let subscriber = Subscriber::connect(endpoint)?;
        let (project, _) = topic.split_once("/topics/").unwrap_or_default();
        let name = format!("{project}/subscriptions/walrelay-tail-{:016x}", random_seed());
        if let Err(error) = subscriber.create_subscription(wanted(&name, topic)).await {
            return Err(or_topic_missing(error, endpoint, [topic]).await);
        }
        let work = async {
            if let Some(since) = self.since {
                subscriber.seek(&name, since).await?;
            }
            follow(&subscriber, &name, self).await
        };
        let done = tokio::select! {
            done = work => done,
            () = shutdown.requested() => Ok(()),
            () = reader_gone(std::io::stdout()) => Ok(()),
        };
        let deleted = subscriber.delete_subscription(&name).await;
        done.and(deleted.map_err(Error::from))
    }
}

fn wanted(name: &str, topic: &str) -> Subscription {
    Subscription {
        name: name.to_owned(),
        topic: topic.to_owned(),
        enable_message_ordering: true,
        ack_deadline_seconds: ACK_DEADLINE_SECONDS,
        expiration_policy: Some(ExpirationPolicy { ttl: EXPIRES_AFTER.try_into().ok() }),
        ..Subscription::default()
    }
}

async fn follow(subscriber: &Subscriber, name: &str, asked: &Tail) -> Result<(), Error> {
    let mut stream = subscriber.pull(StreamingPullRequest {
        subscription: name.to_owned(),
        stream_ack_deadline_seconds: ACK_DEADLINE_SECONDS,
        ..StreamingPullRequest::default()
    });
    let refused = |status| {
        Error::Inbox(InboxError::Pull { subscription: name.to_owned(), source: Box::new(status) })
    };
    let mut left = asked.count.unwrap_or(u64::MAX);
    let mut line = LiveLine::of_text();
    line.show(0, format!("waiting for messages of {}; Ctrl-C ends", visible(&asked.topic)));
    let mut waiting = Some(line);
    while left > 0 {
        let closed = || Err(Status::unavailable("the service has closed the stream"));
        let response = stream.responses.next().await.unwrap_or_else(closed).map_err(refused)?;
        let mut ids = Vec::new();
        // Messages are printed below the line.
        waiting = waiting.filter(|_| response.messages().next().is_none());
        for received in response.messages() {
            let Ok(received) = received else {
                tracing::warn!("a message cannot be read");
                continue;
            };
            let printed = if left > 0 { print_one(&received, asked)? } else { Printed::No };
            match printed {
                Printed::Yes => left -= 1,
                Printed::No => {}
                Printed::ReaderGone => return Ok(()),
            }
            ids.push(received.ack_id);
        }
        let acknowledged = StreamingPullRequest { ack_ids: ids, ..StreamingPullRequest::default() };
        if stream.requests.send(acknowledged).await.is_err() {
            return Err(refused(Status::unavailable("the request stream is closed")));
        }
    }
    Ok(())
}

enum Printed {
    Yes,
    /// The message has another key or cannot be read.
    No,
    /// Nobody reads the output.
    ReaderGone,
}

fn print_one(received: &ReceivedMessage, asked: &Tail) -> Result<Printed, Error> {
    let Ok(message) = received.message() else {
        tracing::warn!("a message cannot be read");
        return Ok(Printed::No);
    };
    if asked.key.as_deref().is_some_and(|key| key != message.ordering_key) {
        return Ok(Printed::No);
    }
    let reader = print_part(&match asked.output.output {
        OutputFormat::Json => json_line(&TailedMessage::of(&message))?,
        OutputFormat::Text => line(&message),
    })?;
    Ok(match reader {
        Reader::There => Printed::Yes,
        Reader::Gone => Printed::ReaderGone,
    })
}

#[derive(Debug, Serialize)]
struct TailedMessage<'a> {
    message_id: &'a str,
    ordering_key: &'a str,
    attributes: BTreeMap<&'a str, &'a str>,
    /// JSON data as it is, and other data as text.
    data: Box<RawValue>,
}

impl<'a> TailedMessage<'a> {
    fn of(message: &'a MessageRef<'_>) -> Self {
        let text = String::from_utf8_lossy(message.data);
        Self {
            message_id: message.message_id,
            ordering_key: message.ordering_key,
            attributes: message.attributes.iter().map(|(name, value)| (*name, *value)).collect(),
            data: data_json(text.as_bytes()),
        }
    }
}

fn line(message: &MessageRef<'_>) -> String {
    let attribute = |wanted| {
        let found = message.attributes.iter().rev().find(|(name, _)| *name == wanted);
        found.map_or("-", |(_, value)| *value)
    };
    let data = String::from_utf8_lossy(message.data);
    format!(
        "{}  v{}  {}  {}\n",
        visible(message.ordering_key),
        visible(attribute("version")),
        visible(attribute("event_type")),
        visible(&data)
    )
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        let message = TailedMessage {
            message_id: "1",
            ordering_key: "A-1",
            attributes: BTreeMap::from([("event_type", "OrderPlaced")]),
            data: data_json(br#"{ "total": 42 }"#),
        };
        assert_documented("tail", &message);
    }
}
