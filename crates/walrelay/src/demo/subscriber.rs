//! A subscriber: streaming pull over gRPC, as in any application.

use futures_util::stream::unfold;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::subscriber_client::SubscriberClient;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::{PubsubMessage, StreamingPullRequest};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::transport::Endpoint;

use super::ledger::Ledger;
use crate::output::print;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DemoOutput {
    /// Every message and the summary.
    Messages,
    /// Only the summary.
    Summary,
}

/// Receives until the stream ends. Enters every message into the ledger, and prints it.
pub(crate) async fn subscribe(
    host: &str,
    subscription: &str,
    ledger: &Ledger,
    output: DemoOutput,
) -> Result<(), Status> {
    let endpoint = Endpoint::from_shared(host.to_owned())
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    let mut client = SubscriberClient::new(endpoint.connect_lazy());
    let (requests, receiver) = mpsc::channel(64);
    let first = StreamingPullRequest {
        subscription: subscription.to_owned(),
        stream_ack_deadline_seconds: 10,
        client_id: "demo".to_owned(),
        ..Default::default()
    };
    let closed = |_| Status::cancelled("the request stream is closed");
    requests.send(first).await.map_err(closed)?;
    let outgoing = unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|request| (request, receiver))
    });
    let mut stream = client.streaming_pull(outgoing).await?.into_inner();
    while let Some(response) = stream.message().await? {
        let mut ids = Vec::with_capacity(response.received_messages.len());
        let mut lines = String::new();
        for received in response.received_messages {
            ids.push(received.ack_id);
            let Some(message) = received.message else { continue };
            let attribute = |name| message.attributes.get(name).map_or("", String::as_str);
            let version = attribute("version").parse().unwrap_or(0);
            ledger.arrived(&message.ordering_key, version);
            if output == DemoOutput::Messages {
                lines.push_str(&line(&message));
            }
        }
        // The demo continues when the terminal is closed.
        if print(&lines).is_err() {
            tracing::debug!("standard output is closed");
        }
        let acknowledge = StreamingPullRequest { ack_ids: ids, ..Default::default() };
        requests.send(acknowledge).await.map_err(closed)?;
    }
    Ok(())
}

fn line(message: &PubsubMessage) -> String {
    let attribute = |name| message.attributes.get(name).map_or("", String::as_str);
    format!(
        "{:<10} v{:<4} {:<12} {:>12}#{}\n",
        message.ordering_key,
        attribute("version"),
        attribute("event_type"),
        attribute("commit_lsn"),
        attribute("tx_index"),
    )
}
