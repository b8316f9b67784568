//! Checks properties of deployment files that no command of walrelay depends on: least privilege,
//! and panels that explain themselves, also while they are empty.

use crate::{RENDERED_CHART, documents, files, mappings, text_of};

/// Parts of queries that find nothing before the first row, failure or anchor, or without a limit.
const MAY_FIND_NOTHING: [&str; 5] =
    [">= 0", "by (topic", "by (code", "by (anchor", "walrelay_commit_to_ack"];

#[test]
fn no_pod_gets_a_token_of_the_cluster() {
    let mut pods = 0;
    let is_for_kubernetes =
        |path: &&String| path.starts_with("deploy/kubernetes/") || *path == RENDERED_CHART;
    for path in files(&[".yaml"]).iter().filter(is_for_kubernetes) {
        for document in &documents(path) {
            for spec in mappings(document).into_iter().filter(|it| it.get("containers").is_some()) {
                assert_eq!(spec["automountServiceAccountToken"], false, "{path}");
                pods += 1;
            }
        }
    }
    assert!(pods >= 7, "only {pods} pods");
}

#[test]
fn the_unit_creates_files_for_its_user_alone() {
    assert!(text_of("deploy/systemd/walrelay.service").contains("\nUMask=0077\n"));
}

#[test]
fn every_panel_of_a_dashboard_has_a_description() {
    for path in ["deploy/grafana/walrelay.json", "deploy/grafana/walrelay-consumer.json"] {
        let dashboard: serde_json::Value = serde_json::from_str(&text_of(path)).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            let description = panel["description"].as_str().unwrap_or_default();
            let is_explained = panel["type"] == "row" || !description.trim().is_empty();
            assert!(is_explained, "{path}: panel {} has no description", panel["id"]);
        }
    }
}

#[test]
fn a_panel_that_is_empty_in_normal_operation_says_so_instead_of_no_data() {
    let mut checked = 0;
    for path in ["deploy/grafana/walrelay.json", "deploy/grafana/walrelay-consumer.json"] {
        let dashboard: serde_json::Value = serde_json::from_str(&text_of(path)).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            let Some(targets) = panel["targets"].as_array() else {
                continue;
            };
            let may_be_empty = targets.iter().all(|target| {
                let query = target["expr"].as_str().unwrap();
                MAY_FIND_NOTHING.iter().any(|part| query.contains(part))
            });
            if may_be_empty {
                let text = panel["fieldConfig"]["defaults"]["noValue"].as_str();
                assert!(text.is_some_and(|text| !text.is_empty()), "{path}: panel {}", panel["id"]);
                checked += 1;
            }
        }
    }
    assert!(checked >= 9, "only {checked} panels");
}
