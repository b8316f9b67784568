//! The snapshot calls (create, change, list) and seeking a subscription.

use std::time::SystemTime;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use proto::seek_request::Target;
use tonic::Status;

use crate::calls::request::{masked_paths, missing, not_updatable, page_of};
use crate::store::broker::Broker;
use crate::wire::{names, settings};

pub(crate) fn create_snapshot(
    broker: &mut Broker,
    request: proto::CreateSnapshotRequest,
) -> Result<proto::Snapshot, Status> {
    broker.insert_snapshot(request, SystemTime::now())
}

pub(crate) fn get_snapshot(broker: &mut Broker, name: &str) -> Result<proto::Snapshot, Status> {
    Ok(broker.snapshot_mut(name, SystemTime::now())?.config.clone())
}

pub(crate) fn update_snapshot(
    broker: &mut Broker,
    request: proto::UpdateSnapshotRequest,
) -> Result<proto::Snapshot, Status> {
    let update = request.snapshot.ok_or_else(|| missing("snapshot"))?;
    let snapshot = broker.snapshot_mut(&update.name, SystemTime::now())?;
    let mut config = snapshot.config.clone();
    for path in masked_paths(request.update_mask)? {
        match path.as_str() {
            "labels" => config.labels.clone_from(&update.labels),
            "expire_time" => config.expire_time = update.expire_time,
            _ => return Err(not_updatable(&path)),
        }
    }
    settings::check_labels(&config.labels)?;
    snapshot.config = config.clone();
    Ok(config)
}

pub(crate) fn delete_snapshot(broker: &mut Broker, name: &str) -> Result<(), Status> {
    broker.remove_snapshot(name, SystemTime::now())
}

pub(crate) fn list_snapshots(
    broker: &mut Broker,
    request: &proto::ListSnapshotsRequest,
) -> Result<proto::ListSnapshotsResponse, Status> {
    names::check_project(&request.project)?;
    broker.forget_expired_snapshots(SystemTime::now());
    let page = page_of(&broker.snapshots, request.page_size, &request.page_token, |name, _| {
        names::belongs_to(name, &request.project)
    });
    Ok(proto::ListSnapshotsResponse {
        snapshots: page.found.into_iter().map(|its| its.config.clone()).collect(),
        next_page_token: page.next_token,
    })
}

pub(crate) fn seek(
    broker: &mut Broker,
    request: &proto::SeekRequest,
) -> Result<proto::SeekResponse, Status> {
    let (name, now) = (&request.subscription, SystemTime::now());
    match &request.target {
        Some(Target::Time(time)) => {
            let time = SystemTime::try_from(*time)
                .map_err(|_| Status::invalid_argument("the time to seek to is out of range"))?;
            broker.seek_to_time(name, time, now)?;
        }
        Some(Target::Snapshot(snapshot)) => broker.seek_to_snapshot(name, snapshot, now)?,
        None => return Err(Status::invalid_argument("give a time or a snapshot to seek to")),
    }
    Ok(proto::SeekResponse {})
}
