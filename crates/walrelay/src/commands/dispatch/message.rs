//! A row of dispatch state and its message, in the form that `dispatch` shows.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;
use prost::Message as _;
use walrelay_core::{IncompleteMessage, MessagePart};
use walrelay_outbox_store::{DispatchDetail, DispatchRow};
use walrelay_relay::observe::report::rfc3339;

use crate::commands::failed_events::{EventDetail, EventMessage, FailedEvent, MissingPart};
use crate::output::exact_json::{data_json, raw};

/// Returns the message, without the parts that were too large to be recorded.
pub(super) fn decode(detail: &DispatchDetail) -> Option<PubsubMessage> {
    let bytes = IncompleteMessage::of(&detail.message)
        .map_or(detail.message.as_slice(), |incomplete| incomplete.has);
    PubsubMessage::decode(bytes).ok()
}

/// Returns the parts that were too large to be recorded.
fn lacks(detail: &DispatchDetail) -> Vec<MissingPart> {
    let name = |part| match part {
        MessagePart::Topic => "topic",
        MessagePart::OrderingKey => "ordering_key",
        MessagePart::Attributes => "attributes",
        MessagePart::Payload => "data",
    };
    let incomplete = IncompleteMessage::of(&detail.message);
    let parts = incomplete.map(|incomplete| incomplete.lacks).unwrap_or_default();
    parts.into_iter().map(|(part, bytes)| MissingPart { part: name(part), bytes }).collect()
}

/// Returns a row as both front ends show it.
pub(super) fn event_of(row: DispatchRow) -> FailedEvent {
    let needs_edit = row.needs_edit();
    FailedEvent {
        event_id: row.event_id,
        status: row.status.as_str().to_owned(),
        attempts: row.attempts,
        commit_lsn: Some(row.position.commit_lsn.to_string()),
        tx_index: Some(row.position.tx_index),
        topic: Some(row.topic),
        ordering_key: row.ordering_key,
        event_type: row.event_type,
        version: None,
        holds_its_key: None,
        next_attempt_at: row.next_attempt_at.map(rfc3339),
        error_code: row.error_code,
        last_error: row.last_error,
        message_id: row.message_id,
        message_bytes: row.message_bytes,
        occurred_at: None,
        recorded_at: rfc3339(row.parked_at),
        updated_at: Some(rfc3339(row.updated_at)),
        done_at: None,
        needs_edit,
    }
}

pub(super) fn detail_of(detail: DispatchDetail) -> EventDetail {
    let lacks = lacks(&detail);
    let message = decode(&detail).map(|message| EventMessage {
        attributes: message.attributes,
        ordering_key: message.ordering_key,
        data: match lacks.iter().any(|lack| lack.part == "data") {
            true => raw(&()),
            false => data_json(&message.data),
        },
        lacks,
    });
    EventDetail { event: event_of(detail.row), message }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::{Duration, SystemTime};

    use bytes::Bytes;
    use pgoutput_parser::{Lsn, Position};
    use walrelay_outbox_store::DispatchStatus;

    use super::*;

    pub(in super::super) fn detail(payload: &[u8]) -> DispatchDetail {
        let message = PubsubMessage {
            data: Bytes::copy_from_slice(payload),
            attributes: [("event_id".to_owned(), "e-1".to_owned())].into(),
            ordering_key: "order\n7".into(),
            ..PubsubMessage::default()
        };
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
        let row = DispatchRow {
            event_id: "e-1".into(),
            position: Position { commit_lsn: Lsn::new(0x16_B374_D848), tx_index: 3 },
            topic: "projects/p/topics/orders".into(),
            ordering_key: "order\n7".into(),
            event_type: None,
            status: DispatchStatus::Dead,
            attempts: 20,
            next_attempt_at: None,
            error_code: Some("INVALID_ARGUMENT".into()),
            last_error: Some("attempt 20: too large\nattempt 19: too large".into()),
            message_id: None,
            message_bytes: 9,
            parked_at: at,
            updated_at: at,
        };
        DispatchDetail { row, message: message.encode_to_vec() }
    }

    /// A row that was recorded without its payload of 140 MB.
    pub(in super::super) fn detail_without_payload() -> DispatchDetail {
        let mut row = detail(b"");
        row.row.error_code = Some("TOO_LARGE".into());
        // Field 1 with a length of 140,000,000 bytes.
        row.message.extend_from_slice(&[0x0A, 0x80, 0xF6, 0xE0, 0x42]);
        row
    }

    #[test]
    fn a_payload_that_was_too_large_is_null_and_its_size_is_known() {
        let detail = detail_of(detail_without_payload());
        let message = detail.message.expect("a message");
        assert_eq!(message.data.get(), "null");
        assert!(matches!(
            message.lacks.as_slice(),
            [MissingPart { part: "data", bytes: 140_000_000 }]
        ));
        assert_eq!(message.attributes["event_id"], "e-1");
        assert!(detail.event.needs_edit);
        assert_eq!(detail.event.recorded_at, "2023-11-14T22:13:20.250Z");
    }
}
