//! Checks the Alertmanager example: each alert has a receiver, and each named alert and label exists.
//!
//! `amtool` is in no package registry, so the shape is checked here.

use std::collections::BTreeSet;

use serde_yaml_ng::Value;

use crate::{documents, mappings};

const EXAMPLE: &str = "deploy/prometheus/alertmanager.yaml";

fn texts(value: &Value) -> Vec<String> {
    let list = value.as_sequence().unwrap_or_else(|| panic!("{value:?} is no list"));
    list.iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Returns the names and the severities of all alerts.
fn alerts() -> (BTreeSet<String>, BTreeSet<String>) {
    let rules = ["walrelay", "walrelay-consumer"]
        .map(|of| documents(&format!("deploy/prometheus/{of}.rules.yaml")));
    let alerts: Vec<&Value> = rules
        .iter()
        .flat_map(|documents| mappings(&documents[0]))
        .filter(|rule| rule.get("alert").is_some())
        .collect();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (
        alerts.iter().map(|rule| text(&rule["alert"])).collect(),
        alerts.iter().map(|rule| text(&rule["labels"]["severity"])).collect(),
    )
}

/// A condition on a label, such as `alertname=~"A|B"`.
fn matcher(text: &str) -> (String, Vec<String>) {
    let (label, rest) = text.split_once('=').unwrap_or_else(|| panic!("{text} has no operator"));
    let value = rest.trim_start_matches('~').trim_matches('"');
    (label.to_owned(), value.split('|').map(str::to_owned).collect())
}

#[test]
fn each_severity_has_a_route_to_a_receiver_that_exists() {
    let example = &documents(EXAMPLE)[0];
    let receivers: BTreeSet<&str> = example["receivers"]
        .as_sequence()
        .unwrap()
        .iter()
        .map(|receiver| receiver["name"].as_str().unwrap())
        .collect();
    let all = &example["route"];
    assert!(receivers.contains(all["receiver"].as_str().unwrap()));
    let mut routed = BTreeSet::new();
    for route in all["routes"].as_sequence().unwrap() {
        assert!(receivers.contains(route["receiver"].as_str().unwrap()), "{route:?}");
        let matchers = texts(&route["matchers"]);
        let severity =
            matchers.iter().map(|text| matcher(text)).find(|(label, _)| label == "severity");
        routed.extend(severity.unwrap_or_else(|| panic!("{route:?} has no severity")).1);
    }
    assert_eq!(routed, alerts().1);
}

#[test]
fn only_alerts_and_labels_that_exist_silence_each_other() {
    let (names, _) = alerts();
    let example = &documents(EXAMPLE)[0];
    let rules = example["inhibit_rules"].as_sequence().unwrap();
    assert!(rules.len() >= 3, "{rules:?}");
    for rule in rules {
        let (mut source, mut target) = (Vec::new(), Vec::new());
        for (side, found) in [("source_matchers", &mut source), ("target_matchers", &mut target)] {
            for (label, values) in texts(&rule[side]).iter().map(|text| matcher(text)) {
                assert_eq!(label, "alertname", "{rule:?}");
                found.extend(values);
            }
        }
        for name in source.iter().chain(&target) {
            assert!(names.contains(name), "there is no alert {name}");
        }
        assert!(source.iter().all(|name| !target.contains(name)), "{rule:?} silences itself");
        if let Some(equal) = rule.get("equal") {
            let labels = texts(equal);
            assert!(labels.iter().all(|label| ["topic", "consumer"].contains(&label.as_str())));
        }
    }
    let grouped = texts(&example["route"]["group_by"]);
    assert_eq!(grouped, ["alertname", "job", "consumer"]);
}
