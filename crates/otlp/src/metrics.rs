//! Converts the program's registry to OTLP metrics.
//!
//! The registry of `/metrics` is the only source of names, descriptions and figures. Both outputs
//! therefore agree and nothing is counted twice. The SDK's instruments do not fit, because none of
//! them accepts a histogram that was counted elsewhere.

#![expect(
    deprecated,
    reason = "Prometheus' own form has only cumulative buckets and floating-point numbers"
)]

use std::fmt;

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
    metric::Data,
};
use prometheus_client::encoding::openmetrics_protobuf::{
    encode,
    openmetrics_data_model::{
        self as registered, counter_value::Total, gauge_value, histogram_value, metric_point,
    },
};
use prometheus_client::registry::Registry;

/// The time of a collection and the start of counting, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) start: u64,
    pub(crate) now: u64,
}

/// Reads all metrics that have a sample.
///
/// # Errors
///
/// A value cannot be encoded, for example a gauge above `i64::MAX`.
pub(crate) fn metrics(registry: &Registry, times: Times) -> Result<Vec<Metric>, fmt::Error> {
    let families = encode(registry)?.metric_families;
    Ok(families.into_iter().filter_map(|family| times.metric(family)).collect())
}

/// The figures of one metric.
#[derive(Default)]
struct Points {
    counters: Vec<NumberDataPoint>,
    gauges: Vec<NumberDataPoint>,
    histograms: Vec<HistogramDataPoint>,
}

impl Times {
    fn metric(self, family: registered::MetricFamily) -> Option<Metric> {
        let mut points = Points::default();
        for metric in family.metrics {
            let labels: Vec<KeyValue> = metric.labels.into_iter().map(attribute).collect();
            for value in metric.metric_points.into_iter().filter_map(|point| point.value) {
                self.add(&mut points, labels.clone(), value);
            }
        }
        let name = match family.unit.as_str() {
            "" => family.name,
            unit => format!("{}_{unit}", family.name),
        };
        let unit = match family.unit.as_str() {
            "seconds" => "s",
            _ if name.ends_with("_bytes") => "By",
            _ => "",
        };
        let unit = unit.to_owned();
        let description = family.help.trim_end_matches('.').to_owned();
        let (name, data) = points.data(name)?;
        Some(Metric { name, description, unit, data: Some(data), ..Metric::default() })
    }

    fn add(self, points: &mut Points, labels: Vec<KeyValue>, value: metric_point::Value) {
        match value {
            metric_point::Value::CounterValue(counter) => {
                let total = counter.total.map(|total| match total {
                    Total::IntValue(whole) => whole_number(whole),
                    Total::DoubleValue(number) => Value::AsDouble(number),
                });
                let point = NumberDataPoint {
                    start_time_unix_nano: self.start,
                    ..self.point(labels, total)
                };
                points.counters.push(point);
            }
            metric_point::Value::GaugeValue(gauge) => {
                let level = gauge.value.map(|level| match level {
                    gauge_value::Value::IntValue(whole) => Value::AsInt(whole),
                    gauge_value::Value::DoubleValue(number) => Value::AsDouble(number),
                });
                points.gauges.push(self.point(labels, level));
            }
            metric_point::Value::HistogramValue(histogram) => {
                points.histograms.push(self.histogram(labels, histogram));
            }
            // The program registers none of these.
            metric_point::Value::UnknownValue(_)
            | metric_point::Value::StateSetValue(_)
            | metric_point::Value::InfoValue(_)
            | metric_point::Value::SummaryValue(_) => {}
        }
    }

    fn point(self, attributes: Vec<KeyValue>, value: Option<Value>) -> NumberDataPoint {
        let time_unix_nano = self.now;
        NumberDataPoint { attributes, time_unix_nano, value, ..NumberDataPoint::default() }
    }

    fn histogram(
        self,
        attributes: Vec<KeyValue>,
        histogram: registered::HistogramValue,
    ) -> HistogramDataPoint {
        // The registry's last bucket has the largest number as its bound. OTLP's has no bound.
        let bounds = histogram.buckets.iter().map(|bucket| bucket.upper_bound);
        let sum = histogram.sum.map(|sum| match sum {
            histogram_value::Sum::DoubleValue(sum) => sum,
            histogram_value::Sum::IntValue(sum) => sum as f64,
        });
        HistogramDataPoint {
            attributes,
            start_time_unix_nano: self.start,
            time_unix_nano: self.now,
            count: histogram.count,
            sum,
            explicit_bounds: bounds.filter(|bound| *bound < f64::MAX).collect(),
            bucket_counts: histogram.buckets.iter().map(|bucket| bucket.count).collect(),
            ..HistogramDataPoint::default()
        }
    }
}

impl Points {
    /// Returns the name and the data of the metric, or `None` without a figure. A counter's name has
    /// the suffix that it has in the manual and in every query.
    fn data(self, name: String) -> Option<(String, Data)> {
        let aggregation_temporality = AggregationTemporality::Cumulative.into();
        let Self { counters, gauges, histograms } = self;
        if !counters.is_empty() {
            let is_monotonic = true;
            let sum = Sum { data_points: counters, aggregation_temporality, is_monotonic };
            return Some((format!("{name}_total"), Data::Sum(sum)));
        }
        if !gauges.is_empty() {
            return Some((name, Data::Gauge(Gauge { data_points: gauges })));
        }
        let histogram = Histogram { data_points: histograms, aggregation_temporality };
        (!histogram.data_points.is_empty()).then_some((name, Data::Histogram(histogram)))
    }
}

fn whole_number(value: u64) -> Value {
    i64::try_from(value).map_or(Value::AsDouble(value as f64), Value::AsInt)
}

fn attribute(label: registered::Label) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(label.value)) };
    KeyValue { key: label.name, value: Some(value), ..KeyValue::default() }
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
        assert_eq!(sum.data_points[0].attributes, [label("topic", &topic), label("code", "OK")]);
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
    fn a_figure_that_cannot_be_encoded_is_an_error() {
        let mut registry = Registry::default();
        let level = GaugeMetric::<u64, std::sync::atomic::AtomicU64>::default();
        level.set(u64::MAX);
        registry.register("level", "Level", level);
        assert!(metrics(&registry, TIMES).is_err());
    }
}
