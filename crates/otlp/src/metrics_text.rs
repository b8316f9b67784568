//! Converts the text of `/metrics` to OTLP metrics.
//!
//! Names, descriptions and figures come from the text of the program's registry (OpenMetrics). Both
//! outputs therefore agree and nothing is counted twice. The SDK's instruments do not fit, because
//! none of them accepts a histogram that was counted elsewhere.

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
    metric::Data,
};

/// The time of a collection and the start of counting, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) start: u64,
    pub(crate) now: u64,
}

/// Parses the text. Skips lines that it does not understand, so that one bad line does not lose all
/// figures. The text comes from this program, so all lines should be understood.
pub(crate) fn metrics(text: &str, times: Times) -> Vec<Metric> {
    let mut reader = Reader { times, families: Vec::new() };
    for line in text.lines() {
        match line.strip_prefix("# ") {
            Some(comment) => reader.describe(comment),
            None => drop(reader.sample(line)),
        }
    }
    let counted = reader.families.into_iter().filter(|family| !family.metric.name.is_empty());
    counted.map(|family| family.metric).collect()
}

struct Reader {
    times: Times,
    families: Vec<Family>,
}

/// A metric, and the name of its samples without a suffix.
struct Family {
    name: String,
    /// The metric's name is empty until its first sample.
    metric: Metric,
}

impl Reader {
    /// Reads `HELP name text`, `TYPE name kind` and `UNIT name unit`. The first line with a name
    /// starts its family.
    fn describe(&mut self, comment: &str) {
        let mut words = comment.splitn(3, ' ');
        let (Some(word), Some(name), Some(text)) = (words.next(), words.next(), words.next())
        else {
            return;
        };
        if self.families.last().is_none_or(|family| family.name != name) {
            let unit = if name.ends_with("_bytes") { "By" } else { "" };
            let metric = Metric { unit: unit.to_owned(), ..Metric::default() };
            self.families.push(Family { name: name.to_owned(), metric });
        }
        let Some(Family { metric, .. }) = self.families.last_mut() else { return };
        match (word, text) {
            ("HELP", _) => metric.description = text.trim_end_matches('.').to_owned(),
            ("UNIT", "seconds") => metric.unit = "s".to_owned(),
            ("TYPE", kind) => metric.data = empty(kind),
            _ => {}
        }
    }

    /// Reads `name{labels} value`.
    fn sample(&mut self, line: &str) -> Option<()> {
        let (name, labels, value) = parts(line)?;
        let Self { times, families } = self;
        let Family { name: family, metric } = families.last_mut()?;
        let suffix = name.strip_prefix(family.as_str())?;
        match metric.data.as_mut()? {
            Data::Sum(Sum { data_points, .. }) => {
                // The name keeps its suffix, as in the manual and in every query.
                name.clone_into(&mut metric.name);
                data_points.push(point(labels, value, *times)?);
            }
            Data::Gauge(Gauge { data_points }) => {
                name.clone_into(&mut metric.name);
                data_points.push(NumberDataPoint {
                    start_time_unix_nano: 0,
                    ..point(labels, value, *times)?
                });
            }
            Data::Histogram(Histogram { data_points, .. }) => {
                metric.name.clone_from(family);
                let (labels, bound) = without_bound(labels);
                let point = histogram_of(data_points, labels, *times);
                match suffix {
                    "_sum" => point.sum = Some(value.parse().ok()?),
                    "_count" => point.count = value.parse().ok()?,
                    "_bucket" => add_bucket(point, bound?.as_str(), value.parse().ok()?),
                    _ => {}
                }
            }
            Data::ExponentialHistogram(_) | Data::Summary(_) => {}
        }
        Some(())
    }
}

fn empty(kind: &str) -> Option<Data> {
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    match kind {
        "counter" => Some(Data::Sum(Sum {
            data_points: Vec::new(),
            aggregation_temporality,
            is_monotonic: true,
        })),
        "gauge" => Some(Data::Gauge(Gauge::default())),
        "histogram" => {
            Some(Data::Histogram(Histogram { data_points: Vec::new(), aggregation_temporality }))
        }
        _ => None,
    }
}

