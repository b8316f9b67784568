//! Checks alerts and dashboards: the PromQL parses, and every metric and label exists.

use std::collections::{BTreeMap, BTreeSet};

use walrelay_core::CallCode;
use walrelay_errors::Code;
use walrelay_relay::observe::health::{Health, Phase};
use walrelay_relay::observe::metrics::{
    AnchorLabel, InfoLabels, Metrics, ReasonLabel, RequestLabels, StatusLabel, TopicLabel,
};
use walrelay_relay::observe::observer::Observer;

use crate::manual::table;
use crate::promql::parse;
use crate::{documents, mappings, root, text_of};

/// The labels that Prometheus adds when it scrapes.
const SCRAPE_LABELS: [&str; 2] = ["job", "instance"];

/// The monitoring files of a program, and the manual page that describes them.
struct MonitoringFiles {
    rules: &'static str,
    dashboard: &'static str,
    page: &'static str,
    /// The heading of the program's metrics on the page of metrics.
    heading: &'static str,
    prefix: &'static str,
    /// Returns the text of `/metrics` with every series.
    text: fn() -> String,
}

const RELAY: MonitoringFiles = MonitoringFiles {
    rules: "deploy/prometheus/walrelay.rules.yaml",
    dashboard: "deploy/grafana/walrelay.json",
    page: "docs/runbooks/README.md",
    heading: "Relay",
    prefix: "walrelay_",
    text: relay_metrics,
};

const CONSUMER: MonitoringFiles = MonitoringFiles {
    rules: "deploy/prometheus/walrelay-consumer.rules.yaml",
    dashboard: "deploy/grafana/walrelay-consumer.json",
    page: "docs/runbooks/README.md",
    heading: "Consumer",
    prefix: "walrelay_inbox_",
    text: consumer_metrics,
};

/// Returns the program that exports a metric.
fn owner(metric: &str) -> &'static MonitoringFiles {
    if metric.starts_with(CONSUMER.prefix) { &CONSUMER } else { &RELAY }
}

fn consumer_metrics() -> String {
    let metrics = walrelay_inbox::Metrics::new("billing");
    metrics.observe(walrelay_inbox::Phase::Consuming, 0.0);
    metrics.encode().expect("metrics are written")
}

fn relay_metrics() -> String {
    let metrics = Metrics::new();
    let topic = String::new();
    metrics.messages_published.get_or_create(&TopicLabel { topic: topic.clone() }).inc();
    metrics.publish_requests.get_or_create(&RequestLabels { topic, code: "OK" }).inc();
    drop(metrics.of_topic(&"t".into()));
    let mut observer = Observer::new(metrics.clone(), Health::new());
    observer.row_read(&"t".into(), "made", 0);
    drop(observer);
    metrics.set_refused(&[("t".into(), CallCode::NotFound.into())]);
    for family in [&metrics.dead, &metrics.parked, &metrics.reconnects] {
        family.get_or_create(&ReasonLabel { reason: "x" }).inc();
    }
    metrics.dispatch_rows.get_or_create(&StatusLabel { status: "dead" }).set(1);
    metrics.set_phase(&Phase::Standby { holder: String::new() });
    metrics.info.get_or_create(&InfoLabels { slot: String::new(), shard: String::new() }).set(1);
    let anchor = AnchorLabel { anchor: String::new() };
    metrics.anchor_retained_bytes.get_or_create(&anchor).set(1);
    metrics.anchor_safe_wal_bytes.get_or_create(&anchor).set(1);
    metrics.anchor_age_seconds.get_or_create(&anchor).set(1.0);
    metrics.encode().expect("metrics are written")
}

/// Returns every series that `/metrics` can show: name and labels.
fn series(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut series = BTreeMap::<String, BTreeSet<String>>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (selector, _value) = line.rsplit_once(' ').expect("a name and a value");
        let (name, labels) = selector.split_once('{').unwrap_or((selector, ""));
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        let labels = labels.filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
        series.entry(name.to_owned()).or_default().extend(labels);
    }
    series
}

/// Reports whether a label of a metric can have this value. A consumer exports all label values
/// from its start.
fn takes(metric: &str, label: &str, value: &str) -> bool {
    match label {
        _ if metric.starts_with(CONSUMER.prefix) => {
            let text = consumer_metrics();
            let sample = format!("{label}=\"{value}\"");
            text.lines().any(|line| line.starts_with(metric) && line.contains(&sample))
        }
        "phase" => Phase::NAMES.contains(&value),
        "status" => ["retrying", "dead", "published", "discarded"].contains(&value),
        _ => true,
    }
}

