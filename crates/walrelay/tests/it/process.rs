//! The real binary: exit codes, output streams, and how it stops.

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
fn a_wrong_configuration_exits_with_2_and_names_its_problems() {
    for (arguments, names) in [
        (
            &["run", "--park-after", "soon"][..],
            &["error[configuration-invalid]", "--park-after"][..],
        ),
        (&["run"], &["error[configuration-invalid]", "--database-url", "--project", "PORT"]),
    ] {
        let output = walrelay(arguments, &[("PORT", "x")]);
        assert_eq!(output.status.code(), Some(2));
        let message = text(&output.stderr);
        for name in names {
            assert!(message.contains(name), "{name} is missing in {message}");
        }
    }
}

#[test]
fn a_port_in_use_has_one_code_for_the_relay_and_the_consumer() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let variables = [
        ("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none"),
        ("PUBSUB_EMULATOR_HOST", "127.0.0.1:1"),
        ("WALRELAY_HTTP", address.as_str()),
    ];
    for arguments in [
        &["run", "--project", "p"][..],
        &["consumer", "run", "billing", "--handler", "shop.apply", "--project", "p"],
    ] {
        let output = walrelay(arguments, &variables);
        let message = text(&output.stderr);
        assert!(message.contains("address-in-use"), "{arguments:?}: {message}");
        assert!(!message.contains("local-resource-unavailable"), "{message}");
    }
}

#[test]
fn the_error_of_a_one_shot_command_is_json_only_where_its_output_is() {
    let output = walrelay(&["explain", "slot_lost"], &[]);
    assert_eq!(output.status.code(), Some(2));
    let message = text(&output.stderr);
    assert!(message.starts_with("error[error-code-unknown]: "), "{message}");
    assert!(message.contains("\nfix: "), "{message}");

    let in_json = walrelay(&["explain", "slot_lost", "-o", "json"], &[]);
    assert_eq!(in_json.status.code(), Some(2));
    let error: serde_json::Value = serde_json::from_slice(&in_json.stderr).unwrap();
    assert_eq!((&error["error_code"], &error["exit"]), (&"error-code-unknown".into(), &2.into()));
    assert!(error["fix"].is_string() && error["message"].is_string(), "{error}");
}

#[test]
fn usage_and_configuration_errors_are_json_where_json_was_asked_for() {
    for (arguments, code) in [
        (&["frobnicate", "-o", "json"][..], "configuration-invalid"),
        (&["status", "--no-such-option", "--output=json"], "configuration-invalid"),
        (&["status", "--output", "json", "--watch=never"], "configuration-invalid"),
        (&["status", "-ojson"], "configuration-invalid"),
    ] {
        let output = walrelay(arguments, &[]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let message = text(&output.stderr);
        let error: serde_json::Value = serde_json::from_str(message).expect(message);
        assert_eq!((&error["error_code"], &error["exit"]), (&code.into(), &2.into()), "{error}");
        assert!(error["fix"].is_string() && error["message"].is_string(), "{error}");
    }
    let variable = [("WALRELAY_OUTPUT", "json")];
    let in_environment = walrelay(&["status", "--no-such-option"], &variable);
    let message = text(&in_environment.stderr);
    assert!(message.starts_with("{"), "{message}");
    let as_text = walrelay(&["status", "--no-such-option", "-o", "text"], &variable);
    assert!(text(&as_text.stderr).starts_with("error: "), "{as_text:?}");
    let other_command = walrelay(&["config", "check", "--", "status", "-o", "json", "-x"], &[]);
    assert!(text(&other_command.stderr).starts_with("error["), "{other_command:?}");
}

#[test]
fn sql_is_printed_as_sql_also_where_json_was_asked_for() {
    let output = walrelay(&["init", "--sql", "-o", "json"], &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).contains("CREATE TABLE"), "{}", text(&output.stdout));
}

#[test]
fn help_exits_with_0_for_every_command() {
    let commands = [
        "init",
        "check",
        "run",
        "status",
        "dispatch",
        "slot",
        "prune",
        "emulator",
        "demo",
        "config",
        "explain",
        "completions",
        "man",
    ];
    for command in commands {
        let output = walrelay(&[command, "--help"], &[]);
        assert_eq!(output.status.code(), Some(0), "{command}");
        assert!(text(&output.stdout).contains("Usage: walrelay"), "{command}");
    }
}