fn point(labels: Vec<KeyValue>, value: &str, times: Times) -> Option<NumberDataPoint> {
    let value = match value.parse() {
        Ok(whole) => Value::AsInt(whole),
        Err(_) => Value::AsDouble(value.parse().ok()?),
    };
    Some(NumberDataPoint {
        attributes: labels,
        start_time_unix_nano: times.start,
        time_unix_nano: times.now,
        value: Some(value),
        ..NumberDataPoint::default()
    })
}

/// The point of these labels. Its samples are adjacent in the text.
fn histogram_of(
    points: &mut Vec<HistogramDataPoint>,
    labels: Vec<KeyValue>,
    times: Times,
) -> &mut HistogramDataPoint {
    if points.last().is_none_or(|point| point.attributes != labels) {
        points.push(HistogramDataPoint {
            attributes: labels,
            start_time_unix_nano: times.start,
            time_unix_nano: times.now,
            ..HistogramDataPoint::default()
        });
    }
    let last = points.len() - 1;
    &mut points[last]
}

/// Adds a bucket. The text counts all values below a bound, OTLP the values between two bounds.
fn add_bucket(point: &mut HistogramDataPoint, bound: &str, below: u64) {
    let counted: u64 = point.bucket_counts.iter().sum();
    point.bucket_counts.push(below.saturating_sub(counted));
    if let Ok(bound) = bound.parse::<f64>()
        && bound.is_finite()
    {
        point.explicit_bounds.push(bound);
    }
}

fn without_bound(mut labels: Vec<KeyValue>) -> (Vec<KeyValue>, Option<String>) {
    let Some(at) = labels.iter().position(|label| label.key == "le") else { return (labels, None) };
    let bound = match labels.remove(at).value {
        Some(AnyValue { value: Some(any_value::Value::StringValue(text)) }) => Some(text),
        Some(_) | None => None,
    };
    (labels, bound)
}

/// Splits a sample into name, labels and value.
fn parts(line: &str) -> Option<(&str, Vec<KeyValue>, &str)> {
    let Some((name, rest)) = line.split_once('{') else {
        let (name, value) = line.split_once(' ')?;
        return Some((name, Vec::new(), value));
    };
    let mut labels = Vec::new();
    let mut rest = rest;
    while !rest.starts_with('}') {
        let (key, quoted) = rest.trim_start_matches(',').split_once("=\"")?;
        let (value, behind) = unquoted(quoted)?;
        labels.push(KeyValue {
            key: key.to_owned(),
            value: Some(AnyValue { value: Some(any_value::Value::StringValue(value)) }),
            ..KeyValue::default()
        });
        rest = behind;
    }
    Some((name, labels, rest.strip_prefix("} ")?))
}

/// Returns the text up to its closing quote, and the text after the quote.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::EncodeLabelSet;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::registry::{Registry, Unit};

    use super::*;

    const TIMES: Times = Times { start: 5, now: 9 };

    #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
    struct Labels {
        topic: String,
        code: &'static str,
    }

    fn read(registry: &Registry) -> Vec<Metric> {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        metrics(&text, TIMES)
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
        assert_eq!(sum.data_points[0].attributes, [label("topic", &topic), label("code", "OK")]);
    }

    #[test]
    fn gauges_are_whole_or_broken_numbers() {
        let mut registry = Registry::default();
        let (safe, since) =
            (<Gauge>::default(), Gauge::<f64, std::sync::atomic::AtomicU64>::default());
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
        let durations = Histogram::new([0.1, 1.0]);
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
    fn a_family_without_samples_and_what_is_not_understood_are_left_out() {
        let mut registry = Registry::default();
        registry.register("none", "None yet", Family::<Labels, Counter>::default());
        registry.register("one", "One", <Gauge>::default());
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let text = format!("{text}one{{a=\"b 1\nanother 1\n\n#\n# HELP\none x\n");
        let names: Vec<_> = metrics(&text, TIMES).into_iter().map(|metric| metric.name).collect();
        assert_eq!(names, ["one"]);
    }
}
