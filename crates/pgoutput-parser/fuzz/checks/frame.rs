//! Properties of frames for any bytes, used by the fuzz target `frame` and by ordinary tests.

use pgoutput_parser::{Frame, StandbyStatusUpdate, encode};

/// Checks that bytes are either refused, or decode to a frame whose only encoding is those bytes.
pub(crate) fn check(input: &[u8]) {
    match Frame::parse(input) {
        Ok(Frame::XLogData(frame)) => assert_eq!(encode::xlog_data(&frame), input),
        Ok(Frame::Keepalive(frame)) => {
            assert_eq!(encode::keepalive(&frame), input);
            let _time = frame.sent_at.to_system_time();
        }
        Err(error) => assert!(error.offset() <= input.len(), "{error}"),
    }
    if let Ok(update) = StandbyStatusUpdate::parse(input) {
        assert_eq!(update.encode(), input);
    }
}