pub(crate) fn assert_asks_for_what_there_is(text: &str, place: &str) {
    let query = parse(text).unwrap_or_else(|error| panic!("{place}: {error}: {text}"));
    assert!(!query.selectors.is_empty(), "{place}: {text} asks for nothing");
    let mut known = BTreeSet::new();
    for selector in &query.selectors {
        let series = series(&(owner(&selector.metric).text)());
        known.extend(series.values().flatten().cloned());
        let name = selector.metric.as_str();
        let labels = series.get(name).unwrap_or_else(|| panic!("{place}: there is no {name}"));
        for (label, operator, value) in &selector.conditions {
            let is_there = labels.contains(label) || SCRAPE_LABELS.contains(&label.as_str());
            assert!(is_there, "{place}: {name} has no label {label}");
            let is_of_the_target = SCRAPE_LABELS.contains(&label.as_str());
            let can_be = operator != "=" || is_of_the_target || takes(name, label, value);
            assert!(can_be, "{place}: {label} is never {value}");
        }
    }
    for label in &query.grouped_by {
        let label = label.as_str();
        let is_there = known.contains(label) || SCRAPE_LABELS.contains(&label) || label == "le";
        assert!(is_there, "{place}: nothing has the label {label}");
    }
}

/// Returns the anchors of a page's headings, as links use them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let text = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        text.chars().filter(|c| c.is_alphanumeric() || *c == '-' || *c == '_').collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_alert_asks_for_metrics_that_exist_and_has_its_entry_in_the_manual() {
    for (watched, at_least) in [(RELAY, 8), (CONSUMER, 5)] {
        assert_has_its_entries(&watched, at_least);
    }
}

fn assert_has_its_entries(watched: &MonitoringFiles, at_least: usize) {
    let documents = documents(watched.rules);
    let rules: Vec<_> =
        mappings(&documents[0]).into_iter().filter(|value| value.get("alert").is_some()).collect();
    assert!(rules.len() >= at_least, "only {} alerts", rules.len());
    let page = watched.page;
    let anchors = anchors(&text_of(page));
    let base = runbook_base_url(watched.rules);
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        assert_asks_for_what_there_is(rule["expr"].as_str().unwrap(), name);
        let annotations = &rule["annotations"];
        let runbook = annotations["runbook_url"].as_str().unwrap();
        assert_eq!(runbook, format!("{base}/{}.md", kebab_case(name)));
        let file = format!("{RUNBOOKS}/{}.md", kebab_case(name));
        match root().join(RUNBOOKS).is_dir() {
            true => assert!(root().join(&file).is_file(), "{file} is missing"),
            // The runbooks are sections of the page.
            false => {
                assert!(anchors.contains(&name.to_lowercase()), "{page} has no entry {name}");
            }
        }
        if let Some(code) = annotations.get("error_code") {
            let is_known = Code::ALL.iter().any(|known| known.name() == code.as_str().unwrap());
            assert!(is_known, "{name} has the unknown error code {code:?}");
        }
        assert!(
            ["page", "ticket"].contains(&rule["labels"]["severity"].as_str().unwrap()),
            "{name}"
        );
    }
}

/// The folder with a page for each alert.
const RUNBOOKS: &str = "docs/runbooks";

/// Returns the base address of the runbooks, which the header of the file declares and documents
/// how to replace.
fn runbook_base_url(rules: &str) -> String {
    let text = text_of(rules);
    let declared = text.lines().find_map(|line| line.strip_prefix("# runbook_base_url: "));
    let base = declared.unwrap_or_else(|| panic!("{rules} declares no base")).to_owned();
    assert!(text.contains(&format!("sed 's#{base}#")), "{rules} does not document the command");
    base
}

/// Converts the name of an alert to the name of its page.
fn kebab_case(name: &str) -> String {
    let mut kebab = String::new();
    for (index, letter) in name.char_indices() {
        if letter.is_uppercase() && index > 0 {
            kebab.push('-');
        }
        kebab.extend(letter.to_lowercase());
    }
    kebab
}

#[test]
fn a_replaced_base_address_reaches_every_runbook() {
    for rules in [RELAY.rules, CONSUMER.rules] {
        let base = runbook_base_url(rules);
        let replaced = text_of(rules).replace(&base, "https://wiki.example/runbooks");
        let urls = replaced.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: "));
        let urls: Vec<_> = urls.collect();
        assert!(urls.len() >= 9, "{urls:?}");
        assert!(urls.iter().all(|url| url.starts_with("https://wiki.example/runbooks/walrelay-")));
    }
}

/// Parses a duration into minutes.
fn duration(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.len() - 1);
    let minutes = match unit {
        "m" => 1,
        "h" => 60,
        _ => panic!("{text} is in neither minutes nor hours"),
    };
    number.parse::<u64>().expect("a number") * minutes
}

