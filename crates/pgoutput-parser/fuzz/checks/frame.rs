//! What must hold for any bytes. The fuzz target `frame` runs it, and so do the crate's ordinary tests.

use pgoutput_parser::{Frame, StandbyStatusUpdate, encode};

/// Bytes are either refused or the one encoding of what they decode to.
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
