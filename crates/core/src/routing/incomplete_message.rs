//! Reads recorded messages that lack oversized parts, as [`LeftOut`](crate::routing::omitted_parts) writes them.

use crate::routing::limit_violation::Part;
use crate::routing::wire;

/// A recorded message without the parts that were too large for Pub/Sub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncompleteMessage<'a> {
    /// The parts that are present: an encoded `PubsubMessage`.
    pub has: &'a [u8],
    /// The missing parts, each with its size in bytes.
    pub lacks: Vec<(Part, usize)>,
}

impl<'a> IncompleteMessage<'a> {
    /// Reads the bytes of a message. Returns `None` if no part is missing or the bytes are
    /// malformed.
    #[must_use]
    pub fn of(body: &'a [u8]) -> Option<Self> {
        let (end, announced) = wire::announced(body)?;
        let part = |(tag, bytes): (usize, usize)| {
            let parts = [
                (wire::MESSAGE_ATTRIBUTES, Part::Attributes),
                (wire::MESSAGE_ORDERING_KEY, Part::OrderingKey),
                (wire::MESSAGE_DATA, Part::Payload),
            ];
            let part = parts.iter().find(|(known, _)| usize::from(*known) == tag);
            part.map(|(_, part)| (*part, bytes))
        };
        let lacks: Option<Vec<_>> = announced.into_iter().map(part).collect();
        Some(Self { has: &body[..end], lacks: lacks? })
    }

    /// The size in bytes of a missing part, or `None` if the message has the part.
    #[must_use]
    pub fn lacks(&self, part: Part) -> Option<usize> {
        self.lacks.iter().find(|(lacking, _)| *lacking == part).map(|(_, bytes)| *bytes)
    }
}