#[test]
fn a_forgotten_anchor_is_an_alert_that_names_it_and_the_anchor_of_the_relay_is_none() {
    let rules = &documents(RELAY.rules)[0];
    let named = |name: &str| {
        let found = mappings(rules).into_iter().find(|rule| rule["alert"] == name);
        found.unwrap_or_else(|| panic!("there is no {name}"))
    };
    for (name, metric) in [
        ("WalrelayAnchorAtRisk", "walrelay_anchor_safe_wal_bytes"),
        ("WalrelayAnchorForgotten", "walrelay_anchor_age_seconds"),
    ] {
        let rule = named(name);
        let query = parse(rule["expr"].as_str().unwrap()).unwrap();
        assert!(query.selectors.iter().all(|selector| selector.metric == metric), "{name}");
        assert_eq!(query.grouped_by, ["anchor"], "{name}");
        assert!(rule["annotations"]["summary"].as_str().unwrap().contains("$labels.anchor"));
    }
    let expression = named("WalrelayAnchorForgotten")["expr"].as_str().unwrap();
    let kept =
        format!("anchor!=\"{}\"", walrelay_outbox_admin::lifecycle::anchor_keeper::KEPT_ANCHOR);
    assert!(expression.contains(&kept), "{expression}");
}

#[test]
fn no_alert_fires_for_what_its_window_alone_remembers() {
    let documents = [RELAY, CONSUMER].map(|watched| documents(watched.rules));
    for rule in documents.iter().flat_map(|documents| mappings(&documents[0])) {
        let (Some(name), Some(waits)) = (rule.get("alert"), rule.get("for")) else { continue };
        let expression = rule["expr"].as_str().unwrap();
        let counts = ["rate(", "increase("].iter().any(|function| expression.contains(function));
        for window in expression.split('[').skip(1).filter(|_| counts) {
            let window = duration(window.split(']').next().unwrap());
            let waits = duration(waits.as_str().unwrap());
            assert!(window < waits, "{name:?}: one event lasts for {window} minutes");
        }
    }
}

#[test]
fn every_metric_has_its_row_in_the_manual_and_every_row_its_metric() {
    for MonitoringFiles { heading, prefix, text, .. } in [RELAY, CONSUMER] {
        assert_eq!(documented(heading), exported(&text(), prefix), "{heading}");
    }
}

/// Returns the metrics in the table below a heading of the page of metrics.
fn documented(heading: &str) -> BTreeSet<String> {
    let rows = table(&text_of("docs/reference/metrics.md"), heading);
    let names = rows.iter().flat_map(|cells| cells[0].split(", ").map(str::to_owned));
    names
        .map(|name| name.trim_matches('`').split('{').next().unwrap_or_default().to_owned())
        .collect()
}

/// Returns the metrics in the text of `/metrics`. A histogram counts as one metric.
fn exported(text: &str, prefix: &str) -> BTreeSet<String> {
    let of_histogram = |name: &str| {
        let ends = ["_bucket", "_sum", "_count"];
        ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned()
    };
    series(text)
        .keys()
        .map(|name| of_histogram(name.strip_prefix(prefix).expect("the prefix")))
        .collect()
}

#[test]
fn every_panel_asks_for_metrics_that_exist() {
    for MonitoringFiles { dashboard, .. } in [RELAY, CONSUMER] {
        assert_asks_with_every_panel(dashboard);
    }
}

#[test]
fn every_alert_has_a_panel_with_one_of_its_metrics() {
    for MonitoringFiles { rules, dashboard, prefix, .. } in [RELAY, CONSUMER] {
        let dashboard = text_of(dashboard);
        let documents = documents(rules);
        for rule in mappings(&documents[0]) {
            let Some(alert) = rule.get("alert").and_then(serde_yaml_ng::Value::as_str) else {
                continue;
            };
            let query = rule["expr"].as_str().unwrap();
            let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let mut metrics = words.filter(|word| word.starts_with(prefix));
            assert!(metrics.any(|metric| dashboard.contains(metric)), "{alert} has no panel");
        }
    }
}

fn assert_asks_with_every_panel(path: &str) {
    let dashboard: serde_json::Value = serde_json::from_str(&text_of(path)).unwrap();
    let mut looked_at = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        let Some(targets) = panel.get("targets").and_then(serde_json::Value::as_array) else {
            assert_eq!(panel["type"], "row", "{title} asks for nothing");
            continue;
        };
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            let query = query.replace("$__rate_interval", "5m").replace("$job", ".*");
            let query = query.replace("$consumer", ".*");
            assert_asks_for_what_there_is(&query, title);
            looked_at += 1;
        }
    }
    assert!(looked_at >= 15, "only {looked_at} queries");
}
