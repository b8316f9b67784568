//! Converts the program's registry to OTLP metrics.
//!
//! The registry of `/metrics` is the only source of names, descriptions and figures. Both outputs
//! therefore agree and nothing is counted twice. The SDK's instruments do not fit, because none of
//! them accepts a histogram that was counted elsewhere.

use std::fmt;

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
    metric::Data,
};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// The time of a collection and the start of counting, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) start: u64,
    pub(crate) now: u64,
}

/// Reads all metrics that have a sample.
pub(crate) fn metrics(registry: &Registry, times: Times) -> Result<Vec<Metric>, fmt::Error> {
    let mut text = String::new();
    encode(&mut text, registry)?;
    let mut found: Vec<Metric> = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("# ").map(|about| about.splitn(3, ' ').collect::<Vec<_>>()) {
            // Help is the first line of each metric.
            Some(about) if about.first() == Some(&"HELP") => {
                let description = about.get(2).unwrap_or(&"").trim_end_matches('.').to_owned();
                found.push(Metric { description, ..Metric::default() });
            }
            Some(about) => {
                if let (Some(metric), [what, name, value]) = (found.last_mut(), &about[..]) {
                    describe(metric, what, name, value);
                }
            }
            None => {
                if let (Some(metric), Some(sample)) = (found.last_mut(), Sample::parse(line)) {
                    times.add(metric, sample);
                }
            }
        }
    }
    found.retain(|metric| metric.data.as_ref().is_some_and(has_points));
    Ok(found)
}

/// Applies a line about a metric: its unit or its type.
fn describe(metric: &mut Metric, what: &str, name: &str, value: &str) {
    match (what, value) {
        ("UNIT", "seconds") => metric.unit = "s".to_owned(),
        ("TYPE", _) => {
            let aggregation_temporality = AggregationTemporality::Cumulative.into();
            // A counter's name has the suffix that it has in the manual and in every query.
            let (suffix, data) = match value {
                "counter" => {
                    let sum = Sum {
                        data_points: Vec::new(),
                        aggregation_temporality,
                        is_monotonic: true,
                    };
                    ("_total", Data::Sum(sum))
                }
                "gauge" => ("", Data::Gauge(Gauge::default())),
                "histogram" => {
                    let data_points = Vec::new();
                    ("", Data::Histogram(Histogram { data_points, aggregation_temporality }))
                }
                // The program registers no other type.
                _ => return,
            };
            if name.ends_with("_bytes") {
                metric.unit = "By".to_owned();
            }
            metric.name = format!("{name}{suffix}");
            metric.data = Some(data);
        }
        _ => {}
    }
}

const fn has_points(data: &Data) -> bool {
    match data {
        Data::Sum(sum) => !sum.data_points.is_empty(),
        Data::Gauge(gauge) => !gauge.data_points.is_empty(),
        Data::Histogram(histogram) => !histogram.data_points.is_empty(),
        Data::ExponentialHistogram(_) | Data::Summary(_) => false,
    }
}

/// One line of the text: `name{label="value",…} figure`.
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    figure: &'a str,
}

impl<'a> Sample<'a> {
    /// Returns the sample. None if the line is none.
    fn parse(line: &'a str) -> Option<Self> {
        let (name, mut rest) = line.split_at(line.find(['{', ' '])?);
        let mut labels = Vec::new();
        while let Some(label) = rest.strip_prefix(['{', ',']).filter(|it| !it.starts_with('}')) {
            let (key, text) = label.split_once("=\"")?;
            let end = closing_quote(text)?;
            labels.push((key, unescape(&text[..end])));
            rest = &text[end + 1..];
        }
        let figure = rest.trim_start_matches(['{', '}']).trim_start();
        Some(Self { name, labels, figure: figure.split(' ').next()? })
    }

