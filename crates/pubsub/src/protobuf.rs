//! Reading Protocol Buffers where they lie: nothing is copied, and nothing panics on what a socket brought.
//!
//! Source: the encoding chapter of the Protocol Buffers manual.

/// One field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    /// Number and wire type, as they are written.
    pub(crate) tag: u64,
    /// What is length-delimited; of every other field nothing.
    pub(crate) content: &'a [u8],
    /// What is written as a varint; of every other field 0.
    pub(crate) varint: u64,
}

/// Takes one field off `bytes`; `None` if it is not whole, or of a kind that there is not any more.
pub(crate) fn field<'a>(bytes: &mut &'a [u8]) -> Option<Field<'a>> {
    let tag = take_varint(bytes)?;
    let (len, varint) = match tag & 7 {
        0 => (0, take_varint(bytes)?),
        1 => (8, 0),
        2 => (usize::try_from(take_varint(bytes)?).ok()?, 0),
        5 => (4, 0),
        _ => return None,
    };
    let (content, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(Field { tag, content, varint })
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
