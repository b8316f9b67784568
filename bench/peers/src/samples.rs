//! The progress of a drain, and the rates that follow from it.

use walrelay_bench::failure::Failure;
use walrelay_bench::process::Usage;
use walrelay_bench::statistics;

/// A count at a time.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Seconds since the start of the process.
    at: f64,
    count: u32,
}

/// The counts of a process, one entry per change.
#[derive(Debug, Default)]
pub(super) struct Samples(Vec<Sample>);

/// The figures of a process that drains a backlog.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rates {
    pub(super) count: u32,
    /// From the start of the process.
    pub(super) per_second: f64,
    /// From the time when half of `count` was there.
    pub(super) second_half_per_second: f64,
    pub(super) first_seconds: f64,
    pub(super) cpu_seconds_per_million: f64,
    pub(super) peak_mebibytes: f64,
}

impl Samples {
    /// Notes a count, if it is higher than the last one.
    pub(super) fn note(&mut self, at: f64, count: u32) {
        if self.0.last().map_or(count > 0, |last| count > last.count) {
            self.0.push(Sample { at, count });
        }
    }

    /// Returns the rates, or an error if nothing was counted.
    pub(super) fn rates(&self, usage: Usage) -> Result<Rates, Failure> {
        let (Some(first), Some(last)) = (self.0.first(), self.0.last()) else {
            return Err("nothing arrived in time".into());
        };
        let half = self.0.iter().find(|sample| sample.count >= last.count / 2).unwrap_or(first);
        let count = f64::from(last.count);
        Ok(Rates {
            count: last.count,
            per_second: count / last.at,
            second_half_per_second: f64::from(last.count - half.count) / (last.at - half.at),
            first_seconds: first.at,
            cpu_seconds_per_million: usage.cpu_seconds() * 1e6 / count,
            peak_mebibytes: statistics::peak_mebibytes([usage]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_counted_from_the_start_and_from_the_middle() {
        let mut samples = Samples::default();
        for (at, count) in [(1.0, 0), (2.0, 10), (2.5, 10), (3.0, 500), (4.0, 1_000)] {
            samples.note(at, count);
        }
        let usage = Usage { user_seconds: 1.5, system_seconds: 0.5, peak_bytes: 3 << 20 };
        let expected = Rates {
            count: 1_000,
            per_second: 250.0,
            second_half_per_second: 500.0,
            first_seconds: 2.0,
            cpu_seconds_per_million: 2_000.0,
            peak_mebibytes: 3.0,
        };
        assert_eq!(samples.rates(usage).unwrap(), expected);
    }

    #[test]
    fn a_process_that_does_nothing_has_no_rate() {
        assert!(Samples::default().rates(Usage::default()).is_err());
    }
}