#[test]
fn an_address_in_use_says_so_and_is_one_json_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let given = [("DATABASE_URL", "postgresql://u@127.0.0.1:1/d"), ("PUBSUB_PROJECT_ID", "p")];
    for arguments in [["emulator", "--listen", &address], ["run", "--http", &address]] {
        let output = walrelay(&arguments, &given);
        assert_eq!(output.status.code(), Some(1));
        let lines: Vec<&str> = text(&output.stderr).lines().collect();
        let line: serde_json::Value = serde_json::from_str(lines.last().unwrap()).unwrap();
        assert_eq!(line["severity"], "ERROR");
        assert!(line["message"].as_str().unwrap().contains(&address), "{line}");
        assert!(line["fix"].as_str().unwrap().contains("Stop the other process"), "{line}");
    }
}

#[test]
fn completions_of_each_shell_name_every_command_and_its_options() {
    for shell in ["bash", "zsh", "fish"] {
        let output = walrelay(&["completions", shell], &[]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let script = text(&output.stdout);
        for word in ["dispatch", "emulator", "completions", "until-caught-up", "all-dead"] {
            assert!(script.contains(word), "{shell}: {word} is missing");
        }
    }
    let refused = walrelay(&["completions", "tcsh"], &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("bash, zsh, fish"), "{}", text(&refused.stderr));
}

#[test]
fn bash_accepts_its_completions_and_completes_with_them() {
    let script = walrelay(&["completions", "bash"], &[]).stdout;
    let asked = format!(
        "{}\nCOMP_WORDS=(walrelay dis); COMP_CWORD=1; _walrelay walrelay dis walrelay; echo \"${{COMPREPLY[@]}}\"",
        text(&script)
    );
    // The script goes into a file, because it is longer than Linux accepts as an argument.
    let file = std::env::temp_dir().join(format!("walrelay-{}-completions", std::process::id()));
    std::fs::write(&file, asked).unwrap();
    let answer = Command::new("bash").arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(text(&answer.stdout).trim(), "dispatch", "{}", text(&answer.stderr));
}

#[test]
fn there_is_a_man_page_for_each_command() {
    let directory = std::env::temp_dir().join(format!("walrelay-{}-man", std::process::id()));
    let output = walrelay(&["man", directory.to_str().unwrap()], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    assert!(page("walrelay.1").contains(".TH walrelay 1"));
    assert!(page("walrelay-run.1").contains("park\\-after"));
    assert!(page("walrelay-dispatch-list.1").contains("older\\-than"));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn config_show_prints_every_value_with_its_source_and_no_secret() {
    let file = std::env::temp_dir().join(format!("walrelay-{}-show.toml", std::process::id()));
    std::fs::write(&file, "slot = \"mine\"\n[consumer]\nworkers = 7\n").unwrap();
    let file = file.to_str().unwrap();
    let given = [
        ("DATABASE_URL", "postgresql://relay:hunter2@db/app"),
        ("WALRELAY_PARK_AFTER", "1s"),
        ("WALRELAY_CONFIG", file),
    ];
    let show = |arguments: &[&str]| {
        let output = walrelay(&[&["config", "show"], arguments].concat(), &given);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(!text(&output.stdout).contains("hunter2"), "{}", text(&output.stdout));
        text(&output.stdout).to_owned()
    };
    let json: serde_json::Value = serde_json::from_str(&show(&["--output", "json"])).unwrap();
    let value = |shown: &serde_json::Value, name: &str| {
        let of = |value: &&serde_json::Value| value["option"] == name;
        let found = shown.as_array().unwrap().iter().find(of);
        let found = found.unwrap_or_else(|| panic!("{name} is missing in {shown:#}"));
        (found["value"].clone(), found["source"].as_str().unwrap().to_owned())
    };
    for (name, expected, source) in [
        ("slot", "mine", file),
        ("park-after", "1s", "WALRELAY_PARK_AFTER"),
        ("max-attempts", "20", "default"),
        ("database-url", "postgresql://relay:***@db/app", "DATABASE_URL"),
    ] {
        assert_eq!(value(&json, name), (expected.into(), source.to_owned()), "{name}");
    }
    assert_eq!(value(&json, "project"), (serde_json::Value::Null, "default".to_owned()));
    let flags = ["--output=json", "--", "run", "--slot", "flag"];
    let of_run: serde_json::Value = serde_json::from_str(&show(&flags)).unwrap();
    assert_eq!(value(&of_run, "slot"), ("flag".into(), "command line".to_owned()));
    let consumer = show(&["--", "consumer", "run", "billing"]);
    let workers = consumer.lines().find(|line| line.starts_with("workers ")).unwrap();
    assert!(workers.contains(" 7 ") && workers.ends_with(file), "{workers}");
    assert!(consumer.contains("max-attempts") && !consumer.contains("park-after"), "{consumer}");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn config_check_names_problems_without_connecting_and_config_schema_prints_the_schema() {
    let given = [("DATABASE_URL", "postgresql://relay@127.0.0.1:1/app")];
    let refused = walrelay(&["config", "check"], &given);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--project: not set"), "{}", text(&refused.stderr));
    let given = [given[0], ("WALRELAY_PROJECT", "p")];
    let valid = walrelay(&["config", "check"], &given);
    assert_eq!(valid.status.code(), Some(0), "{}", text(&valid.stderr));
    let wrong = walrelay(&["config", "check", "--", "run", "--workers", "2"], &given);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("--workers"), "{}", text(&wrong.stderr));
    let file =
        std::env::temp_dir().join(format!("walrelay-unknown-key-{}.toml", std::process::id()));
    std::fs::write(&file, "parkafter = '1m'\n").unwrap();
    let of_file = ["config", "check", "--config", file.to_str().unwrap()];
    let unknown = text(&walrelay(&of_file, &given).stderr).to_owned();
    std::fs::remove_file(file).unwrap();
    assert_eq!(unknown.matches("parkafter").count(), 1, "{unknown}");
    assert!(unknown.contains("1 problem in options or configuration"), "{unknown}");
    let schema = walrelay(&["config", "schema"], &[]);
    let schema: serde_json::Value = serde_json::from_slice(&schema.stdout).unwrap();
    assert_eq!(schema["title"], "walrelay.toml");
}

#[test]
fn a_guess_is_refused_and_the_right_command_is_named() {
    for (guess, command) in [
        (&["slot", "show"][..], "walrelay status"),
        (&["consume", "billing", "--handler", "shop.apply"], "walrelay consumer run"),
        (&["prepare-upgrade"], "walrelay slot release"),
        (&["slot", "delete"], "walrelay slot drop"),
        (&["dispatch", "describe", "7"], "walrelay dispatch show"),
        (&["upgrade"], "walrelay slot release"),
        (&["--log-level", "debug", "backfill"], "walrelay replay start --source table"),
    ] {
        let output = walrelay(guess, &[]);
        assert_eq!(output.status.code(), Some(2), "{guess:?}");
        assert!(text(&output.stderr).contains(command), "{guess:?}: {}", text(&output.stderr));
    }
}

#[test]
fn the_short_help_of_run_fits_on_one_screen_and_the_long_one_has_every_option() {
    let short = walrelay(&["run", "-h"], &[]);
    let short = text(&short.stdout);
    assert!(short.lines().count() <= 50, "{} lines:\n{short}", short.lines().count());
    assert!(short.contains("--topic-template") && !short.contains("--park-after"), "{short}");
    let long = walrelay(&["run", "--help"], &[]);
    assert!(text(&long.stdout).contains("--park-after"));
}

#[test]
fn root_certificates_that_cannot_be_read_have_a_fix_of_their_own() {
    let inline = "postgresql://relay:hunter2@db.example:5432/app?sslmode=verify-full";
    // A file that is no certificate.
    let file = format!("{inline}&sslrootcert={}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
    let gone = format!("{inline}&sslrootcert=/nowhere.pem");
    let report = |command: &str, url: &str, variables: &[(&str, &str)]| {
        let output = walrelay(&[command, "--database-url", url], variables);
        assert_eq!(output.status.code(), Some(2));
        let report = text(&output.stderr).to_owned();
        assert!(!report.contains("hunter2"), "{report}");
        report
    };
    for told in [
        report("status", &file, &[]),
        report("status", &gone, &[]),
        report("status", inline, &[("WALRELAY_SSLROOTCERT_PEM", "garbage")]),
    ] {
        assert!(told.contains("fix: Set `sslrootcert` to a readable PEM file"), "{told}");
    }
    let both = report("run", &gone, &[]);
    assert!(both.contains("Correct each option"), "{both}");
}
