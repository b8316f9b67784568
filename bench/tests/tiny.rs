//! Runs the suite on tiny inputs, so that it keeps working.

use std::process::Command;

use walrelay_testkit::{relay, skip};

#[test]
fn every_workload_runs_and_every_target_is_judged() {
    let Some(relay) = relay::binary() else {
        let _: Option<()> = skip("the walrelay binary is not built: `cargo build -p walrelay`");
        return;
    };
    let results = std::env::temp_dir().join(format!("walrelay-bench-test-{}", std::process::id()));
    let run = Command::new(env!("CARGO_BIN_EXE_walrelay-bench"))
        .args(["--size", "tiny", "--relay"])
        .arg(relay)
        .arg("--results")
        .arg(&results)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{errors}");

    let file = std::fs::read_dir(&results).unwrap().next().unwrap().unwrap().path();
    let json = std::fs::read(file).unwrap();
    std::fs::remove_dir_all(&results).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    for (part, count) in [
        ("drains", 10),
        ("lives", 3),
        ("sharded", 3),
        ("traced", 2),
        ("outages", 2),
        ("again", 3),
        ("publishers", 14),
    ] {
        assert_eq!(json[part].as_array().unwrap().len(), count, "{part}");
    }
    // The two targets that compare with `pg_recvlogical` are missing where it is not installed.
    assert!(json["targets"].as_array().unwrap().len() >= 8);
    let consumers = json["consumers"].as_array().unwrap();
    assert_eq!(consumers.len(), 10);
    for consumer in consumers {
        let is_durable = consumer["name"].as_str().unwrap().contains("durable");
        let fsync = if is_durable { "fsync on, synchronous_commit on" } else { "fsync off," };
        assert!(consumer["server"].as_str().unwrap().starts_with(fsync), "{consumer}");
    }
    for drain in json["drains"].as_array().unwrap() {
        for round in drain["rounds"].as_array().unwrap() {
            assert_eq!(round["relay"]["duplicates"], 0, "{drain}");
        }
    }
    for sharded in json["sharded"].as_array().unwrap() {
        for round in sharded["rounds"].as_array().unwrap() {
            assert_eq!(round["duplicates"], 0, "{sharded}");
        }
    }
    for outage in json["outages"].as_array().unwrap() {
        assert_eq!(outage["duplicates"], 0, "{outage}");
    }
    for again in json["again"].as_array().unwrap() {
        assert_eq!(again["duplicates"], 0, "{again}");
    }
    for live in json["lives"].as_array().unwrap() {
        assert!(live["p50_millis"].as_f64().unwrap() > 0.0, "{live}");
        assert_eq!(live["duplicates"], 0, "{live}");
    }
}
