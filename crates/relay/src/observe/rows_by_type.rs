//! Counts the rows of each topic and event type between two updates of the metrics.

use walrelay_core::Topic;

use crate::observe::metrics::Metrics;

/// The number of pairs that are counted between two updates of the metrics.
const COUNTED_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct RowsByType {
    counted: Vec<TypeCount>,
    /// The pair of the last row. The next row often has the same.
    last: usize,
}

#[derive(Debug)]
struct TypeCount {
    topic: Topic,
    event_type: Box<str>,
    rows: u64,
}

impl TypeCount {
    fn is_of(&self, topic: &Topic, event_type: &str) -> bool {
        *self.event_type == *event_type && self.topic == *topic
    }
}

impl RowsByType {
    pub(super) fn count(&mut self, topic: &Topic, event_type: &str, metrics: &Metrics) {
        if !self.counted.get(self.last).is_some_and(|it| it.is_of(topic, event_type)) {
            self.last = self.place_of(topic, event_type, metrics);
        }
        if let Some(counted) = self.counted.get_mut(self.last) {
            counted.rows += 1;
        }
    }

    fn place_of(&mut self, topic: &Topic, event_type: &str, metrics: &Metrics) -> usize {
        if let Some(place) = self.counted.iter().position(|it| it.is_of(topic, event_type)) {
            return place;
        }
        if self.counted.len() == COUNTED_MAX {
            self.flush(metrics);
            self.counted.clear();
        }
        let (topic, event_type) = (Topic::clone(topic), Box::from(event_type));
        self.counted.push(TypeCount { topic, event_type, rows: 0 });
        self.counted.len() - 1
    }

    /// Adds the counted rows to the metrics.
    pub(super) fn flush(&mut self, metrics: &Metrics) {
        for counted in self.counted.iter_mut().filter(|it| it.rows > 0) {
            metrics.count_rows(&counted.topic, &counted.event_type, counted.rows);
            counted.rows = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::topic_labels::TYPES_MAX;

    fn topic(number: usize) -> Topic {
        Topic::from(format!("projects/p/topics/t{number}"))
    }

    fn assert_line(text: &str, line: &str) {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }

    #[test]
    fn event_types_after_the_hundredth_share_a_label_and_no_row_is_left_out() {
        let metrics = Metrics::new();
        let mut rows = RowsByType::default();
        for number in 0..2_000 {
            rows.count(&topic(number % 3), &format!("type-{number}"), &metrics);
        }
        rows.count(&topic(0), "type-0", &metrics);
        rows.count(&topic(0), &"x".repeat(1_000), &metrics);
        rows.flush(&metrics);
        let text = metrics.encode().unwrap();
        let series: Vec<&str> =
            text.lines().filter(|it| it.starts_with("walrelay_rows_by_type_total{")).collect();
        assert_eq!(series.len(), TYPES_MAX + 3, "{text}");
        let counts = series.iter().map(|it| it.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        assert_eq!(counts.sum::<u64>(), 2_002);
        let first = "topic=\"projects/p/topics/t0\",event_type=\"type-0\"";
        assert_line(&text, &format!("walrelay_rows_by_type_total{{{first}}} 2"));
        // An alert on an increase needs a value before the first failure.
        for state in ["parked", "dead"] {
            let line = format!("walrelay_failures_by_type_total{{{first},state=\"{state}\"}} 0");
            assert_line(&text, &line);
        }
    }
}
