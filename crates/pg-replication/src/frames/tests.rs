//! Tests of frames that arrive in parts, late, or oversized. The server is a buffer.

use futures_util::FutureExt as _;
use pgoutput_parser::{Column, Keepalive, Lsn, PgTimestamp, XLogData, encode};
use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

use super::*;

const LIMIT: Duration = Duration::from_secs(30);
const FRAME_BYTES_MAX: usize = 1 << 20;
const VALUE_BYTES_MAX: usize = 1 << 19;

/// Returns frames and the server's end of their connection.
fn stream(capacity: usize) -> (Frames<DuplexStream>, DuplexStream) {
    let (ours, theirs) = duplex(capacity);
    let settings = StreamSettings {
        frame_bytes_max: FRAME_BYTES_MAX,
        value_bytes_max: VALUE_BYTES_MAX,
        silence_limit: LIMIT,
        ..StreamSettings::default()
    };
    (Frames::new(ours, ReceiveBuffer::new(FRAME_BYTES_MAX), &settings), theirs)
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[tag], length.as_slice(), body].concat()
}

fn keepalive(lsn: u64) -> Vec<u8> {
    let keepalive = Keepalive {
        wal_end: Lsn::new(lsn),
        sent_at: PgTimestamp::from_micros(0),
        reply_requested: false,
    };
    message(b'd', &encode::keepalive(&keepalive))
}

fn row(lsn: u64, data: &[u8]) -> Vec<u8> {
    let (wal_start, sent_at) = (Lsn::new(lsn), PgTimestamp::from_micros(0));
    message(b'd', &encode::xlog_data(&XLogData { wal_start, wal_end: wal_start, sent_at, data }))
}

