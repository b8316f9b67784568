//! Properties of the condenser for any bytes, used by the fuzz target `condenser` and by ordinary
//! tests.

use pgoutput_parser::{CondenseLimits, Condenser, Frame};

/// The largest part that is pushed at once.
const PART_BYTES_MAX: usize = 64;

/// Checks one input: two limits and the part size, one byte each, then a frame.
///
/// The frame is either refused, or condensed to at most its own size and the limits. A frame within
/// the limits is unchanged.
pub(crate) fn check(input: &[u8]) {
    let Some((&[value_max, values_max, part_bytes], frame)) = input.split_first_chunk() else {
        return;
    };
    let limits = CondenseLimits {
        value_bytes_max: value_max.into(),
        values_bytes_max: usize::from(values_max) * 4,
    };
    let part_bytes = usize::from(part_bytes).clamp(1, PART_BYTES_MAX);
    let condensed = condense(frame, limits, part_bytes);
    let all = CondenseLimits { value_bytes_max: usize::MAX, values_bytes_max: usize::MAX };
    let whole = condense(frame, all, part_bytes);
    assert_eq!(condensed.is_some(), whole.is_some());
    let (Some(condensed), Some(whole)) = (condensed, whole) else { return };
    assert_eq!(whole, frame);
    assert!(condensed.len() <= frame.len());
    assert!(Frame::parse(&condensed).is_ok());
    if condensed.len() == frame.len() {
        assert_eq!(condensed, frame);
    }
}

fn condense(frame: &[u8], limits: CondenseLimits, part_bytes: usize) -> Option<Vec<u8>> {
    let mut condenser = Condenser::new(frame.len(), limits);
    for part in frame.chunks(part_bytes) {
        if let Err(error) = condenser.push(part) {
            assert!(error.offset() <= frame.len(), "{error}");
            return None;
        }
    }
    assert_eq!(condenser.missing(), 0);
    condenser.finish().ok()
}
