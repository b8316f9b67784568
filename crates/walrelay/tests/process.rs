//! The real binary: exit codes, where its output goes, how it stops.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::process::{Command, Output, Stdio};

fn walrelay(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_walrelay"))
        .args(arguments)
        .env_clear()
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn usage_errors_exit_with_2_and_leave_standard_output_alone() {
    for arguments in [&["frobnicate"][..], &["run", "--no-such-option"], &["dispatch", "show"]] {
        let output = walrelay(arguments, &[]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
        assert!(text(&output.stderr).contains("Usage"), "{}", text(&output.stderr));
    }
}

#[test]
fn a_wrong_configuration_exits_with_2_and_names_every_problem() {
    let output = walrelay(&["run", "--park-after", "soon", "--slot", "A B"], &[("PORT", "x")]);
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    for name in ["--park-after", "--slot", "--database-url", "--project", "PORT"] {
        assert!(message.contains(name), "{name} is missing in {message}");
    }
}

#[test]
fn help_exits_with_0_for_every_command() {
    for command in
        ["init", "check", "run", "status", "dispatch", "slot", "prune", "emulator", "demo"]
    {
        let output = walrelay(&[command, "--help"], &[]);
        assert_eq!(output.status.code(), Some(0), "{command}");
        assert!(text(&output.stdout).contains("Usage: walrelay"), "{command}");
    }
}

#[test]
fn an_address_in_use_is_an_unexpected_end_and_one_json_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = walrelay(&["emulator", "--listen", &address], &[]);
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<&str> = text(&output.stderr).lines().collect();
    let line: serde_json::Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    assert_eq!(line["severity"], "ERROR");
    assert!(line["message"].as_str().unwrap().contains(&address), "{line}");
}