/// Encodes the fields of an error or a notice (manual: "Error and Notice Message Fields").
fn fields(tag: u8, fields: &[(u8, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (field, text) in fields {
        body.push(*field);
        body.extend_from_slice(text.as_bytes());
        body.push(0);
    }
    body.push(0);
    message(tag, &body)
}

fn position(frame: Frame<'_>) -> (u64, usize) {
    match frame {
        Frame::XLogData(frame) => (frame.wal_start.as_u64(), frame.data.len()),
        Frame::Keepalive(keepalive) => (keepalive.wal_end.as_u64(), 0),
    }
}

/// Returns the result of `next` for these bytes, followed by the end of the connection.
async fn answer_to(bytes: &[u8]) -> Result<(u64, usize), PgError> {
    let (mut frames, mut server) = stream(1 << 20);
    server.write_all(bytes).await.unwrap();
    drop(server);
    frames.next().await.map(position)
}

#[tokio::test(start_paused = true)]
async fn next_loses_nothing_when_it_is_dropped_at_any_byte() {
    let (mut frames, mut server) = stream(1 << 20);
    let large = vec![7; 5_000];
    let bytes = [row(1, &large), keepalive(2), row(3, b"x"), message(b'S', b"a\0b\0"), row(4, b"")];
    let mut seen = Vec::new();
    for byte in bytes.concat() {
        // Poll once and drop the future before every byte.
        if let Some(frame) = frames.next().now_or_never() {
            seen.push(position(frame.unwrap()));
        }
        server.write_all(&[byte]).await.unwrap();
    }
    seen.push(position(frames.next().await.unwrap()));
    assert_eq!(seen, [(1, 5_000), (2, 0), (3, 1), (4, 0)]);
}

#[tokio::test(start_paused = true)]
async fn buffered_returns_complete_frames_and_does_no_io() {
    let (mut frames, mut server) = stream(1 << 20);
    let last = row(3, b"abc");
    let (head, tail) = last.split_at(9);
    server.write_all(&[row(1, b""), row(2, b"b"), head.to_vec()].concat()).await.unwrap();
    assert_eq!(frames.buffered().unwrap(), None);
    assert_eq!(position(frames.next().await.unwrap()), (1, 0));
    server.write_all(tail).await.unwrap();
    assert_eq!(frames.buffered().unwrap().map(position), Some((2, 1)));
    assert_eq!(frames.buffered().unwrap(), None);
    assert_eq!(position(frames.next().await.unwrap()), (3, 3));
    assert!(frames.buffered_bytes() >= last.len());
}

#[tokio::test]
async fn a_skipped_publication_ends_the_stream_and_another_warning_does_not() {
    let text = "skipped loading publication \"p\"";
    let skipped = [
        (b'S', "WARNUNG"),
        (b'V', "WARNING"),
        (b'C', "55000"),
        (b'M', text),
        (b'R', "LoadPublications"),
    ];
    let error = answer_to(&fields(b'N', &skipped)).await.unwrap_err();
    let PgError::PublicationSkipped(notice) = &error else { panic!("{error}") };
    assert_eq!((notice.code.as_str(), notice.message.as_str()), ("55000", text));
    let harmless = fields(b'N', &[(b'V', "WARNING"), (b'C', "01000"), (b'M', "mind the gap")]);
    assert_eq!(answer_to(&[harmless, row(1, b"x")].concat()).await.unwrap(), (1, 1));
}

#[tokio::test]
async fn every_way_a_stream_ends_has_its_own_error() {
    let fatal = [(b'V', "FATAL"), (b'C', "57P01"), (b'M', "terminating connection")];
    let answered = answer_to(&fields(b'E', &fatal)).await.unwrap_err();
    assert_eq!(answered.server().unwrap().code, "57P01");
    let broken_off: fn(&PgError) -> bool = |error| matches!(error, PgError::Disconnected);
    let ended: fn(&PgError) -> bool = |error| matches!(error, PgError::EndedByServer);
    let garbled: fn(&PgError) -> bool = |error| {
        matches!(error, PgError::Protocol { .. } | PgError::Io { .. } | PgError::Disconnected)
    };
    let no_frame: fn(&PgError) -> bool = |error| matches!(error, PgError::Frame(_));
    let too_large: fn(&PgError) -> bool = |error| matches!(error, PgError::MessageTooLarge { .. });
    for (bytes, is_expected) in [
        (message(b'c', &[]), ended),
        (message(b'C', b"COPY 0\0"), ended),
        (Vec::new(), broken_off),
        (row(1, b"cut short")[..12].to_vec(), broken_off),
        (message(b'T', &[0, 0]), garbled),
        (message(b'E', b"C"), garbled),
        (message(b'd', b"?"), no_frame),
        (vec![b'd', 0x7F, 0xFF, 0xFF, 0xFF], too_large),
    ] {
        let error = answer_to(&bytes).await.unwrap_err();
        assert!(is_expected(&error), "{bytes:?}: {error}");
    }
}

/// Returns an Insert whose second value has `bytes` bytes, and the condensed Insert.
fn large_insert(bytes: usize) -> (Vec<u8>, Vec<u8>) {
    let value = vec![b'x'; bytes];
    let [small, large] = [Column::Text(b"7"), Column::Text(&value)];
    let left_out = Column::TooLarge { bytes };
    (
        row(1, &encode::insert(9, &[small, large, small])),
        encode::insert(9, &[small, left_out, small]),
    )
}

fn data(frame: Frame<'_>) -> Vec<u8> {
    match frame {
        Frame::XLogData(frame) => frame.data.to_vec(),
        Frame::Keepalive(_) => panic!("a keepalive"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_beyond_the_limit_is_read_past_in_bounded_memory_and_its_neighbours_come_whole() {
    let (large, condensed) = large_insert(20 << 20);
    let (mut frames, mut server) = stream(1 << 16);
    let bytes = [row(1, b"before"), large.clone(), row(3, b"after"), large, keepalive(5)].concat();
    let sending = async { server.write_all(&bytes).await.unwrap() };
    let receiving = async {
        for expected in [b"before".to_vec(), condensed.clone(), b"after".to_vec(), condensed] {
            assert_eq!(data(frames.next().await.unwrap()), expected);
            assert!(frames.buffered_bytes() < 1 << 20, "{}", frames.buffered_bytes());
        }
        assert_eq!(position(frames.next().await.unwrap()), (5, 0));
    };
    tokio::join!(sending, receiving);
}

#[tokio::test(start_paused = true)]
async fn a_large_row_loses_nothing_when_reading_is_dropped_between_its_parts() {
    let (large, condensed) = large_insert(FRAME_BYTES_MAX);
    let (mut frames, mut server) = stream(4 << 20);
    let mut seen = Vec::new();
    for part in [large, row(2, b"after")].concat().chunks(997) {
        if let Some(frame) = frames.next().now_or_never() {
            seen.push(data(frame.unwrap()));
        }
        server.write_all(part).await.unwrap();
    }
    while seen.len() < 2 {
        seen.push(data(frames.next().await.unwrap()));
    }
    assert_eq!(seen, [condensed, b"after".to_vec()]);
}

/// The loop that reads also sends status updates (I5).
#[tokio::test(start_paused = true)]
async fn reading_past_a_large_row_lets_others_run_though_all_of_it_is_there() {
    let (large, condensed) = large_insert(48 << 20);
    let (mut frames, mut server) = stream(64 << 20);
    server.write_all(&large).await.unwrap();
    tokio::task::yield_now().await;
    assert!(frames.next().now_or_never().is_none());
    assert_eq!(data(frames.next().await.unwrap()), condensed);
}

#[tokio::test(start_paused = true)]
async fn a_stream_can_be_ended_within_a_large_row() {
    let (large, _) = large_insert(4 << 20);
    let (mut frames, mut server) = stream(16 << 20);
    let (head, tail) = large.split_at(2 << 20);
    server.write_all(head).await.unwrap();
    assert!(frames.next().now_or_never().is_none());
    server.write_all(tail).await.unwrap();
    server
        .write_all(&[large.clone(), message(b'c', &[]), message(b'Z', b"I")].concat())
        .await
        .unwrap();
    frames.discard().await.unwrap();
    assert!(frames.buffered_bytes() <= 1 << 20);
}

#[tokio::test(start_paused = true)]
async fn a_large_message_that_is_no_row_ends_the_stream() {
    let (mut frames, mut server) = stream(4 << 20);
    server.write_all(&row(1, &vec![b'M'; 2 << 20])).await.unwrap();
    let error = frames.next().await.unwrap_err();
    assert!(matches!(error, PgError::Frame(_)), "{error}");
    assert!(error.to_string().len() < 1_000);
}

#[tokio::test(start_paused = true)]
async fn silence_is_an_error_only_after_the_last_byte_is_old_enough() {
    let (mut frames, mut server) = stream(1 << 20);
    for lsn in 1..5 {
        tokio::time::sleep(LIMIT * 2 / 3).await;
        server.write_all(&keepalive(lsn)).await.unwrap();
        assert_eq!(position(frames.next().await.unwrap()), (lsn, 0));
    }
    let since = Instant::now();
    let error = frames.next().await.unwrap_err();
    assert!(matches!(error, PgError::Silent { .. }), "{error}");
    assert_eq!(since.elapsed(), LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_long_time_without_polling_is_no_silence() {
    let (mut frames, mut server) = stream(1 << 20);
    assert!(frames.next().now_or_never().is_none());
    server.write_all(&keepalive(1)).await.unwrap();
    tokio::time::sleep(LIMIT * 10).await;
    assert_eq!(position(frames.next().await.unwrap()), (1, 0));
}
