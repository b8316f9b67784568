//! Checks the alert policies and the dashboard of Cloud Monitoring: their shape, that each metric
//! exists, and that each query is the one of the alert with the same name.
//!
//! No tool validates these files without an account, so the API was never asked.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use walrelay_pubsub::{BACKLOG_METRIC, OLDEST_METRIC};

use crate::queries::assert_asks_for_what_there_is;
use crate::{documents, mappings, root, text_of};

const POLICIES: &str = "deploy/google-cloud/alert-policies";
const DASHBOARD: &str = "deploy/google-cloud/dashboard.json";

/// The number of messages that were forwarded to a dead-letter topic.
const DEAD_LETTERS_METRIC: &str = "pubsub.googleapis.com/subscription/dead_letter_message_count";

/// Whether a subscription meets Google's criteria of delivery.
const HEALTH_METRIC: &str = "pubsub.googleapis.com/subscription/delivery_latency_health_score";

const METRICS: [&str; 4] = [BACKLOG_METRIC, OLDEST_METRIC, DEAD_LETTERS_METRIC, HEALTH_METRIC];

/// The columns of a mosaic layout.
const COLUMNS: u64 = 48;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

/// Returns each policy with its file name.
fn policies() -> Vec<(String, Value)> {
    let folder = std::fs::read_dir(root().join(POLICIES)).expect("the policies");
    let names = folder.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let read = |name: String| {
        let policy = serde_json::from_str(&text_of(&format!("{POLICIES}/{name}")));
        (name.clone(), policy.unwrap_or_else(|error| panic!("{name}: {error}")))
    };
    let found: Vec<_> = names.map(read).collect();
    assert!(found.len() >= 10, "only {} policies", found.len());
    found
}

/// An alert of the Prometheus rules.
struct Alert {
    query: String,
    severity: String,
}

fn alerts() -> BTreeMap<String, Alert> {
    let mut alerts = BTreeMap::new();
    for of in ["walrelay", "walrelay-consumer"] {
        let documents = documents(&format!("deploy/prometheus/{of}.rules.yaml"));
        for rule in mappings(&documents[0]).into_iter().filter(|rule| rule.get("alert").is_some()) {
            let query = rule["expr"].as_str().unwrap().split_whitespace().collect::<Vec<_>>();
            let severity = rule["labels"]["severity"].as_str().unwrap().to_owned();
            let alert = Alert { query: query.join(" "), severity };
            alerts.insert(rule["alert"].as_str().unwrap().to_owned(), alert);
        }
    }
    alerts
}

/// Returns the metric that a filter names.
fn metric_of(filter: &str) -> &str {
    let (_, rest) = filter.split_once("metric.type=\"").unwrap_or_else(|| panic!("{filter}"));
    rest.split_once('"').expect("the end of the name").0
}

fn assert_is_known(filter: &str, place: &str) {
    let metric = metric_of(filter);
    assert!(METRICS.contains(&metric), "{place}: there is no {metric}");
    assert!(filter.contains("resource.type=\"pubsub_subscription\""), "{place}: {filter}");
}

#[test]
fn each_policy_has_a_name_a_severity_a_condition_and_a_runbook() {
    for (name, policy) in policies() {
        assert!(!text(&policy["displayName"]).is_empty(), "{name}");
        assert_eq!(text(&policy["combiner"]), "OR", "{name}");
        let severity = match text(&policy["userLabels"]["severity"]) {
            "page" => "CRITICAL",
            "ticket" => "WARNING",
            other => panic!("{name}: {other}"),
        };
        assert_eq!(text(&policy["severity"]), severity, "{name}");
        let content = text(&policy["documentation"]["content"]);
        let runbook = content.rsplit("/docs/").next().expect("a link");
        assert!(root().join("docs").join(runbook).is_file(), "{name}: no {runbook}");
        let [condition] = list(&policy["conditions"]) else { panic!("{name}: one condition") };
        assert!(!text(&condition["displayName"]).is_empty(), "{name}");
    }
}

