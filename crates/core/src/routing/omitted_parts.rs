//! The parts that a message lacks because Pub/Sub would refuse them at that size.
//!
//! Such a row is dead. Dispatch state records the row without the large value, because dispatch
//! state never stores a message that cannot be published. The recorded message ends with the tag
//! and the length of each missing part, without any content:
//!
//! ```text
//! attributes, ordering key │ 0x0A (data), varint 140,000,000 │ the end
//! ```
//!
//! These bytes are not a valid `PubsubMessage`. No relay of any version can therefore publish the
//! message without its part, not even after an operator makes the row due by hand.

use pgoutput_parser::Column;
use walrelay_protobuf::{header_len, put_header};

use crate::fault::Fault;
use crate::limits::{
    ATTRIBUTE_KEY_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX, ATTRIBUTES_MAX, REQUEST_BYTES_MAX,
};
use crate::routing::columns::{Field, Part, PayloadType};
use crate::routing::row_view::RowView;
use crate::routing::wire;

/// The parts that a message lacks, each with its size in bytes. Zero means that the part is
/// present.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    data: usize,
    attributes: usize,
    ordering_key: usize,
    topic: usize,
    fault: Option<Fault>,
}

impl LeftOut {
    /// Finds the parts that the row's message has to omit.
    pub(crate) fn of(row: &RowView<'_, '_>) -> Self {
        match row.may_lack_values() {
            true => Self::of_large(row),
            false => Self::default(),
        }
    }

    #[cold]
    fn of_large(row: &RowView<'_, '_>) -> Self {
        let mut left_out = Self::default();
        for (place, column) in row.picked.iter().enumerate() {
            if let Some(Column::TooLarge { bytes }) = column {
                left_out.add(row, place, *bytes);
            }
        }
        left_out
    }

    fn add(&mut self, row: &RowView<'_, '_>, place: usize, bytes: usize) {
        let layout = row.layout;
        let is_in = |parts: &[Part]| parts.contains(&Part::Place(place));
        let is_payload = layout.fields[Field::Payload.place()] == place;
        let bytes = match layout.payload {
            // The text form is `\x` and two hexadecimal digits per byte.
            PayloadType::Bytea if is_payload => bytes.saturating_sub(2) / 2,
            PayloadType::Bytea | PayloadType::Json | PayloadType::Text => bytes,
        };
        if is_payload {
            self.data = bytes;
        }
        let is_attribute =
            |field: &Field| *field != Field::Payload && layout.fields[field.place()] == place;
        let is_column = |(own, _): &(usize, String)| *own == place;
        if Field::ALL.iter().any(is_attribute) || layout.attributes.iter().any(is_column) {
            self.attributes = self.attributes.max(bytes);
        }
        if is_in(&layout.ordering_key) {
            self.ordering_key = self.ordering_key.max(bytes);
        }
        if is_in(&layout.topic) {
            self.topic = bytes;
        }
        let max = match (is_payload, layout.fields[Field::Headers.place()] == place) {
            (true, _) => REQUEST_BYTES_MAX,
            (false, true) => ATTRIBUTES_MAX * (ATTRIBUTE_KEY_BYTES_MAX + ATTRIBUTE_VALUE_BYTES_MAX),
            (false, false) => ATTRIBUTE_VALUE_BYTES_MAX,
        };
        let what = format!("column \"{}\" of {}", row.column_name(place), row.table());
        self.fault.get_or_insert(Fault::TooLarge { what, size: bytes, max });
    }

    /// Omits the payload because the whole message is too large, even if the payload alone is not.
    #[cold]
    pub(crate) fn add_payload(&mut self, bytes: usize, table: &str, size: usize) {
        self.data = bytes;
        let what = format!("the payload of {table} with its attributes");
        self.fault.get_or_insert(Fault::TooLarge { what, size, max: REQUEST_BYTES_MAX });
    }

    /// Whether a part of the topic is missing. The rest of the text would be another topic.
    pub(crate) const fn lacks_topic(&self) -> bool {
        self.topic > 0
    }

    /// Whether a part of the ordering key is missing. The rest of the text would be another key.
    pub(crate) const fn lacks_ordering_key(&self) -> bool {
        self.ordering_key > 0
    }

    /// Why the row is dead, if any part is omitted.
    pub(crate) fn take_fault(&mut self) -> Option<Fault> {
        self.fault.take()
    }

    /// The missing parts in write order. The data comes last, because its length may be small and
    /// has to exceed the number of bytes that follow.
    fn parts(&self) -> impl Iterator<Item = (u8, usize)> {
        [
            (wire::MESSAGE_ATTRIBUTES, self.attributes.max(self.topic)),
            (wire::MESSAGE_ORDERING_KEY, self.ordering_key),
            (wire::MESSAGE_DATA, self.data),
        ]
        .into_iter()
        .filter(|(_, bytes)| *bytes > 0)
    }

    /// The number of bytes that [`append_to`](Self::append_to) appends.
    pub(crate) fn encoded_len(&self) -> usize {
        self.parts().map(|(_, bytes)| header_len(bytes)).sum()
    }

    /// Appends the tags and lengths of the missing parts to the message.
    pub(crate) fn append_to(&self, buffer: &mut Vec<u8>) {
        for (number, bytes) in self.parts() {
            put_header(buffer, number, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::incomplete_message::IncompleteMessage;
    use crate::routing::limit_violation::Part as MessagePart;

    #[test]
    fn a_message_tells_which_parts_it_lacks_and_keeps_the_others() {
        let has = b"\x12\x06\x0A\x01a\x12\x011\x2A\x02k1";
        let left_out = LeftOut { data: 140_000_000, ..LeftOut::default() };
        let mut body = has.to_vec();
        left_out.append_to(&mut body);
        assert_eq!(body.len(), has.len() + left_out.encoded_len());
        let incomplete = IncompleteMessage::of(&body).unwrap();
        assert_eq!(incomplete.has, has);
        assert_eq!(incomplete.lacks, [(MessagePart::Payload, 140_000_000)]);
        assert_eq!(incomplete.lacks(MessagePart::OrderingKey), None);
        assert!(wire::check(&body).is_err(), "it can be published");
    }

    #[test]
    fn each_part_may_be_missing_and_a_short_payload_is_told_from_the_others() {
        let left_out =
            LeftOut { data: 1, attributes: 70_000, ordering_key: 70_001, ..LeftOut::default() };
        let mut body = Vec::new();
        left_out.append_to(&mut body);
        let incomplete = IncompleteMessage::of(&body).unwrap();
        assert_eq!(incomplete.has, b"");
        assert_eq!(
            incomplete.lacks,
            [
                (MessagePart::Attributes, 70_000),
                (MessagePart::OrderingKey, 70_001),
                (MessagePart::Payload, 1)
            ]
        );
    }

    #[test]
    fn what_lacks_nothing_or_is_no_message_is_not_taken_for_one_that_does() {
        for body in
            [&b""[..], b"\x0A\x02hi", b"\x0A", b"\x0A\x05hi", b"\x1A\x05", b"\x0F\x05", b"hi"]
        {
            assert_eq!(IncompleteMessage::of(body), None, "{body:?}");
        }
    }
}
