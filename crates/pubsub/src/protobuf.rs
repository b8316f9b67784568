//! Reads Protocol Buffers in place, without copying and without panicking on malformed bytes.
//!
//! Source: the encoding chapter of the Protocol Buffers manual.

/// One field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    /// The field number and the wire type, as encoded.
    pub(crate) tag: u64,
    /// The content of a length-delimited or fixed-size field. Empty for a varint.
    pub(crate) content: &'a [u8],
    /// The value of a varint field. 0 for any other field.
    pub(crate) varint: u64,
}

/// Takes one field off `bytes`. Returns `None` if it is incomplete or has an obsolete wire type.
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
