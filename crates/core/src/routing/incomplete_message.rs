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
        let lacks: Option<Vec<_>> = announced
            .into_iter()
            .map(|(number, bytes)| match number {
                wire::MESSAGE_ATTRIBUTES => Some((Part::Attributes, bytes)),
                wire::MESSAGE_ORDERING_KEY => Some((Part::OrderingKey, bytes)),
                wire::MESSAGE_DATA => Some((Part::Payload, bytes)),
                _ => None,
            })
            .collect();
        Some(Self { has: &body[..end], lacks: lacks? })
    }

    /// The size in bytes of a missing part, or `None` if the message has the part.
    #[must_use]
    pub fn lacks(&self, part: Part) -> Option<usize> {
        self.lacks.iter().find(|(lacking, _)| *lacking == part).map(|(_, bytes)| *bytes)
    }
}
