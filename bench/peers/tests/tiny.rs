//! Runs the comparison on tiny inputs, so that it keeps working.

use std::process::Command;

use walrelay_testkit::{relay, skip};

#[test]
fn the_comparison_measures_the_relay_and_lists_missing_peers_with_the_reason() {
    let Some(relay) = relay::binary() else {
        let _: Option<()> = skip("the walrelay binary is not built: `cargo build -p walrelay`");
        return;
    };
    let results = std::env::temp_dir().join(format!("walrelay-peers-test-{}", std::process::id()));
    let run = Command::new(env!("CARGO_BIN_EXE_walrelay-bench-peers"))
        .args(["--size", "tiny", "--installed", "/nonexistent", "--relay"])
        .arg(relay)
        .arg("--peers")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/relays"))
        .args(["--clients", "/nonexistent", "--consumers"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/consumers"))
        .arg("--results")
        .arg(&results)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{errors}");

    let json = std::fs::read(results.join("latest.json")).unwrap();
    let tables = std::fs::read_to_string(results.join("latest.md")).unwrap();
    std::fs::remove_dir_all(&results).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let measured = &json["measured"][0];
    assert_eq!(measured["peer"], "walrelay");
    assert_eq!(measured["failed"], serde_json::json!([]), "{errors}");
    for (part, count) in [("drains", 4), ("lives", 2), ("faults", 5)] {
        assert_eq!(measured[part].as_array().unwrap().len(), count, "{part}");
    }
    for fault in measured["faults"].as_array().unwrap() {
        assert_eq!(fault["verdict"]["lost"], 0, "{fault}");
        assert_eq!(fault["verdict"]["out_of_order"], 0, "{fault}");
    }
    let consumers = json["consumers"].as_array().unwrap();
    let names: Vec<&str> = consumers.iter().map(|it| it["consumer"].as_str().unwrap()).collect();
    let rust = "Google's Rust subscriber 1";
    assert_eq!(names, ["walrelay consumer run", rust, rust]);
    for consumer in consumers {
        assert_eq!(consumer["failed"], serde_json::json!([]), "{errors}");
        assert_eq!(consumer["drains"].as_array().unwrap().len(), 2);
        let fault = &consumer["faults"][0];
        assert!(fault["redelivered"].as_u64().unwrap() > 0, "{fault}");
        assert_eq!(fault["lost"], 0, "{fault}");
        let deduplicates = consumer["variant"] != "one transaction per message";
        assert_eq!(fault["applied_twice"] == 0, deduplicates, "{consumer}");
    }
    assert!(tables.contains("Google's Go subscriber 2.9: /nonexistent"), "{tables}");
    assert!(tables.contains("Debezium Server 3.0.8: /nonexistent"), "{tables}");
}
