//! Checks properties of deployment files that no command of walrelay depends on: least privilege,
//! and panels that explain themselves.

use crate::{RENDERED_CHART, documents, files, mappings, text_of};

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
