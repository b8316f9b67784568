//! What the tracker says of itself, and the lies it does not take (I1). How far it lets the slot be
//! confirmed is in the model beside this.

use pgoutput_parser::{Lsn, PgTimestamp, encode};
use walrelay_core::{Ticket, Tracker};

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
        tracker.seal(encode::boundary(Lsn::new(end)));
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
    tracker.seal(encode::boundary(Lsn::new(10)));
    assert_eq!(state(&tracker), (false, false, false), "committed");
    tracker.settle(ticket);
    assert_eq!(state(&tracker), (false, true, true), "settled");
}

#[test]
fn a_watermark_is_written_as_postgres_writes_positions() {
    let mut tracker = Tracker::new();
    tracker.observe(encode::boundary(Lsn::new(0x16_B374_D848)));
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
    tracker.seal(encode::boundary(Lsn::new(10)));
    tracker.seal(encode::boundary(Lsn::new(20)));
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
    tracker.begin(committed_at(0));
    tracker.seal(encode::boundary(Lsn::new(10)));
}
