//! Tests of status updates on the wire: their times and their positions.

use futures_util::FutureExt as _;
use pgoutput_parser::encode;
use tokio::io::{AsyncReadExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use walrelay_core::Tracker;

use crate::receive_buffer::ReceiveBuffer;

use super::*;

/// Length of a status update on the wire: tag, length, payload.
const UPDATE_BYTES: usize = 1 + 4 + 34;

type Ours = (Feedback<WriteHalf<DuplexStream>>, ReadHalf<DuplexStream>);

/// Returns the feedback, its reading half, and the server's end.
fn stream(capacity: usize) -> (Ours, DuplexStream) {
    let (ours, server) = duplex(capacity);
    let (reader, writer) = split(ours);
    ((Feedback::new(writer, StreamSettings::default()), reader), server)
}

fn watermark(lsn: u64) -> Watermark {
    let mut tracker = Tracker::new();
    tracker.observe(encode::boundary(Lsn::new(lsn)));
    tracker.intact(Lsn::new(lsn));
    tracker.watermark()
}

fn keepalive(lsn: u64) -> Keepalive {
    let sent_at = PgTimestamp::from_micros(0);
    Keepalive { wal_end: Lsn::new(lsn), sent_at, reply_requested: false }
}

fn request(lsn: u64) -> Keepalive {
    Keepalive { reply_requested: true, ..keepalive(lsn) }
}

async fn read_update(server: &mut DuplexStream) -> StandbyStatusUpdate {
    let mut bytes = [0; UPDATE_BYTES];
    server.read_exact(&mut bytes).await.unwrap();
    assert_eq!(bytes[..5], [b'd', 0, 0, 0, 38]);
    StandbyStatusUpdate::parse(&bytes[5..]).unwrap()
}

async fn wait_until_due(feedback: &mut Feedback<impl AsyncWrite + Unpin>, lsn: u64) -> Duration {
    let since = Instant::now();
    feedback.due(watermark(lsn)).await;
    since.elapsed()
}

#[tokio::test(start_paused = true)]
async fn an_update_carries_the_watermark_in_all_fields_and_asks_for_an_answer() {
    let ((mut feedback, _reader), mut server) = stream(1_000);
    feedback.received(Lsn::new(9));
    feedback.confirm(watermark(7)).await.unwrap();
    let update = read_update(&mut server).await;
    assert_eq!([update.write, update.flush, update.apply], [Lsn::new(7); 3]);
    assert!(update.reply_requested);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "I1: watermark 0/8 is beyond 0/7")]
async fn a_watermark_beyond_what_was_received_stops_the_process() {
    let ((mut feedback, _reader), _server) = stream(1_000);
    feedback.note_keepalive(&keepalive(7));
    feedback.confirm(watermark(8)).await.ok();
}