    fn value(&self) -> Option<Value> {
        let whole = self.figure.parse().ok().map(Value::AsInt);
        whole.or_else(|| self.figure.parse().ok().map(Value::AsDouble))
    }

    fn attributes(&self) -> Vec<KeyValue> {
        self.labels.iter().filter(|(key, _)| *key != "le").map(attribute).collect()
    }
}

/// Returns where the text of a label ends.
fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        plain.push(match character {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some(other) => other,
                None => '\\',
            },
            other => other,
        });
    }
    plain
}

fn attribute((key, value): &(&str, String)) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.clone())) };
    KeyValue { key: (*key).to_owned(), value: Some(value), ..KeyValue::default() }
}

impl Times {
    fn add(self, metric: &mut Metric, sample: Sample<'_>) {
        match &mut metric.data {
            Some(Data::Sum(sum)) => {
                let start_time_unix_nano = self.start;
                let point = NumberDataPoint { start_time_unix_nano, ..self.point(&sample) };
                sum.data_points.push(point);
            }
            Some(Data::Gauge(gauge)) => gauge.data_points.push(self.point(&sample)),
            Some(Data::Histogram(histogram)) => {
                self.add_to_histogram(&mut histogram.data_points, &metric.name, &sample);
            }
            Some(Data::ExponentialHistogram(_) | Data::Summary(_)) | None => {}
        }
    }

    fn point(self, sample: &Sample<'_>) -> NumberDataPoint {
        NumberDataPoint {
            attributes: sample.attributes(),
            time_unix_nano: self.now,
            value: sample.value(),
            ..NumberDataPoint::default()
        }
    }

    /// Adds one figure of a histogram. Sum and count come before the buckets, and the text counts
    /// all observations up to a bound, where OTLP counts those between two.
    fn add_to_histogram(
        self,
        points: &mut Vec<HistogramDataPoint>,
        name: &str,
        sample: &Sample<'_>,
    ) {
        match sample.name.strip_prefix(name) {
            Some("_sum") => points.push(HistogramDataPoint {
                attributes: sample.attributes(),
                start_time_unix_nano: self.start,
                time_unix_nano: self.now,
                sum: sample.figure.parse().ok(),
                ..HistogramDataPoint::default()
            }),
            Some("_count") => {
                if let (Some(point), Ok(count)) = (points.last_mut(), sample.figure.parse()) {
                    point.count = count;
                }
            }
            Some("_bucket") => {
                let Some(point) = points.last_mut() else { return };
                let bound = sample.labels.iter().find(|(key, _)| *key == "le");
                let bound = bound.and_then(|(_, bound)| bound.parse::<f64>().ok());
                point.explicit_bounds.extend(bound.filter(|bound| bound.is_finite()));
                let before: u64 = point.bucket_counts.iter().sum();
                let up_to = sample.figure.parse().unwrap_or(before);
                point.bucket_counts.push(up_to.saturating_sub(before));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::EncodeLabelSet;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge as GaugeMetric;
    use prometheus_client::metrics::histogram::Histogram as HistogramMetric;
    use prometheus_client::registry::Unit;

    use super::*;

    const TIMES: Times = Times { start: 5, now: 9 };

    #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
    struct Labels {
        topic: String,
        code: &'static str,
    }

    fn read(registry: &Registry) -> Vec<Metric> {
        metrics(registry, TIMES).unwrap()
    }

    fn label(key: &str, value: &str) -> KeyValue {
        let value = AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) };
        KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
    }

    #[test]
    fn a_counter_keeps_the_name_it_has_in_queries() {
        let mut registry = Registry::with_prefix("walrelay");
        let rows: Counter = Counter::default();
        rows.inc_by(7);
        registry.register("rows_read", "Rows read", rows);
        let [metric] = &read(&registry)[..] else { panic!("one metric") };
        assert_eq!(metric.name, "walrelay_rows_read_total");
        assert_eq!(metric.description, "Rows read");
        let Some(Data::Sum(sum)) = &metric.data else { panic!("{metric:?}") };
        assert!(sum.is_monotonic);
        assert_eq!(sum.aggregation_temporality(), AggregationTemporality::Cumulative);
        let point = &sum.data_points[0];
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (5, 9));
        assert_eq!(point.value, Some(Value::AsInt(7)));
    }

