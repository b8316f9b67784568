//! The speed to reach, and whether it was.

use serde::Serialize;

use crate::drain::{Drained, Round};
use crate::live::Live;
use crate::suite::{
    BARE, FAR_AWAY, HOT_KEYS, MANY_KEYS, OFFICIAL, ONE_TRANSACTION, Results, SINGLE_KEY, STEADY,
};

const MIB: f64 = 1024.0 * 1024.0;

/// A target and what was measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verdict {
    pub(crate) workload: &'static str,
    pub(crate) target: String,
    pub(crate) measured: String,
    pub(crate) is_met: bool,
}

/// Compares with the targets; those whose workloads were not run are left out.
pub(crate) fn judge(results: &Results) -> Vec<Verdict> {
    let drained = |name| results.drains.iter().find(|drained| drained.name == name);
    let mut verdicts = Vec::new();
    for (name, share) in [(HOT_KEYS, 0.6), (SINGLE_KEY, 0.5)] {
        if let Some(ratio) = drained(name).and_then(Drained::share_of_recvlogical) {
            verdicts.push(at_least(name, share, ratio, "× pg_recvlogical"));
        }
    }
    if let Some(many) = drained(MANY_KEYS) {
        let rate = many.rows_per_second();
        let bare = BARE.iter().filter_map(|name| published(results, name)).reduce(f64::max);
        if let Some(bare) = bare {
            let what = "× the bare one-message Publish RPC";
            verdicts.push(at_least(MANY_KEYS, 0.6, rate / bare, what));
        }
        if let Some(official) = published(results, OFFICIAL) {
            verdicts.push(at_least(MANY_KEYS, 1.5, rate / official, "× the official publisher"));
        }
        let what = format!("MiB peak memory, {} distinct keys", many.rows);
        verdicts.push(below(MANY_KEYS, 64.0, many.peak_bytes() / MIB, &what));
    }
    if let Some(far) = drained(FAR_AWAY) {
        verdicts.push(at_least(FAR_AWAY, 20_000.0, far.rows_per_second(), "rows/s"));
    }
    if let Some(one) = drained(ONE_TRANSACTION) {
        let what = format!("MiB peak memory, one transaction of {} rows", one.rows);
        verdicts.push(below(ONE_TRANSACTION, 100.0, one.peak_bytes() / MIB, &what));
    }
    if let Some(hot) = drained(HOT_KEYS) {
        let what = "s of CPU a million rows";
        verdicts.push(below(HOT_KEYS, 12.0, hot.cpu_seconds_per_million(), what));
    }
    if let Some(steady) = results.lives.iter().find(|live| live.name == STEADY) {
        let Live { p50_millis, p99_millis, .. } = *steady;
        verdicts.push(below(STEADY, 3.0, p50_millis, "ms commit → stored, p50"));
        verdicts.push(below(STEADY, 15.0, p99_millis, "ms commit → stored, p99"));
    }
    verdicts
}

fn at_least(workload: &'static str, target: f64, measured: f64, what: &str) -> Verdict {
    let (target_text, measured_text) = (number(target), number(measured));
    Verdict {
        workload,
        target: format!("at least {target_text} {what}"),
        measured: measured_text,
        is_met: measured >= target,
    }
}

fn below(workload: &'static str, target: f64, measured: f64, what: &str) -> Verdict {
    let (target_text, measured_text) = (number(target), number(measured));
    Verdict {
        workload,
        target: format!("under {target_text} {what}"),
        measured: measured_text,
        is_met: measured < target,
    }
}

/// Three digits and thousands apart: more would pretend.
pub(crate) fn number(value: f64) -> String {
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

fn published(results: &Results, name: &str) -> Option<f64> {
    let published = results.publishers.iter().find(|published| published.name == name)?;
    Some(median(published.rounds.iter().map(|round| round.rows_per_second)))
}

/// The middle one, or between the two in the middle.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count => f64::midpoint(values[(count - 1) / 2], values[count / 2]),
    }
}

impl Drained {
    fn of(&self, value: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(value))
    }

    pub(crate) fn rows_per_second(&self) -> f64 {
        self.of(|round| round.relay.measured.rows_per_second)
    }

    /// Of the rounds' ratios, because what disturbs a round disturbs both sides.
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

    fn cpu_seconds_per_million(&self) -> f64 {
        self.user_seconds_per_million() + self.system_seconds_per_million()
    }

    pub(crate) fn sink_seconds_per_million(&self) -> f64 {
        let cpu = |round: &Round| round.relay.sink.user_seconds + round.relay.sink.system_seconds;
        self.of(cpu) * self.millionth()
    }

    /// The worst of all rounds: memory is a promise.
    pub(crate) fn peak_bytes(&self) -> f64 {
        let peaks = self.rounds.iter().map(|round| round.relay.measured.usage.peak_bytes);
        #[expect(clippy::cast_precision_loss, reason = "kibibytes are exact far beyond any memory")]
        let peak = peaks.max().unwrap_or(0) as f64;
        peak
    }

    fn millionth(&self) -> f64 {
        1e6 / f64::from(self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_on_its_own_side_only() {
        assert!(at_least("w", 0.6, 0.6, "x").is_met);
        assert!(!at_least("w", 0.6, 0.59, "x").is_met);
        assert!(below("w", 3.0, 2.99, "x").is_met);
        assert!(!below("w", 3.0, 3.0, "x").is_met);
        assert!(!below("w", 3.0, f64::NAN, "x").is_met);
    }

    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }

    #[test]
    fn numbers_have_three_digits() {
        let texts = [0.614, 25.04, 117.3, 12_345.6, 1_234_567.0].map(number);
        assert_eq!(texts, ["0.61", "25.0", "117", "12,346", "1,234,567"]);
    }
}