#[tokio::test(start_paused = true)]
async fn news_is_due_after_a_second_and_no_news_after_ten() {
    let ((mut feedback, _reader), _server) = stream(1_000);
    feedback.received(Lsn::new(9));
    assert_eq!(wait_until_due(&mut feedback, 0).await, Duration::from_secs(10));
    feedback.confirm(watermark(1)).await.unwrap();
    assert_eq!(wait_until_due(&mut feedback, 2).await, Duration::from_secs(1));
    feedback.confirm(watermark(2)).await.unwrap();
    assert_eq!(wait_until_due(&mut feedback, 2).await, Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn the_first_news_of_a_session_is_due_at_once() {
    let ((mut feedback, _reader), _server) = stream(1_000);
    feedback.received(Lsn::new(9));
    feedback.confirm(watermark(0)).await.unwrap();
    assert_eq!(wait_until_due(&mut feedback, 5).await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn due_waits_for_the_same_moment_however_often_it_is_dropped() {
    let ((mut feedback, _reader), _server) = stream(1_000);
    let since = Instant::now();
    let mut drops = 0;
    while tokio::time::timeout(Duration::from_millis(300), feedback.due(watermark(0)))
        .await
        .is_err()
    {
        drops += 1;
    }
    assert_eq!((since.elapsed(), drops), (Duration::from_secs(10), 33));
}

#[tokio::test(start_paused = true)]
async fn a_request_makes_an_update_due_at_once() {
    let ((mut feedback, _reader), _server) = stream(1_000);
    feedback.note_keepalive(&request(5));
    assert_eq!(wait_until_due(&mut feedback, 0).await, Duration::ZERO);
    feedback.confirm(watermark(0)).await.unwrap();
    feedback.note_keepalive(&keepalive(5));
    assert_eq!(wait_until_due(&mut feedback, 0).await, Duration::from_secs(10));
    assert!(!feedback.server_wants_to_stop());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_shuts_down_is_answered_at_a_pace_and_noticed() {
    let ((mut feedback, _reader), _server) = stream(100_000);
    for count in 1..=SHUTDOWN_REQUESTS {
        assert!(!feedback.server_wants_to_stop(), "before number {count}");
        feedback.note_keepalive(&request(5));
        let pace = if count == 1 { Duration::ZERO } else { REPEATED_REQUEST_PACE };
        assert_eq!(wait_until_due(&mut feedback, 3).await, pace);
        feedback.confirm(watermark(3)).await.unwrap();
    }
    assert!(feedback.server_wants_to_stop());
    // The confirmation that the server waits for is due at once. After it the server has no reason
    // to wait.
    feedback.note_keepalive(&request(5));
    assert_eq!(wait_until_due(&mut feedback, 5).await, Duration::ZERO);
    feedback.confirm(watermark(5)).await.unwrap();
    assert!(!feedback.server_wants_to_stop());
}

#[tokio::test(start_paused = true)]
async fn requests_that_come_rarely_or_move_on_are_no_shutdown() {
    let ((mut feedback, _reader), _server) = stream(100_000);
    for lsn in 1..20 {
        feedback.note_keepalive(&request(lsn));
        assert!(!feedback.server_wants_to_stop());
    }
    for _ in 1..20 {
        tokio::time::sleep(REPEATED_REQUEST_GAP_MAX * 2).await;
        feedback.note_keepalive(&request(20));
        assert!(!feedback.server_wants_to_stop());
    }
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_dropped_half_way_never_leaves_half_a_message() {
    let ((mut feedback, _reader), mut server) = stream(10);
    feedback.received(Lsn::new(2));
    assert!(feedback.confirm(watermark(1)).now_or_never().is_none());
    let (confirmed, updates) = tokio::join!(feedback.confirm(watermark(2)), async {
        [read_update(&mut server).await.flush, read_update(&mut server).await.flush]
    });
    confirmed.unwrap();
    assert_eq!(updates, [Lsn::new(1), Lsn::new(2)]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_nothing_in_is_given_up() {
    let ((mut feedback, _reader), _server) = stream(10);
    let error = feedback.confirm(watermark(0)).await.unwrap_err();
    assert!(matches!(error, PgError::WriteTimeout { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn finish_confirms_ends_the_copy_and_says_goodbye() {
    let ((mut feedback, reader), mut server) = stream(100_000);
    feedback.received(Lsn::new(7));
    let frames = Frames::new(reader, ReceiveBuffer::new(1_000), &StreamSettings::default());
    let script = async {
        assert_eq!(read_update(&mut server).await.flush, Lsn::new(7));
        let mut copy_done = [0; 5];
        server.read_exact(&mut copy_done).await.unwrap();
        assert_eq!(copy_done, COPY_DONE);
        // A row in flight, CopyDone, CommandComplete twice, ReadyForQuery.
        server.write_all(b"d\0\0\0\x06ww").await.unwrap();
        server.write_all(b"c\0\0\0\x04C\0\0\0\x0bCOPY 0\0C\0\0\0\x0bSTART1\0").await.unwrap();
        server.write_all(b"Z\0\0\0\x05I").await.unwrap();
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, TERMINATE);
    };
    let (finished, ()) = tokio::join!(feedback.finish(frames, watermark(7)), script);
    finished.unwrap();
}

#[tokio::test(start_paused = true)]
async fn finish_does_not_wait_for_ever() {
    let ((feedback, reader), _server) = stream(100_000);
    let frames = Frames::new(reader, ReceiveBuffer::new(1_000), &StreamSettings::default());
    let since = Instant::now();
    let error = feedback.finish(frames, watermark(0)).await.unwrap_err();
    assert!(matches!(error, PgError::FinishTimeout { .. }), "{error}");
    assert_eq!(since.elapsed(), Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn megabytes_of_log_are_confirmed_without_waiting_for_the_interval() {
    let ((mut feedback, _reader), _server) = stream(1_000);
    feedback.received(Lsn::new(1 << 40));
    feedback.confirm(watermark(1)).await.unwrap();
    assert_eq!(wait_until_due(&mut feedback, UNCONFIRMED_MAX).await, Duration::from_secs(1));
    feedback.confirm(watermark(UNCONFIRMED_MAX)).await.unwrap();
    assert_eq!(wait_until_due(&mut feedback, 2 * UNCONFIRMED_MAX).await, Duration::ZERO);
}
