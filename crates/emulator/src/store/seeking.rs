//! Snapshots, and seeks to a snapshot or to a time.

use std::time::SystemTime;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tonic::Status;

use crate::store::broker::{Broker, missing, subscription_in};
use crate::store::snapshot::Snapshot;
use crate::wire::{names, settings};

impl Broker {
    /// Creates a snapshot of the subscription's unacknowledged messages.
    pub(crate) fn insert_snapshot(
        &mut self,
        request: proto::CreateSnapshotRequest,
        now: SystemTime,
    ) -> Result<proto::Snapshot, Status> {
        let proto::CreateSnapshotRequest { name, subscription, labels, .. } = request;
        self.forget_expired_snapshots(now);
        self.subscription_mut(&subscription)?;
        let name = if name.is_empty() { self.new_snapshot_name(&subscription) } else { name };
        names::check_snapshot(&name)?;
        settings::check_labels(&labels)?;
        if self.snapshots.contains_key(&name) {
            return Err(Status::already_exists(format!("snapshot {name:?} exists")));
        }
        let subscription = self.subscription_mut(&subscription)?;
        let topic = subscription.config.topic.clone();
        let messages = subscription.queue.unacknowledged().cloned().collect();
        let config = proto::Snapshot { name: name.clone(), topic, labels, expire_time: None };
        let snapshot = Snapshot::new(config, messages, now)?;
        let made = snapshot.config.clone();
        if let Some(its_topic) = self.topics.get_mut(&made.topic) {
            its_topic.snapshots.push(name.clone());
        }
        self.snapshots.insert(name, snapshot);
        Ok(made)
    }

    /// Returns an unused name in the subscription's project, for a client that leaves the name to
    /// the service.
    fn new_snapshot_name(&self, subscription: &str) -> String {
        let project = names::project_of(subscription);
        let names = (1_u64..).map(|number| format!("{project}/snapshots/snapshot-{number}"));
        let mut unused = names.filter(|name| !self.snapshots.contains_key(name));
        unused.next().unwrap_or_default()
    }

    pub(crate) fn snapshot_mut(
        &mut self,
        name: &str,
        now: SystemTime,
    ) -> Result<&mut Snapshot, Status> {
        self.forget_expired_snapshots(now);
        let missing = || missing(names::check_snapshot(name), "snapshot", name);
        self.snapshots.get_mut(name).ok_or_else(missing)
    }

    pub(crate) fn remove_snapshot(&mut self, name: &str, now: SystemTime) -> Result<(), Status> {
        let topic = self.snapshot_mut(name, now)?.config.topic.clone();
        if let Some(topic) = self.topics.get_mut(&topic) {
            topic.snapshots.retain(|its| its != name);
        }
        self.snapshots.remove(name);
        Ok(())
    }

    pub(crate) fn forget_expired_snapshots(&mut self, now: SystemTime) {
        let expired = |(_, snapshot): &(&String, &Snapshot)| snapshot.has_expired(now);
        let names: Vec<String> =
            self.snapshots.iter().filter(expired).map(|(name, _)| name.clone()).collect();
        for name in names {
            if let Some(snapshot) = self.snapshots.remove(&name)
                && let Some(topic) = self.topics.get_mut(&snapshot.config.topic)
            {
                topic.snapshots.retain(|its| *its != name);
            }
        }
    }

    /// Acknowledges every message published before this time, and makes every other known message
    /// unacknowledged.
    pub(crate) fn seek_to_time(
        &mut self,
        name: &str,
        time: SystemTime,
        now: SystemTime,
    ) -> Result<(), Status> {
        let subscription = subscription_in(&mut self.subscriptions, name)?;
        subscription.queue.retained.trim(now);
        let mut kept_by_topic = Vec::new();
        if let Some(topic) = self.topics.get_mut(&subscription.config.topic) {
            topic.retained.trim(now);
            kept_by_topic.extend(topic.retained.since(time).cloned());
        }
        subscription.seek_to_time(time, &kept_by_topic);
        Ok(())
    }

    /// Makes exactly the messages of the snapshot unacknowledged.
    pub(crate) fn seek_to_snapshot(
        &mut self,
        name: &str,
        snapshot: &str,
        now: SystemTime,
    ) -> Result<(), Status> {
        self.snapshot_mut(snapshot, now)?;
        let subscription = subscription_in(&mut self.subscriptions, name)?;
        let Some(its) = self.snapshots.get(snapshot) else { return Ok(()) };
        if its.config.topic != subscription.config.topic {
            return Err(Status::failed_precondition(format!(
                "snapshot {snapshot:?} is of topic {:?}, subscription {name:?} of {:?}: they must be \
                 of the same",
                its.config.topic, subscription.config.topic
            )));
        }
        subscription.seek_to_messages(its.messages());
        Ok(())
    }
}
