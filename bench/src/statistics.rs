//! Summarises figures over several rounds and formats them.

use crate::drain::{DrainResult, Round};
use crate::process::Usage;

/// Formats a number with three significant digits and a thousands separator. More digits would
/// suggest a precision that the measurement lacks.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value < 10.0 {
        return format!("{value:.2}");
    }
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the median. For an even count, the median is the mean of the two middle values.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count => f64::midpoint(values[(count - 1) / 2], values[count / 2]),
    }
}

/// Returns the smallest of all sorted values that `share` of them do not exceed.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let count = f64::from(u32::try_from(sorted.len()).unwrap_or(u32::MAX));
    let below = |index: usize| f64::from(u32::try_from(index + 1).unwrap_or(u32::MAX)) / count;
    let found = (0..sorted.len()).find(|index| below(*index) >= share);
    found.map_or(f64::NAN, |index| sorted[index])
}

/// Returns the highest peak memory of all runs. The maximum counts, because the memory bound is a
/// promise.
pub fn peak_mebibytes(usages: impl IntoIterator<Item = Usage>) -> f64 {
    let bytes = usages.into_iter().map(|usage| usage.peak_bytes).max().unwrap_or(0);
    f64::from(u32::try_from(bytes / 1024).unwrap_or(u32::MAX)) / 1024.0
}

/// Returns the CPU seconds per million rows as user time plus system time.
pub(crate) fn cpu_per_million(user_seconds: f64, system_seconds: f64, rows: u32) -> String {
    let of_a_million = |seconds: f64| number(seconds * 1e6 / f64::from(rows));
    format!("{} + {}", of_a_million(user_seconds), of_a_million(system_seconds))
}

impl DrainResult {
    fn of(&self, value: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(value))
    }

    pub(crate) fn rows_per_second(&self) -> f64 {
        self.of(|round| round.relay.measured.rows_per_second)
    }

    /// Returns the median of the per-round ratios, because outside load affects both sides of a
    /// round.
    pub(crate) fn share_of_recvlogical(&self) -> Option<f64> {
        let share = |round: &Round| {
            let recvlogical = round.recvlogical?;
            Some(round.relay.measured.rows_per_second / recvlogical.rows_per_second)
        };
        let shares: Option<Vec<f64>> = self.rounds.iter().map(share).collect();
        shares.map(|shares| median(shares.into_iter()))
    }

    pub(crate) fn user_seconds_per_million(&self) -> f64 {
        self.of(|round| round.relay.measured.usage.user_seconds) * self.millionth()
    }

    pub(crate) fn system_seconds_per_million(&self) -> f64 {
        self.of(|round| round.relay.measured.usage.system_seconds) * self.millionth()
    }

    pub(crate) fn cpu_seconds_per_million(&self) -> f64 {
        self.user_seconds_per_million() + self.system_seconds_per_million()
    }

    pub(crate) fn sink_seconds_per_million(&self) -> f64 {
        let cpu = |round: &Round| round.relay.sink.user_seconds + round.relay.sink.system_seconds;
        self.of(cpu) * self.millionth()
    }

    /// Returns the highest peak memory of all rounds.
    pub(crate) fn peak_mebibytes(&self) -> f64 {
        peak_mebibytes(self.rounds.iter().map(|round| round.relay.measured.usage))
    }

    fn millionth(&self) -> f64 {
        1e6 / f64::from(self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }

    #[test]
    fn a_percentile_is_a_value_that_occurred() {
        let sorted: Vec<f64> = (1..=1_000).map(f64::from).collect();
        let found = [0.5, 0.99, 0.999, 1.0].map(|share| percentile(&sorted, share));
        assert_eq!(found, [500.0, 990.0, 999.0, 1_000.0]);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn numbers_have_three_digits() {
        let texts = [0.614, 25.04, 117.3, 12_345.6, 1_234_567.0].map(number);
        assert_eq!(texts, ["0.61", "25.0", "117", "12,346", "1,234,567"]);
    }
}
