//! The tracker against a naive model: a list of transactions, scanned from the start each time.

use pgoutput_parser::{Lsn, PgTimestamp, encode};
use proptest::prelude::*;
use walrelay_core::{Ticket, Tracker};

#[derive(Debug, Clone)]
enum Step {
    Begin,
    Row,
    Commit,
    Keepalive,
    /// Settles the unsettled row at this place, counted round.
    Settle(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::Begin),
        6 => Just(Step::Row),
        3 => Just(Step::Commit),
        2 => Just(Step::Keepalive),
        6 => (0usize..64).prop_map(Step::Settle),
    ];
    proptest::collection::vec(step, 0..200)
}

#[derive(Default)]
struct Model {
    /// Rows unsettled and, once committed, the end, of every transaction ever seen.
    transactions: Vec<(usize, Option<u64>)>,
    keepalive: u64,
    told: u64,
}

impl Model {
    fn watermark(&mut self) -> u64 {
        let settled = |t: &&(usize, Option<u64>)| t.0 == 0 && t.1.is_some();
        let prefix: Vec<_> = self.transactions.iter().take_while(settled).collect();
        let mut watermark = prefix.iter().filter_map(|t| t.1).max().unwrap_or(0);
        if prefix.len() == self.transactions.len() {
            watermark = watermark.max(self.keepalive);
        }
        self.told = self.told.max(watermark);
        self.told
    }
}

proptest! {
    #[test]
    fn watermark_matches_the_naive_model(steps in steps(), merge_min in 1usize..16) {
        let mut tracker = Tracker::merging(merge_min);
        let mut model = Model::default();
        let mut tickets: Vec<(usize, Ticket)> = Vec::new();
        let mut open = false;
        let mut wal = 1_000;
        for step in steps {
            wal += 10;
            match step {
                Step::Begin if !open => {
                    open = true;
                    tracker.begin(PgTimestamp::from_micros(0));
                    model.transactions.push((0, None));
                }
                Step::Row if open => {
                    let last = model.transactions.len() - 1;
                    model.transactions[last].0 += 1;
                    tickets.push((last, tracker.open()));
                }
                Step::Commit if open => {
                    open = false;
                    tracker.seal(encode::boundary(Lsn::new(wal + 5)));
                    if let Some(last) = model.transactions.last_mut() {
                        last.1 = Some(wal + 5);
                    }
                }
                Step::Keepalive if !open => {
                    tracker.observe(encode::boundary(Lsn::new(wal)));
                    model.keepalive = wal;
                }
                Step::Settle(place) if !tickets.is_empty() => {
                    let (transaction, ticket) = tickets.swap_remove(place % tickets.len());
                    model.transactions[transaction].0 -= 1;
                    tracker.settle(ticket);
                }
                Step::Begin | Step::Row | Step::Commit | Step::Keepalive | Step::Settle(_) => {}
            }
            prop_assert_eq!(tracker.watermark().lsn().as_u64(), model.watermark());
        }
    }
}

#[test]
fn transactions_behind_a_row_that_does_not_settle_take_no_memory() {
    let mut tracker = Tracker::new();
    let transaction = |all: &mut Tracker, end: u64| {
        all.begin(PgTimestamp::from_micros(0));
        let ticket = all.open();
        all.seal(encode::boundary(Lsn::new(end)));
        ticket
    };
    let stuck = transaction(&mut tracker, 1);
    for end in 2..500_000 {
        let ticket = transaction(&mut tracker, end);
        tracker.settle(ticket);
        assert!(tracker.spans() <= 4_097, "I6: {} spans for one row", tracker.spans());
    }
    assert_eq!(tracker.watermark().lsn(), Lsn::ZERO);
    tracker.settle(stuck);
    assert_eq!(tracker.watermark().lsn(), Lsn::new(499_999));
}
