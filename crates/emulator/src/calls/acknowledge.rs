//! Acknowledge and ModifyAckDeadline, as separate requests and on streams.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use tonic::Status;

use crate::calls::error_info;
use crate::emulator::Emulator;
use crate::faults::active_faults::Outcome;
use crate::store::confirmation::Confirmation;
use crate::store::consuming::Change;
use crate::wire::grpc;

pub(crate) async fn acknowledge(emulator: &Emulator, frame: &Bytes) -> Result<BytesMut, Status> {
    let request = grpc::decode::<proto::AcknowledgeRequest>(frame)?;
    unary(emulator, &request.subscription, &request.ack_ids, Change::Acknowledge).await
}

pub(crate) async fn modify_ack_deadline(
    emulator: &Emulator,
    frame: &Bytes,
) -> Result<BytesMut, Status> {
    let request = grpc::decode::<proto::ModifyAckDeadlineRequest>(frame)?;
    let change = Change::Deadline(ack_deadline(request.ack_deadline_seconds)?);
    unary(emulator, &request.subscription, &request.ack_ids, change).await
}

/// Checks an ack deadline. Zero is a nack.
pub(crate) fn ack_deadline(seconds: i32) -> Result<Duration, Status> {
    match u64::try_from(seconds) {
        Ok(seconds @ 0..=600) => Ok(Duration::from_secs(seconds)),
        _ => Err(Status::invalid_argument(format!(
            "an ack deadline of {seconds} seconds is out of range: 0 to 600 are allowed"
        ))),
    }
}

pub(crate) enum Answer {
    /// The change is done. With exactly-once delivery, holds the confirmation.
    Done(Option<Confirmation>),
    /// A fault drops the change, which is never answered.
    Never,
}

/// Makes the change as the faults demand.
pub(crate) async fn change(
    emulator: &Emulator,
    subscription: &str,
    ack_ids: &[String],
    wanted: Change,
) -> Result<Answer, Status> {
    let plan = emulator.broker().plan_change(subscription, ack_ids, wanted)?;
    let make = || emulator.broker().change(subscription, ack_ids, wanted);
    let pretend = |outcome| emulator.broker().pretend(subscription, ack_ids, outcome);
    let delayed = async || {
        if !plan.delay.is_zero() {
            tokio::time::sleep(plan.delay).await;
        }
    };
    let confirmation = match plan.outcome {
        // Expire affects deliveries only.
        Outcome::Undisturbed | Outcome::Expire => {
            let confirmation = make()?;
            delayed().await;
            confirmation
        }
        Outcome::Reject(code) => {
            delayed().await;
            return Err(Status::new(code, "a fault rejects this call; nothing is changed"));
        }
        Outcome::FailAfter(code) => {
            make()?;
            delayed().await;
            return Err(Status::new(code, "a fault loses this reply; the change is made"));
        }
        Outcome::Hold(release) => {
            let confirmation = make()?;
            delayed().await;
            let _held = emulator.held();
            release.wait().await;
            confirmation
        }
        Outcome::HoldBefore(release) => {
            delayed().await;
            let held = emulator.held();
            release.wait().await;
            drop(held);
            make()?
        }
        Outcome::BlackHole => {
            emulator.changed();
            return Ok(Answer::Never);
        }
        Outcome::Lose => {
            delayed().await;
            pretend(Ok(()))?
        }
        Outcome::FailIds(reason) => {
            delayed().await;
            pretend(Err(reason))?
        }
    };
    emulator.changed();
    Ok(Answer::Done(confirmation))
}

async fn unary(
    emulator: &Emulator,
    subscription: &str,
    ack_ids: &[String],
    wanted: Change,
) -> Result<BytesMut, Status> {
    match change(emulator, subscription, ack_ids, wanted).await? {
        Answer::Done(confirmation) => {
            confirmation.as_ref().map_or(Ok(()), error_info::check)?;
            // The reply of both calls is google.protobuf.Empty.
            Ok(grpc::encode(&()))
        }
        Answer::Never => std::future::pending().await,
    }
}
