//! Checks the tracker against a naive model: a list of transactions, scanned from the start each
//! time.

use pgoutput_parser::{Lsn, PgTimestamp, encode};
use proptest::prelude::*;
use walrelay_core::{ContinuityProof, Ticket, Tracker};

#[derive(Debug, Clone)]
enum Step {
    Begin,
    Row,
    Commit,
    /// Commits without evidence that the server skipped no row.
    CommitInDoubt,
    Keepalive,
    /// The publication is intact up to this many bytes before the end of the WAL.
    Intact(u64),
    /// Settles the unsettled row at this index, modulo their number.
    Settle(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::Begin),
        6 => Just(Step::Row),
        3 => Just(Step::Commit),
        1 => Just(Step::CommitInDoubt),
        2 => Just(Step::Keepalive),
        2 => (0u64..40).prop_map(Step::Intact),
        6 => (0usize..64).prop_map(Step::Settle),
    ];
    proptest::collection::vec(step, 0..200)
}

#[derive(Default)]
struct Model {
    transactions: Vec<Transaction>,
    keepalive: u64,
    intact: u64,
    told: u64,
}

/// Any transaction seen so far.
struct Transaction {
    unsettled: usize,
    /// `None` until the commit.
    end: Option<u64>,
    is_in_doubt: bool,
}

impl Model {
    fn watermark(&mut self) -> u64 {
        let intact = self.intact;
        let is_known = |t: &Transaction| !t.is_in_doubt || t.end.is_some_and(|end| end <= intact);
        let settled = |t: &&Transaction| t.unsettled == 0 && t.end.is_some() && is_known(t);
        let prefix: Vec<_> = self.transactions.iter().take_while(settled).collect();
        let mut watermark = prefix.iter().filter_map(|t| t.end).max().unwrap_or(0);
        if prefix.len() == self.transactions.len() {
            watermark = watermark.max(self.keepalive.min(intact));
        }
        self.told = self.told.max(watermark);
        self.told
    }
}

/// More spans than any of these tests has.
const NEVER: usize = 1_000;

proptest! {
    #[test]
    fn watermark_matches_the_naive_model(
        steps in steps(),
        merge_min in prop_oneof![1usize..16, Just(NEVER)],
    ) {
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
                    let begun = Transaction { unsettled: 0, end: None, is_in_doubt: false };
                    model.transactions.push(begun);
                }
                Step::Row if open => {
                    let last = model.transactions.len() - 1;
                    model.transactions[last].unsettled += 1;
                    tickets.push((last, tracker.open()));
                }
                Step::Commit | Step::CommitInDoubt if open => {
                    open = false;
                    let is_in_doubt = matches!(step, Step::CommitInDoubt);
                    let evidence = if is_in_doubt { ContinuityProof::None } else { ContinuityProof::Unbroken };
                    tracker.seal(encode::boundary(Lsn::new(wal + 5)), evidence);
                    if let Some(last) = model.transactions.last_mut() {
                        last.end = Some(wal + 5);
                        last.is_in_doubt = is_in_doubt;
                    }
                }
                Step::Intact(behind) => {
                    tracker.intact(Lsn::new(wal - behind));
                    model.intact = model.intact.max(wal - behind);
                }
                Step::Keepalive if !open => {
                    tracker.observe(encode::boundary(Lsn::new(wal)));
                    model.keepalive = wal;
                }
                Step::Settle(place) if !tickets.is_empty() => {
                    let (transaction, ticket) = tickets.swap_remove(place % tickets.len());
                    model.transactions[transaction].unsettled -= 1;
                    tracker.settle(ticket);
                }
                Step::Begin
                | Step::Row
                | Step::Commit
                | Step::CommitInDoubt
                | Step::Keepalive
                | Step::Settle(_) => {}
            }
            let (watermark, expected) = (tracker.watermark().lsn().as_u64(), model.watermark());
            prop_assert!(watermark <= expected);
            // A merged span waits for the same evidence as the last of its transactions.
            let is_in_doubt = model.transactions.iter().any(|t| t.is_in_doubt);
            prop_assert!(watermark == expected || is_in_doubt && merge_min < NEVER);
        }
    }
}

fn transaction(tracker: &mut Tracker, end: u64, evidence: ContinuityProof) -> Ticket {
    tracker.begin(PgTimestamp::from_micros(0));
    let ticket = tracker.open();
    tracker.seal(encode::boundary(Lsn::new(end)), evidence);
    ticket
}

#[test]
fn a_position_the_server_may_have_passed_over_rows_before_is_not_confirmed() {
    let mut tracker = Tracker::new();
    tracker.observe(encode::boundary(Lsn::new(10)));
    assert_eq!(tracker.watermark().lsn(), Lsn::ZERO);
    tracker.intact(Lsn::new(7));
    assert_eq!(tracker.watermark().lsn(), Lsn::new(7));
    let first = transaction(&mut tracker, 20, ContinuityProof::None);
    let second = transaction(&mut tracker, 30, ContinuityProof::Unbroken);
    tracker.settle(first);
    tracker.settle(second);
    tracker.intact(Lsn::new(19));
    assert_eq!(tracker.watermark().lsn(), Lsn::new(7), "a table may have been left out before 20");
    assert!(tracker.needs_publication_check());
    tracker.intact(Lsn::new(20));
    assert_eq!(tracker.watermark().lsn(), Lsn::new(30));
    assert!(!tracker.needs_publication_check() && tracker.is_settled());
    tracker.observe(encode::boundary(Lsn::new(40)));
    assert!(tracker.needs_publication_check());
    assert_eq!(tracker.watermark().lsn(), Lsn::new(30));
}

#[test]
fn transactions_behind_a_row_that_does_not_settle_take_no_memory() {
    let mut tracker = Tracker::new();
    let stuck = transaction(&mut tracker, 1, ContinuityProof::Unbroken);
    for end in 2..500_000 {
        let evidence = if end % 2 == 0 { ContinuityProof::None } else { ContinuityProof::Unbroken };
        let ticket = transaction(&mut tracker, end, evidence);
        tracker.settle(ticket);
        assert!(tracker.spans() <= 4_097, "I6: {} spans for one row", tracker.spans());
    }
    assert_eq!(tracker.watermark().lsn(), Lsn::ZERO);
    tracker.settle(stuck);
    tracker.intact(Lsn::new(500_000));
    assert_eq!(tracker.watermark().lsn(), Lsn::new(499_999));
}