#[test]
fn each_query_is_that_of_the_alert_with_the_same_name() {
    let alerts = alerts();
    let mut named = BTreeSet::new();
    for (name, policy) in policies() {
        let condition = &policy["conditions"][0]["conditionPrometheusQueryLanguage"];
        if condition.is_null() {
            continue;
        }
        let rule = text(&condition["alertRule"]);
        let alert = alerts.get(rule).unwrap_or_else(|| panic!("{name}: there is no {rule}"));
        assert_eq!(text(&condition["query"]), alert.query, "{name}");
        assert_eq!(text(&policy["userLabels"]["severity"]), alert.severity, "{name}");
        for seconds in [&condition["duration"], &condition["evaluationInterval"]] {
            let number = text(seconds).strip_suffix('s').expect("seconds");
            assert!(number.parse::<u32>().is_ok(), "{name}: {seconds}");
        }
        named.insert(rule.to_owned());
    }
    let pages = alerts.iter().filter(|(_, alert)| alert.severity == "page");
    for (page, _) in pages {
        assert!(named.contains(page), "{page} has no policy");
    }
}

#[test]
fn each_threshold_is_on_a_metric_of_pubsub() {
    let mut metrics = BTreeSet::new();
    for (name, policy) in policies() {
        let condition = &policy["conditions"][0]["conditionThreshold"];
        if condition.is_null() {
            continue;
        }
        let filter = text(&condition["filter"]);
        assert_is_known(filter, &name);
        metrics.insert(metric_of(filter).to_owned());
        let expected = match metric_of(filter) {
            HEALTH_METRIC => "COMPARISON_LT",
            _ => "COMPARISON_GT",
        };
        assert_eq!(text(&condition["comparison"]), expected, "{name}");
        assert!(condition["thresholdValue"].is_number(), "{name}");
        let [aggregation] = list(&condition["aggregations"]) else { panic!("{name}") };
        assert!(text(&aggregation["perSeriesAligner"]).starts_with("ALIGN_"), "{name}");
    }
    assert_eq!(metrics, METRICS.map(str::to_owned).into());
}

#[test]
fn the_dashboard_asks_for_metrics_that_exist_and_no_tile_covers_another() {
    let dashboard: Value = serde_json::from_str(&text_of(DASHBOARD)).expect("JSON");
    let layout = &dashboard["mosaicLayout"];
    assert_eq!(layout["columns"], COLUMNS);
    let mut covered = BTreeSet::new();
    let mut metrics = BTreeSet::new();
    for tile in list(&layout["tiles"]) {
        let title = text(&tile["widget"]["title"]);
        let number = |name: &str| tile[name].as_u64().unwrap_or_else(|| panic!("{title}: {name}"));
        let (x, y) = (number("xPos"), number("yPos"));
        assert!(x + number("width") <= COLUMNS, "{title} is too wide");
        for column in x..x + number("width") {
            for row in y..y + number("height") {
                assert!(covered.insert((column, row)), "{title} covers another tile");
            }
        }
        for set in list(&tile["widget"]["xyChart"]["dataSets"]) {
            let query = &set["timeSeriesQuery"];
            match query["prometheusQuery"].as_str() {
                Some(promql) => assert_asks_for_what_there_is(promql, title),
                None => {
                    let filter = text(&query["timeSeriesFilter"]["filter"]);
                    assert_is_known(filter, title);
                    metrics.insert(metric_of(filter).to_owned());
                }
            }
        }
    }
    assert_eq!(metrics, METRICS.map(str::to_owned).into());
}

#[test]
fn the_terraform_module_creates_every_policy_and_the_dashboard() {
    let module = text_of("deploy/terraform/monitoring.tf");
    assert!(module.contains("fileset(local.google_cloud, \"alert-policies/*.json\")"), "{module}");
    assert!(module.contains("${local.google_cloud}/dashboard.json"), "{module}");
    for kind in ["condition_threshold", "condition_prometheus_query_language"] {
        assert!(module.contains(kind), "{kind}");
    }
}
