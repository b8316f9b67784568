//! The shares of the budget: the limit for rows from the slot, and the reserve for dispatch state.

use std::num::NonZeroU32;

use walrelay_core::{Budget, BudgetLimits};

/// An eighth is 100 bytes, with a remainder.
const LIMITS: BudgetLimits = BudgetLimits { bytes: 804, rows: 3 };

#[test]
fn the_slot_may_fill_all_but_an_eighth_of_the_bytes() {
    let mut budget = Budget::new(LIMITS);
    assert!(budget.has_room());
    budget.take(703);
    assert!(budget.has_room(), "a byte is left");
    budget.take(1);
    assert!(!budget.has_room());
    budget.release(1);
    assert!(budget.has_room());
}

#[test]
fn rows_are_bounded_however_small_they_are() {
    let mut budget = Budget::new(LIMITS);
    budget.take(0);
    budget.take(0);
    assert!(budget.has_room());
    budget.take(0);
    assert!(!budget.has_room());
    budget.release(0);
    assert!(budget.has_room());
}

#[test]
fn a_reload_gets_an_eighth_or_what_is_left() {
    let mut budget = Budget::new(LIMITS);
    assert_eq!(budget.reload_capacity(), 100);
    budget.take(703);
    assert_eq!(budget.reload_capacity(), 100);
    budget.take(2);
    assert_eq!(budget.reload_capacity(), 99);
    budget.take(600);
    assert_eq!(budget.reload_capacity(), 0, "the last row may go beyond the limit");
}

#[test]
fn what_is_counted_out_was_counted_in() {
    let mut budget = Budget::new(LIMITS);
    budget.take(30);
    budget.take(12);
    assert_eq!((budget.bytes(), budget.rows()), (42, 2));
    budget.release(12);
    assert_eq!((budget.bytes(), budget.rows()), (30, 1));
    budget.release(30);
    assert_eq!((budget.bytes(), budget.rows()), (0, 0));
}

#[test]
#[should_panic(expected = "I6: 11 of 10 returned")]
fn more_bytes_than_were_taken_are_not_taken_back() {
    let mut budget = Budget::new(LIMITS);
    budget.take(10);
    budget.release(11);
}

#[test]
#[should_panic(expected = "I6: 0 of 0 returned")]
fn more_rows_than_were_taken_are_not_taken_back() {
    Budget::new(LIMITS).release(0);
}

#[test]
fn a_budget_of_bytes_has_as_many_rows_as_fill_every_request() {
    let limits = BudgetLimits::of_bytes(64 << 20);
    assert_eq!((limits.bytes, limits.rows), (64 << 20, 20_000));
}

#[test]
fn what_is_held_beside_the_rows_takes_at_most_half_of_their_room() {
    let mut budget = Budget::new(LIMITS);
    budget.hold_beside(300);
    budget.take(403);
    assert!(budget.has_room(), "of 704 bytes 300 are taken beside");
    budget.take(1);
    assert!(!budget.has_room());
    budget.hold_beside(352);
    budget.release(53);
    assert!(budget.has_room(), "351 of 352 bytes");
    budget.hold_beside(1_000);
    assert!(budget.has_room(), "half stays for reading");
    budget.release(351);
    budget.take(352);
    assert!(!budget.has_room());
}

#[test]
fn failing_rows_have_a_share_of_a_quarter_once_half_is_in_flight() {
    let limits = BudgetLimits { bytes: 800, rows: 12 };
    let quarter = BudgetLimits { bytes: 200, rows: 3 };
    let mut by_bytes = Budget::new(limits);
    by_bytes.take(399);
    assert_eq!(by_bytes.failing_share(), None, "nothing is scarce");
    by_bytes.take(1);
    assert_eq!(by_bytes.failing_share(), Some(quarter));
    let mut by_rows = Budget::new(limits);
    (0..5).for_each(|_| by_rows.take(0));
    assert_eq!(by_rows.failing_share(), None, "nothing is scarce");
    by_rows.take(0);
    assert_eq!(by_rows.failing_share(), Some(quarter));
}

#[test]
fn less_is_scarce_when_more_is_held_beside_the_rows() {
    let mut budget = Budget::new(BudgetLimits { bytes: 800, rows: 12 });
    budget.hold_beside(1_000);
    budget.take(199);
    assert_eq!(budget.failing_share(), None, "nothing is scarce");
    budget.take(1);
    assert!(budget.failing_share().is_some() && budget.has_room(), "before nothing is read");
}

fn fill(budget: &mut Budget) -> usize {
    while budget.has_room() {
        budget.take(0);
    }
    budget.rows()
}

#[test]
fn at_a_limited_rate_a_fifth_of_a_second_is_read_ahead_and_ten_rows_at_least() {
    let rows = |rate| {
        let rate = NonZeroU32::new(rate).expect("not zero");
        fill(&mut Budget::new(BudgetLimits::of_bytes(1_000)).at_rate(rate))
    };
    assert_eq!([rows(1), rows(500), rows(1_000_000)], [10, 100, BudgetLimits::ROWS]);
}

#[test]
fn at_a_limited_rate_rows_of_keys_that_are_held_up_leave_the_read_ahead_to_others() {
    let rate = NonZeroU32::new(500).expect("not zero");
    let mut budget = Budget::new(BudgetLimits::of_bytes(1_000)).at_rate(rate);
    assert_eq!(fill(&mut budget), 100);
    budget.hold_up(70);
    assert_eq!(fill(&mut budget), 170);
    budget.hold_up(BudgetLimits::ROWS);
    assert_eq!(fill(&mut budget), BudgetLimits::ROWS, "memory stays bounded");
    budget.hold_up(0);
    assert!(!budget.has_room());
}
