//! The single memory budget (I6): unsettled rows, reloaded parked rows, outstanding requests.

use std::num::NonZeroU32;

/// Limits on the rows in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetLimits {
    /// Bytes of memory, `--max-in-flight-bytes`.
    pub bytes: usize,
    /// Rows. This number fills all outstanding requests several times over. More rows would only
    /// lengthen the replay after a crash.
    pub rows: usize,
}

impl BudgetLimits {
    /// The default limit of rows in flight.
    pub const ROWS: usize = 20_000;

    /// Limits for a budget of `bytes`.
    #[must_use]
    pub const fn of_bytes(bytes: usize) -> Self {
        Self { bytes, rows: Self::ROWS }
    }

    /// The share that failing rows may use: a quarter.
    #[must_use]
    pub const fn failing_share(self) -> Self {
        Self { bytes: self.bytes / 4, rows: self.rows / 4 }
    }
}

/// The rows and bytes in flight, against their limits.
///
/// An eighth is reserved for rows reloaded from dispatch state. Otherwise a long backlog on the
/// slot would leave no memory for parked keys.
#[derive(Debug)]
pub struct Budget {
    limits: BudgetLimits,
    bytes: usize,
    rows: usize,
    /// Bytes used outside of rows. They reduce the space for reading.
    beside: usize,
    /// The limit of rows whose keys are not held up.
    read_ahead: usize,
    /// Rows of keys that are held up.
    held_up: usize,
}

impl Budget {
    /// Creates an empty budget.
    #[must_use]
    pub const fn new(limits: BudgetLimits) -> Self {
        Self { limits, bytes: 0, rows: 0, beside: 0, read_ahead: limits.rows, held_up: 0 }
    }

    /// Limits the read-ahead to a fifth of a second's rows at this rate, and at least 10. The rate
    /// is spent on the rows in flight in any order of keys, so a crash may repeat them all. Rows of
    /// keys that are held up do not count, because the rate is not spent on them.
    #[must_use]
    pub fn at_rate(self, rows_per_second: NonZeroU32) -> Self {
        let rows = usize::try_from(rows_per_second.get() / 5).unwrap_or(usize::MAX).max(10);
        Self { read_ahead: self.limits.rows.min(rows), ..self }
    }

    /// Whether another row may be read from the slot.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.bytes < self.for_reading()
            && self.rows < self.limits.rows
            && self.rows.saturating_sub(self.held_up) < self.read_ahead
    }

    /// Whether the rows fill the read-ahead of a limited rate, unless some of their keys are held
    /// up.
    pub(crate) const fn is_read_ahead(&self) -> bool {
        self.read_ahead < self.limits.rows && self.rows >= self.read_ahead
    }

    /// The row bytes below which more rows may be read.
    const fn for_reading(&self) -> usize {
        let readable = self.limits.bytes - self.limits.bytes / 8;
        // Half always remains for reading. Otherwise memory outside of rows could block all
        // progress.
        let beside = if self.beside < readable / 2 { self.beside } else { readable / 2 };
        readable - beside
    }

    /// The share that failing rows may use, once memory is so scarce that they obstruct others.
    #[must_use]
    pub fn failing_share(&self) -> Option<BudgetLimits> {
        // With nothing outside of rows, this is half of all. It must stay below the reading limit:
        // otherwise failing rows would fill that limit unnoticed.
        let many = self.for_reading() / 7 * 4;
        let is_scarce = self.bytes >= many || self.rows >= self.limits.rows / 2;
        is_scarce.then(|| self.limits.failing_share())
    }

    /// The number of bytes that may be reloaded from dispatch state now.
    #[must_use]
    pub const fn reload_capacity(&self) -> usize {
        let share = self.limits.bytes / 8;
        let left = self.limits.bytes.saturating_sub(self.bytes);
        if left < share { left } else { share }
    }

    /// Sets the memory outside of rows: the read buffer, and parked keys without a lane.
    pub const fn hold_beside(&mut self, bytes: usize) {
        self.beside = bytes;
    }

    /// Sets the number of rows whose keys are held up.
    pub const fn hold_up(&mut self, rows: usize) {
        self.held_up = rows;
    }

    /// Adds a row of `bytes`.
    pub const fn take(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.rows += 1;
    }

    /// Removes a row of `bytes`.
    ///
    /// # Panics
    ///
    /// I6: more bytes or rows are returned than were taken.
    pub fn release(&mut self, bytes: usize) {
        assert!(self.bytes >= bytes && self.rows > 0, "I6: {bytes} of {} returned", self.bytes);
        self.bytes -= bytes;
        self.rows -= 1;
    }

    /// Bytes in flight.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Rows in flight.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }
}
