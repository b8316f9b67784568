//! The Publish call: check, apply faults, store, answer.

use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use tonic::{Code, Status};

use crate::calls::responses::encode_publish_response;
use crate::emulator::{Emulator, InFlight};
use crate::faults::active_faults::{CallFacts, Faults, Outcome, Plan};
use crate::faults::fault::Call;
use crate::wire::limits::PublishRequest;

/// The reply, and the count to drop once the reply is on its way.
pub(crate) struct Published {
    pub(crate) reply: Result<BytesMut, Status>,
    pub(crate) in_flight: Option<InFlight>,
}

pub(crate) async fn publish(emulator: &Emulator, frame: &Bytes) -> Published {
    emulator.count_request();
    let mut in_flight = None;
    let reply = answer(emulator, frame, &mut in_flight).await;
    emulator.count_reply(reply.as_ref().map_or_else(Status::code, |_| Code::Ok));
    Published { reply, in_flight }
}

async fn answer(
    emulator: &Emulator,
    frame: &Bytes,
    in_flight: &mut Option<InFlight>,
) -> Result<BytesMut, Status> {
    let request = PublishRequest::parse(frame)?;
    let count = request.messages.len();
    let store = || emulator.broker().store(&request, frame, SystemTime::now());
    let plan = {
        let mut broker = emulator.broker();
        let entered = broker.enter(&request)?;
        *in_flight = entered.map(|entered| InFlight::new(emulator, entered));
        plan_of(&mut broker.faults, &request)
    };
    let wait = async || {
        if !plan.delay.is_zero() {
            tokio::time::sleep(plan.delay).await;
        }
    };
    let first_id = match plan.outcome {
        // The last three affect other calls only.
        Outcome::Undisturbed | Outcome::Lose | Outcome::Expire | Outcome::FailIds(_) => {
            let first_id = store()?;
            wait().await;
            first_id
        }
        Outcome::Reject(code) => {
            wait().await;
            return Err(Status::new(code, "a fault rejects this request; nothing is stored"));
        }
        Outcome::FailAfter(code) => {
            store()?;
            wait().await;
            return Err(Status::new(code, "a fault loses this reply; the messages are stored"));
        }
        Outcome::Hold(release) => {
            let first_id = store()?;
            wait().await;
            let _held = emulator.held();
            release.wait().await;
            first_id
        }
        Outcome::HoldBefore(release) => {
            wait().await;
            let held = emulator.held();
            release.wait().await;
            drop(held);
            store()?
        }
        Outcome::BlackHole => {
            emulator.changed();
            std::future::pending().await
        }
    };
    Ok(encode_publish_response(first_id, count))
}

fn plan_of(faults: &mut Faults, request: &PublishRequest<'_>) -> Plan {
    let call = Call::Publish;
    if !faults.strike(call) {
        return Plan::UNDISTURBED;
    }
    let messages = request.messages.iter().map(|body| (request.ordering_key, *body)).collect();
    faults.plan(&CallFacts { call, topic: request.topic, subscription: "", messages })
}