    #[test]
    fn labels_are_attributes_whatever_they_hold() {
        let mut registry = Registry::default();
        let requests: Family<Labels, Counter> = Family::default();
        let topic = "a\"b\\c\nd} ,x=\"y".to_owned();
        requests.get_or_create(&Labels { topic: topic.clone(), code: "OK" }).inc();
        registry.register("requests", "Requests", requests);
        let [metric] = &read(&registry)[..] else { panic!("one metric") };
        let Some(Data::Sum(sum)) = &metric.data else { panic!("{metric:?}") };
        let [point] = &sum.data_points[..] else { panic!("one point") };
        assert_eq!(point.attributes, [label("topic", &topic), label("code", "OK")]);
        assert_eq!(point.value, Some(Value::AsInt(1)));
    }

    #[test]
    fn gauges_are_whole_or_broken_numbers() {
        let mut registry = Registry::default();
        let (safe, since) =
            (<GaugeMetric>::default(), GaugeMetric::<f64, std::sync::atomic::AtomicU64>::default());
        safe.set(-1);
        since.set(0.5);
        registry.register("slot_safe_wal_bytes", "Room", safe);
        registry.register("seconds_since_progress", "Since", since);
        let found = read(&registry);
        let values = found.iter().map(|metric| match &metric.data {
            Some(Data::Gauge(gauge)) => (&*metric.name, &*metric.unit, gauge.data_points[0].value),
            other => panic!("{other:?}"),
        });
        let expected = [
            ("slot_safe_wal_bytes", "By", Some(Value::AsInt(-1))),
            ("seconds_since_progress", "", Some(Value::AsDouble(0.5))),
        ];
        assert_eq!(values.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_histogram_counts_between_its_bounds() {
        let mut registry = Registry::default();
        let durations = HistogramMetric::new([0.1, 1.0]);
        for seconds in [0.05, 0.5, 0.6, 7.0] {
            durations.observe(seconds);
        }
        registry.register_with_unit("publish_duration", "Calls", Unit::Seconds, durations);
        let [metric] = &read(&registry)[..] else { panic!("one metric") };
        assert_eq!((&*metric.name, &*metric.unit), ("publish_duration_seconds", "s"));
        let Some(Data::Histogram(histogram)) = &metric.data else { panic!("{metric:?}") };
        let [point] = &histogram.data_points[..] else { panic!("one point") };
        assert_eq!(point.explicit_bounds, [0.1, 1.0]);
        assert_eq!(point.bucket_counts, [1, 2, 1]);
        assert_eq!((point.count, point.sum), (4, Some(8.15)));
    }

    #[test]
    fn a_family_without_samples_is_left_out() {
        let mut registry = Registry::default();
        registry.register("none", "None yet", Family::<Labels, Counter>::default());
        registry.register("one", "One", <GaugeMetric>::default());
        let names: Vec<_> = read(&registry).into_iter().map(|metric| metric.name).collect();
        assert_eq!(names, ["one"]);
    }

    #[test]
    fn a_figure_above_the_largest_whole_number_is_rounded() {
        let mut registry = Registry::default();
        let level = GaugeMetric::<u64, std::sync::atomic::AtomicU64>::default();
        level.set(u64::MAX);
        registry.register("level", "Level", level);
        let [metric] = &read(&registry)[..] else { panic!("one metric") };
        let Some(Data::Gauge(gauge)) = &metric.data else { panic!("{metric:?}") };
        assert_eq!(gauge.data_points[0].value, Some(Value::AsDouble(u64::MAX as f64)));
    }
}
