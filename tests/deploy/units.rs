//! Checks the systemd unit.

use std::collections::BTreeMap;
use std::process::Command;

use walrelay_errors::Code;

use crate::manifests::{config, filled, is_variable};
use crate::{root, skipped, text_of};

fn setting(unit: &str, name: &str) -> String {
    let line = unit.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
    line.unwrap_or_else(|| panic!("the unit has no {name}")).to_owned()
}

#[test]
fn the_unit_starts_a_relay_whose_settings_are_accepted() {
    let unit = text_of("deploy/systemd/walrelay.service");
    let start = setting(&unit, "ExecStart");
    let start = start.strip_prefix("/usr/local/bin/walrelay ").expect("it starts walrelay");
    // The annotated example file contains every option and sets none.
    let example = root().join("deploy/walrelay.toml");
    let start = start.replace("/etc/walrelay/walrelay.toml", &example.to_string_lossy());
    let arguments: Vec<String> = start.split(' ').map(str::to_owned).collect();

    let environment = text_of("deploy/systemd/walrelay.env");
    let variables: BTreeMap<String, String> = environment
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), filled(value)))
        .collect();
    for name in variables.keys() {
        assert!(is_variable(name), "nothing reads {name}");
    }
    let service = config(&arguments, &variables, "the unit").service();
    let drain_timeout = service.expect("the unit runs a service").drain_timeout;
    let stop: u64 = setting(&unit, "TimeoutStopSec").trim_end_matches('s').parse().unwrap();
    assert!(drain_timeout.as_secs() + 2 < stop);
}

#[test]
fn the_unit_gives_up_only_where_starting_again_cannot_help() {
    let unit = text_of("deploy/systemd/walrelay.service");
    let codes: Vec<u8> = setting(&unit, "RestartPreventExitStatus")
        .split(' ')
        .map(|code| code.parse().unwrap())
        .collect();
    let given_up = [Code::ConfigurationInvalid.exit().code(), Code::SlotLost.exit().code()];
    assert_eq!(codes, given_up);
    assert!(!codes.contains(&Code::PostgresUnreachable.exit().code()));
}

/// Verifies the unit with systemd where it is installed. systemd prints nothing for a correct unit.
#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    let unit = text_of("deploy/systemd/walrelay.service");
    let folder = std::env::temp_dir().join(format!("walrelay-unit-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("walrelay.service");
    // `systemd-analyze` checks that the program exists.
    std::fs::write(&file, unit.replace("/usr/local/bin/walrelay", "/bin/true")).unwrap();
    let verified = Command::new("systemd-analyze").arg("verify").arg(&file).output();
    std::fs::remove_dir_all(&folder).unwrap();
    match verified {
        Ok(output) => {
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!told.contains("walrelay.service:"), "{told}");
        }
        Err(_) => skipped("systemd-analyze is not installed"),
    }
}
