//! Dispatches the calls that manage topics, subscriptions and snapshots by their path.

use bytes::{Bytes, BytesMut};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use prost::Message;
use tonic::Status;

use crate::calls::{iam, monitoring, snapshots, subscriptions, topics};
use crate::store::broker::Broker;
use crate::wire::grpc;

pub(crate) fn call(broker: &mut Broker, path: &str, frame: &Bytes) -> Result<BytesMut, Status> {
    let Some(method) = path.strip_prefix("/google.pubsub.v1.") else {
        return call_other(broker, path, frame);
    };
    match method {
        "Publisher/CreateTopic" => typed(frame, |topic| topics::create_topic(broker, topic)),
        "Publisher/GetTopic" => typed(frame, |request: proto::GetTopicRequest| {
            Ok(broker.topic(&request.topic)?.config.clone())
        }),
        "Publisher/UpdateTopic" => typed(frame, |request| topics::update_topic(broker, request)),
        "Publisher/ListTopics" => typed(frame, |request| topics::list_topics(broker, &request)),
        "Publisher/ListTopicSubscriptions" => {
            typed(frame, |request| topics::list_topic_subscriptions(broker, &request))
        }
        "Publisher/ListTopicSnapshots" => {
            typed(frame, |request| topics::list_topic_snapshots(broker, &request))
        }
        "Publisher/DeleteTopic" => {
            typed(frame, |request: proto::DeleteTopicRequest| broker.remove_topic(&request.topic))
        }
        "Subscriber/CreateSubscription" => {
            typed(frame, |subscription| subscriptions::create_subscription(broker, subscription))
        }
        "Subscriber/GetSubscription" => typed(frame, |request: proto::GetSubscriptionRequest| {
            broker.described_subscription(&request.subscription)
        }),
        "Subscriber/UpdateSubscription" => {
            typed(frame, |request| subscriptions::update_subscription(broker, request))
        }
        "Subscriber/ModifyPushConfig" => {
            typed(frame, |request| subscriptions::modify_push_config(broker, &request))
        }
        "Subscriber/ListSubscriptions" => {
            typed(frame, |request| subscriptions::list_subscriptions(broker, &request))
        }
        "Subscriber/DeleteSubscription" => {
            typed(frame, |request: proto::DeleteSubscriptionRequest| {
                broker.remove_subscription(&request.subscription)
            })
        }
        "Subscriber/CreateSnapshot" => {
            typed(frame, |request| snapshots::create_snapshot(broker, request))
        }
        "Subscriber/GetSnapshot" => typed(frame, |request: proto::GetSnapshotRequest| {
            snapshots::get_snapshot(broker, &request.snapshot)
        }),
        "Subscriber/UpdateSnapshot" => {
            typed(frame, |request| snapshots::update_snapshot(broker, request))
        }
        "Subscriber/ListSnapshots" => {
            typed(frame, |request| snapshots::list_snapshots(broker, &request))
        }
        "Subscriber/DeleteSnapshot" => typed(frame, |request: proto::DeleteSnapshotRequest| {
            snapshots::delete_snapshot(broker, &request.snapshot)
        }),
        "Subscriber/Seek" => typed(frame, |request| snapshots::seek(broker, &request)),
        _ => Err(unimplemented(path)),
    }
}

/// Answers the calls of other services of Google, which setup and status use.
fn call_other(broker: &mut Broker, path: &str, frame: &Bytes) -> Result<BytesMut, Status> {
    match path {
        "/google.monitoring.v3.MetricService/ListTimeSeries" => {
            typed(frame, |request| monitoring::list_time_series(broker, &request))
        }
        "/google.iam.v1.IAMPolicy/GetIamPolicy" => {
            typed(frame, |request| iam::get_policy(broker, &request))
        }
        "/google.iam.v1.IAMPolicy/SetIamPolicy" => {
            typed(frame, |request| iam::set_policy(broker, request))
        }
        _ => Err(unimplemented(path)),
    }
}

fn typed<Q: Message + Default, R: Message>(
    frame: &Bytes,
    answer: impl FnOnce(Q) -> Result<R, Status>,
) -> Result<BytesMut, Status> {
    Ok(grpc::encode(&answer(grpc::decode(frame)?)?))
}

fn unimplemented(path: &str) -> Status {
    Status::unimplemented(format!("the emulator does not implement {path}"))
}
