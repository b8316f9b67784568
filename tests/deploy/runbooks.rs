//! Checks that each alert has a runbook of the agreed shape, and that the index lists it.

use std::collections::BTreeSet;

use crate::manual::table;
use crate::{documents, mappings, root, text_of};

const INDEX: &str = "docs/runbooks/README.md";

/// The headings of a runbook, in order.
const HEADINGS: [&str; 5] = ["Symptom", "Meaning", "Check", "Fix", "Do not"];

/// An alert of the rules.
struct Alert {
    name: String,
    severity: String,
}

impl Alert {
    /// Returns the file name of the alert's runbook: the name of the alert in kebab case.
    fn page(&self) -> String {
        let mut page = String::new();
        for letter in self.name.chars() {
            if letter.is_uppercase() && !page.is_empty() {
                page.push('-');
            }
            page.extend(letter.to_lowercase());
        }
        format!("{page}.md")
    }
}

/// Returns the alerts of the relay, and then those of the consumer.
fn alerts() -> [Vec<Alert>; 2] {
    ["walrelay", "walrelay-consumer"].map(|of| {
        let documents = documents(&format!("deploy/prometheus/{of}.rules.yaml"));
        let rules = mappings(&documents[0]).into_iter().filter(|rule| rule.get("alert").is_some());
        let text = |value: &serde_yaml_ng::Value| value.as_str().unwrap().to_owned();
        let alert = |rule: &serde_yaml_ng::Value| Alert {
            name: text(&rule["alert"]),
            severity: text(&rule["labels"]["severity"]),
        };
        rules.map(alert).collect()
    })
}

#[test]
fn every_alert_has_a_runbook_with_the_five_headings() {
    let alerts = alerts();
    for alert in alerts.iter().flatten() {
        let page = text_of(&format!("docs/runbooks/{}", alert.page()));
        assert_eq!(page.lines().next(), Some(format!("# {}", alert.name).as_str()));
        let headings: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings, HEADINGS, "{}", alert.name);
        let severity = format!("Severity: {}.", alert.severity);
        assert!(page.contains(&severity), "{}: no {severity:?}", alert.name);
    }
}

#[test]
fn every_alert_has_a_unit_test_in_which_it_fires() {
    for (alerts, of) in alerts().iter().zip(["walrelay", "walrelay-consumer"]) {
        let tests = text_of(&format!("deploy/prometheus/tests/{of}.test.yaml"));
        for alert in alerts {
            let fires = format!("{{alertname=\"{}\"", alert.name);
            assert!(tests.contains(&fires), "{} never fires in a unit test", alert.name);
        }
    }
}

#[test]
fn every_runbook_is_of_an_alert() {
    let pages: BTreeSet<String> = alerts().iter().flatten().map(Alert::page).collect();
    let folder = std::fs::read_dir(root().join("docs/runbooks")).unwrap();
    let names = folder.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let found: BTreeSet<String> = names.filter(|name| name != "README.md").collect();
    assert_eq!(found, pages);
}

#[test]
fn the_index_lists_every_alert_with_its_severity() {
    for (alerts, heading) in alerts().iter().zip(["Relay", "Consumer"]) {
        let rows = table(&text_of(INDEX), heading);
        let listed: BTreeSet<(&str, &str)> =
            rows.iter().map(|cells| (cells[0].as_str(), cells[1].as_str())).collect();
        let links: Vec<String> =
            alerts.iter().map(|alert| format!("[{}]({})", alert.name, alert.page())).collect();
        let all: BTreeSet<(&str, &str)> = links
            .iter()
            .zip(alerts)
            .map(|(link, alert)| (link.as_str(), alert.severity.as_str()))
            .collect();
        assert_eq!(listed, all, "{heading}");
    }
}
