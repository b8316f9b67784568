//! A recorded message that lacks parts which were too large, as [`LeftOut`](crate::left_out) ends it.

use crate::fit::Part;
use crate::wire;

/// A recorded message that lacks parts which were too large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncompleteMessage<'a> {
    /// What it has: an encoded `PubsubMessage`.
    pub has: &'a [u8],
    /// The parts that it lacks, and how many bytes they have.
    pub lacks: Vec<(Part, usize)>,
}

impl<'a> IncompleteMessage<'a> {
    /// Reads the bytes of a message; none where they lack nothing, or are something else.
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

    /// How many bytes the part has that is missing; none where the message has it.
    #[must_use]
    pub fn lacks(&self, part: Part) -> Option<usize> {
        self.lacks.iter().find(|(lacking, _)| *lacking == part).map(|(_, bytes)| *bytes)
    }
}
