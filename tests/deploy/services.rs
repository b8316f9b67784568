//! Runs the services of the compose file without containers, against a server with the same
//! options. The commands and settings are those of the file, and the run must end with the promised
//! event.

use std::collections::BTreeMap;

use serde_yaml_ng::Value;
use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::postgres::installation_or_skip;
use walrelay_testkit::process::clean_command;
use walrelay_testkit::relay::{Relay, RelayCommand, binary};
use walrelay_tests::DEADLINE;

use crate::{documents, skipped, words};

fn service(name: &str) -> Value {
    documents("docker-compose.yml")[0]["services"][name].clone()
}

/// Pairs of a service's address in the container network and its address in this test.
struct Network(Vec<(&'static str, String)>);

impl Network {
    fn translated(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (there, here)| text.replace(there, here))
    }

    /// Returns the service's command with its settings.
    fn command(&self, of: &str) -> RelayCommand {
        let service = service(of);
        let arguments = words(&service["command"]);
        let arguments: Vec<String> =
            arguments.iter().map(|argument| self.translated(argument)).collect();
        let command = RelayCommand::new(&arguments).expect("the binary was there before");
        let none = serde_yaml_ng::Mapping::new();
        let environment = service.get("environment").and_then(Value::as_mapping).unwrap_or(&none);
        environment.iter().fold(command, |command, (name, value)| {
            command.env(name.as_str().unwrap(), &self.translated(value.as_str().unwrap()))
        })
    }
}

/// Returns a port that is currently free, for a program that needs a port setting.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// Starts Postgres with the options of the compose file.
fn server() -> Option<PrivatePostgres> {
    let installation = installation_or_skip()?;
    let command = words(&service("postgres")["command"]);
    let options = command.iter().filter_map(|word| word.strip_prefix("-c")?.split_once('='));
    let options: Vec<(&str, &str)> = options.collect();
    assert!(options.len() >= 4, "{command:?}");
    Some(PrivatePostgres::start(&installation, &options).expect("a server starts"))
}

#[tokio::test]
async fn the_services_deliver_an_event_and_check_finds_no_problem() {
    if binary().is_none() {
        return skipped("the binary is not built");
    }
    let Some(server) = server() else { return };
    let (grpc, control, http) = (free_port(), free_port(), free_port());
    let network = Network(vec![
        ("postgresql://postgres:postgres@postgres:5432/postgres", server.url("postgres")),
        ("pubsub:8085", format!("127.0.0.1:{grpc}")),
        ("0.0.0.0:8085", format!("127.0.0.1:{grpc}")),
        ("0.0.0.0:8086", format!("127.0.0.1:{control}")),
        ("pubsub/8086", format!("127.0.0.1/{control}")),
        ("0.0.0.0:8080", format!("127.0.0.1:{http}")),
    ]);
    let pubsub = network.command("pubsub").start();
    pubsub.wait_for_line(DEADLINE, "control port").await;
    let init = network.command("init").finish(DEADLINE).await;
    assert_eq!(init.code, Some(0), "{}", init.text);
    let relay = network.command("relay").start();
    relay.wait_for_line(DEADLINE, "\"streaming\"").await;

    let shown = event(&network).await;
    assert!(shown.contains("Pub/Sub has:") && shown.contains("A-1"), "{shown}");
    no_finding(&network, &relay).await;
    drop(pubsub);
}

/// Runs the script of the last service in a shell and returns its output.
async fn event(network: &Network) -> String {
    let service = service("event");
    assert_eq!(words(&service["entrypoint"]), ["bash", "-euc"]);
    let script = words(&service["command"])[0].replace("$$", "$");
    let mut command = clean_command("bash");
    command.args(["-euc", &script]);
    let environment: BTreeMap<String, String> =
        serde_yaml_ng::from_value(service["environment"].clone()).expect("texts");
    command.envs(environment.iter().map(|(name, value)| (name, network.translated(value))));
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output.expect("bash is waited for").expect("bash starts");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

/// Checks that `check` reports no problem on the server of the compose file.
async fn no_finding(network: &Network, _streaming: &Relay) {
    let relay = service("relay");
    let environment = relay["environment"].as_mapping().expect("settings");
    let command = RelayCommand::new(["check", "--output", "json"]).expect("the binary");
    let command = environment.iter().fold(command, |command, (name, value)| {
        command.env(name.as_str().unwrap(), &network.translated(value.as_str().unwrap()))
    });
    let done = command.finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    let findings: serde_json::Value = serde_json::from_str(&done.text).expect("JSON");
    let findings = findings["findings"].as_array().expect("a list");
    // The slot is active because the relay of the compose file uses it.
    let wrong: Vec<_> = findings
        .iter()
        .filter(|finding| finding["severity"] != "ok" && finding["code"] != "slot-held")
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
