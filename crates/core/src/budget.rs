//! The one budget of memory (I6): rows read and not settled, parked rows reloaded, requests out.

/// Bounds of what may be in flight at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetLimits {
    /// Bytes of memory, `--max-in-flight-bytes`.
    pub bytes: usize,
    /// Rows. More would only lengthen the replay after a crash: this many fill every request that
    /// may be out several times over.
    pub rows: usize,
}

impl BudgetLimits {
    /// Rows in flight at once.
    pub const ROWS: usize = 20_000;

    /// Limits for a budget of `bytes`.
    #[must_use]
    pub const fn of_bytes(bytes: usize) -> Self {
        Self { bytes, rows: Self::ROWS }
    }

    /// What rows that fail may hold: a quarter.
    #[must_use]
    pub const fn failing_share(self) -> Self {
        Self { bytes: self.bytes / 4, rows: self.rows / 4 }
    }
}

/// What is in flight, against its limits.
///
/// An eighth is kept for rows reloaded from dispatch state: otherwise a long backlog on the slot
/// would leave parked keys no room for ever.
#[derive(Debug)]
pub struct Budget {
    limits: BudgetLimits,
    bytes: usize,
    rows: usize,
    /// Bytes beside the rows; they leave less room for reading.
    beside: usize,
}

impl Budget {
    /// An empty budget.
    #[must_use]
    pub const fn new(limits: BudgetLimits) -> Self {
        Self { limits, bytes: 0, rows: 0, beside: 0 }
    }

    /// Whether another row may be read from the slot.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.bytes < self.for_reading() && self.rows < self.limits.rows
    }

    /// Bytes that rows may hold and still more be read.
    const fn for_reading(&self) -> usize {
        let readable = self.limits.bytes - self.limits.bytes / 8;
        // Half stays for reading whatever is beside it: otherwise nothing would ever get less.
        let beside = if self.beside < readable / 2 { self.beside } else { readable / 2 };
        readable - beside
    }

    /// What failing rows may hold, once so little is left that they stand in the way of others.
    #[must_use]
    pub fn failing_share(&self) -> Option<BudgetLimits> {
        // Half of all when nothing is beside it. Never more than may be read: rows that fail would
        // fill that and be let alone.
        let many = self.for_reading() / 7 * 4;
        let is_scarce = self.bytes >= many || self.rows >= self.limits.rows / 2;
        is_scarce.then(|| self.limits.failing_share())
    }

    /// Bytes that may be reloaded from dispatch state now.
    #[must_use]
    pub const fn room_for_reload(&self) -> usize {
        let share = self.limits.bytes / 8;
        let left = self.limits.bytes.saturating_sub(self.bytes);
        if left < share { left } else { share }
    }

    /// What is held beside the rows: the read buffer, and parked keys that are known by name.
    pub const fn hold_beside(&mut self, bytes: usize) {
        self.beside = bytes;
    }

    /// Counts a row of `bytes` in.
    pub const fn take(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.rows += 1;
    }

    /// Counts a row of `bytes` out.
    ///
    /// # Panics
    ///
    /// I6: more is returned than was taken.
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
