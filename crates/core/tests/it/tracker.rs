//! The tracker's own reports, and the wrong calls that it rejects (I1). `tracker_model.rs` tests
//! the watermark.

use pgoutput_parser::{Lsn, PgTimestamp, encode};
use walrelay_core::{ContinuityProof, Ticket, Tracker};

fn committed_at(micros: i64) -> PgTimestamp {
    PgTimestamp::from_micros(micros)
}

#[test]
fn a_ticket_knows_when_its_transaction_was_committed() {
    let mut tracker = Tracker::new();
    let mut tickets = Vec::new();
    for (micros, end) in [(5, 10), (7, 20)] {
        tracker.begin(committed_at(micros));
        tickets.push(tracker.open());
        tracker.seal(encode::boundary(Lsn::new(end)), ContinuityProof::Unbroken);
    }
    let times: Vec<_> = tickets.iter().map(Ticket::committed_at).collect();
    assert_eq!(times, [committed_at(5), committed_at(7)]);
    tickets.into_iter().for_each(|ticket| tracker.settle(ticket));
    assert!(tracker.is_settled());
}

#[test]
fn it_knows_what_is_open_and_what_is_not_settled() {
    let mut tracker = Tracker::new();
    let state = |of: &Tracker| (of.has_open_transaction(), of.rows_are_settled(), of.is_settled());
    assert_eq!(state(&tracker), (false, true, true));
    tracker.begin(committed_at(0));
    assert_eq!(state(&tracker), (true, true, false), "begun");
    let ticket = tracker.open();
    assert_eq!(state(&tracker), (true, false, false), "a row is in flight");
    tracker.seal(encode::boundary(Lsn::new(10)), ContinuityProof::Unbroken);
    assert_eq!(state(&tracker), (false, false, false), "committed");
    tracker.settle(ticket);
    assert_eq!(state(&tracker), (false, true, true), "settled");
}

#[test]
fn a_watermark_is_written_as_postgres_writes_positions() {
    let mut tracker = Tracker::new();
    tracker.observe(encode::boundary(Lsn::new(0x16_B374_D848)));
    tracker.intact(Lsn::new(0x16_B374_D848));
    let watermark = tracker.watermark();
    assert_eq!(watermark.lsn(), Lsn::new(0x16_B374_D848));
    assert_eq!(format!("{watermark}"), "16/B374D848");
    assert_eq!(format!("{watermark:?}"), "16/B374D848");
}

#[test]
#[should_panic(expected = "I1: begun twice")]
fn a_transaction_within_another_is_a_lie() {
    let mut tracker = Tracker::new();
    tracker.begin(committed_at(0));
    tracker.begin(committed_at(0));
}

#[test]
#[should_panic(expected = "I1: a row outside a transaction")]
fn a_row_before_any_transaction_is_a_lie() {
    drop(Tracker::new().open());
}

#[test]
#[should_panic(expected = "without a transaction")]
fn a_commit_without_a_begin_is_a_lie() {
    let mut tracker = Tracker::new();
    tracker.begin(committed_at(0));
    tracker.seal(encode::boundary(Lsn::new(10)), ContinuityProof::Unbroken);
    tracker.seal(encode::boundary(Lsn::new(20)), ContinuityProof::Unbroken);
}

#[test]
#[should_panic(expected = "was settled before")]
fn a_ticket_of_a_row_that_this_tracker_does_not_wait_for_is_a_lie() {
    let mut other = Tracker::new();
    other.begin(committed_at(0));
    let ticket = other.open();
    let mut tracker = Tracker::new();
    tracker.begin(committed_at(0));
    tracker.settle(ticket);
}

#[test]
#[should_panic(expected = "I1: 0/A is behind 0/14")]
fn a_commit_behind_the_watermark_is_a_lie() {
    let mut tracker = Tracker::new();
    tracker.observe(encode::boundary(Lsn::new(20)));
    tracker.intact(Lsn::new(20));
    tracker.begin(committed_at(0));
    tracker.seal(encode::boundary(Lsn::new(10)), ContinuityProof::Unbroken);
}

#[test]
fn settled_neighbours_are_merged_once_there_are_many_spans() {
    let mut tracker = Tracker::merging(8);
    let held = transaction(&mut tracker, 1);
    let mut counts = Vec::new();
    for end in 2..1_000 {
        counts.push(tracker.spans());
        let ticket = transaction(&mut tracker, end);
        tracker.settle(ticket);
    }
    assert_eq!(counts[..8], [1, 2, 3, 4, 5, 6, 7, 8], "it would be work for nothing");
    assert!(counts.iter().all(|count| *count <= 8), "I6: {:?}", counts.iter().max());
    tracker.settle(held);
    assert!(tracker.is_settled());
    assert_eq!(tracker.watermark().lsn(), Lsn::new(999));
}

/// Adds a transaction with one row.
fn transaction(tracker: &mut Tracker, end: u64) -> Ticket {
    tracker.begin(committed_at(0));
    let ticket = tracker.open();
    tracker.seal(encode::boundary(Lsn::new(end)), ContinuityProof::Unbroken);
    ticket
}

#[test]
fn spans_that_cannot_be_merged_are_looked_through_again_when_there_are_twice_as_many() {
    let mut tracker = Tracker::merging(2);
    let mut held = Vec::new();
    for end in 1..=200 {
        let ticket = transaction(&mut tracker, end);
        match end % 2 {
            0 => tracker.settle(ticket),
            _ => held.push(ticket),
        }
    }
    assert_eq!(tracker.spans(), 200, "no two neighbours are settled");
    held.drain(1..).for_each(|ticket| tracker.settle(ticket));
    let mut most = 0;
    for end in 201..=300 {
        let ticket = transaction(&mut tracker, end);
        tracker.settle(ticket);
        most = most.max(tracker.spans());
    }
    assert_eq!(most, 256);
    held.into_iter().for_each(|ticket| tracker.settle(ticket));
    assert_eq!((tracker.spans(), tracker.watermark().lsn()), (0, Lsn::new(300)));
}

#[test]
fn rows_behind_merged_spans_are_settled_each_in_its_place() {
    let mut tracker = Tracker::merging(4);
    let first = transaction(&mut tracker, 1);
    for end in 2..=20 {
        let ticket = transaction(&mut tracker, end);
        tracker.settle(ticket);
    }
    let mut behind: Vec<_> = (21..=60).map(|end| transaction(&mut tracker, end)).collect();
    let late = behind.split_off(2);
    behind.into_iter().for_each(|ticket| tracker.settle(ticket));
    tracker.settle(first);
    assert_eq!(tracker.watermark().lsn(), Lsn::new(22));
    for (ticket, end) in late.into_iter().zip(23..) {
        tracker.settle(ticket);
        assert_eq!(tracker.watermark().lsn(), Lsn::new(end));
    }
}
