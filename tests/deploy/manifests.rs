//! Containers for Kubernetes, Cloud Run and compose: their commands, settings and probes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::Duration;

use serde_yaml_ng::Value;
use walrelay::cli::command;
use walrelay::config::{
    Config, Environment, Service, established_variables, variable as variable_of,
};
use walrelay::http::PATHS;
use walrelay::reference::options;

use crate::{documents, files, mappings, root, text_of, words};

/// Variables that the program reads in addition to those of its options.
const OTHERS: [&str; 8] = [
    "PUBSUB_EMULATOR_HOST",
    "WALRELAY_SSLROOTCERT_PEM",
    "PGPASSWORD",
    "PGPASSFILE",
    "PGUSER",
    "PORT",
    "RUST_LOG",
    "GOOGLE_APPLICATION_CREDENTIALS",
];

/// The label that distinguishes relay pods from consumer pods.
const NAME_LABEL: &str = "app.kubernetes.io/name";

/// Reports whether walrelay reads this variable.
pub(crate) fn is_variable(name: &str) -> bool {
    let is_of =
        |option: &str| variable_of(option) == name || established_variables(option).contains(&name);
    OTHERS.contains(&name) || options(&command()).iter().any(|option| is_of(&option.name))
}

/// Replaces the placeholders of a manifest with example values.
pub(crate) fn filled(text: &str) -> String {
    text.replace("PROJECT", "my-project").replace("REGION", "europe-west1")
}

/// Parses a command line as the program does.
pub(crate) fn config(
    arguments: &[String],
    variables: &BTreeMap<String, String>,
    place: &str,
) -> Config {
    let environment = Environment::new(variables);
    let line = ["walrelay".to_owned()].into_iter().chain(arguments.iter().cloned());
    Config::parse(line.map(OsString::from), &environment)
        .unwrap_or_else(|refusal| panic!("{place}: {arguments:?}: {refusal:?}"))
}

/// A container that runs walrelay.
struct Container<'a> {
    place: String,
    value: &'a Value,
    document: &'a Value,
}

impl Container<'_> {
    fn arguments(&self) -> Vec<String> {
        let given = self.value.get("args").or_else(|| self.value.get("command"));
        given.map(words).unwrap_or_default()
    }

    /// Returns the environment that the platform sets, with example values for secrets.
    fn variables(&self) -> BTreeMap<String, String> {
        let variables: BTreeMap<String, String> = match self.value.get("env") {
            Some(list) => list.as_sequence().unwrap().iter().map(variable).collect(),
            None => mapped(self.value.get("environment")),
        };
        for name in variables.keys() {
            assert!(is_variable(name), "{}: nothing reads {name}", self.place);
        }
        variables
    }

    /// Returns the container's declared ports with their optional names.
    fn ports(&self) -> Vec<(Option<&str>, u64)> {
        fn port(port: &Value) -> Option<(Option<&str>, u64)> {
            let number = port.get("containerPort")?.as_u64()?;
            Some((port.get("name").and_then(Value::as_str), number))
        }
        let list = self.value.get("ports").and_then(Value::as_sequence);
        list.into_iter().flatten().filter_map(port).collect()
    }
}

fn mapped(mapping: Option<&Value>) -> BTreeMap<String, String> {
    let map = mapping.and_then(Value::as_mapping);
    let text = |entry: &Value| entry.as_str().map(str::to_owned).unwrap_or_default();
    map.into_iter().flatten().map(|(name, value)| (text(name), text(value))).collect()
}

fn variable(entry: &Value) -> (String, String) {
    let name = entry["name"].as_str().unwrap().to_owned();
    let value = match (entry.get("value").and_then(Value::as_str), name.as_str()) {
        (Some(value), _) => filled(value),
        (None, "WALRELAY_DATABASE_URL") => {
            "postgresql://u@db.example:5432/d?sslmode=verify-full".into()
        }
        (None, "WALRELAY_SSLROOTCERT_PEM") => text_of("crates/testkit/testdata/localhost.crt"),
        (None, other) => panic!("a secret that is no known one: {other}"),
    };
    (name, value)
}

/// Returns the name of an image without its tag.
fn before_tag(image: &str) -> &str {
    image.split(':').next().unwrap_or(image)
}

/// Calls `look` for each container with the walrelay image, and for its document.
fn with_containers(look: impl Fn(&Container<'_>)) {
    let mut seen = 0;
    for path in files(&[".yaml", ".yml"]) {
        let documents = documents(&path);
        for document in &documents {
            let ours = |value: &&Value| {
                let image = value.get("image").and_then(Value::as_str);
                image.is_some_and(|image| ["IMAGE", "walrelay"].contains(&before_tag(image)))
            };
            for value in mappings(document).into_iter().filter(ours) {
                let place = format!("{path} ({})", document["kind"].as_str().unwrap_or("compose"));
                look(&Container { place, value, document });
                seen += 1;
            }
        }
    }
    assert!(seen >= 14, "only {seen} containers: the manifests had more");
}

/// The configuration file of a ConfigMap, written to a path that a test can read.
struct MountedFile(std::path::PathBuf);

impl MountedFile {
    fn of(path: &str) -> Self {
        let text = documents(path)
            .iter()
            .find_map(|document| Some(document.get("data")?["walrelay.toml"].as_str()?.to_owned()))
            .expect("a ConfigMap with a walrelay.toml");
        let name = format!(
            "walrelay-deploy-{}-{:?}.toml",
            std::process::id(),
            std::thread::current().id()
        );
        let file = std::env::temp_dir().join(name.replace(['(', ')'], ""));
        std::fs::write(&file, filled(&text)).unwrap();
        Self(file)
    }
}

impl Drop for MountedFile {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

fn command_of(container: &Container<'_>, mounted: &MountedFile) -> Option<Service> {
    let file = mounted.0.to_string_lossy();
    let argument = |word: String| match word.as_str() {
        "/etc/walrelay/walrelay.toml" => file.clone().into_owned(),
        _ => word,
    };
    let arguments: Vec<String> = container.arguments().into_iter().map(argument).collect();
    let mut variables = container.variables();
    if container.document["kind"].as_str() == Some("Service") {
        // Cloud Run sets `PORT` for a service with this port.
        let port = container.ports()[0].1;
        variables.insert("PORT".to_owned(), port.to_string());
    }
    config(&arguments, &variables, &container.place).service()
}

#[test]
fn every_container_starts_a_command_that_exists_with_settings_that_are_accepted() {
    let mounted = MountedFile::of("deploy/kubernetes/walrelay.yaml");
    with_containers(|container| {
        command_of(container, &mounted);
    });
}

#[test]
fn every_probe_asks_a_path_that_is_served_at_the_port_that_is_listened_on() {
    let mounted = MountedFile::of("deploy/kubernetes/walrelay.yaml");
    with_containers(|container| {
        let Some(program) = command_of(container, &mounted) else { return };
        let place = &container.place;
        let served = program.http.map(|address| u64::from(address.port()));
        for (_, port) in container.ports() {
            assert_eq!(Some(port), served, "{place}: a port nobody listens on");
        }
        for probe in mappings(container.value).iter().filter_map(|value| value.get("httpGet")) {
            assert!(served.is_some(), "{place}: nothing is served");
            let path = probe["path"].as_str().unwrap();
            assert!(PATHS.contains(&path), "{place}: {path} is not served");
            let port = probe.get("port").and_then(Value::as_str);
            let named = container.ports().iter().any(|(name, _)| *name == port);
            assert!(port.is_none() || named, "{place}: port {port:?}");
        }
        // A standby or a Pub/Sub outage must never lead to a restart.
        for name in ["startupProbe", "livenessProbe"] {
            let path = container.value.get(name).map(|probe| &probe["httpGet"]["path"]);
            assert!(path.is_none_or(|path| path == "/livez"), "{place}: {name}");
        }
    });
    for (path, deployment) in
        [("deploy/kubernetes/walrelay.yaml", 2), ("deploy/kubernetes/consumer.yaml", 1)]
    {
        let annotations =
            &documents(path)[deployment]["spec"]["template"]["metadata"]["annotations"];
        assert_eq!(annotations["prometheus.io/path"], "/metrics");
        assert_eq!(annotations["prometheus.io/port"], "8080");
    }
}

#[test]
fn the_network_policy_admits_monitoring_alone_and_to_the_served_port_alone() {
    let policy = &documents("deploy/kubernetes/network-policy.yaml")[0]["spec"];
    let selected = &policy["podSelector"]["matchExpressions"][0];
    assert_eq!((&selected["key"], &selected["operator"]), (&NAME_LABEL.into(), &"In".into()));
    assert_eq!(words(&policy["policyTypes"]), ["Ingress"]);
    let [rule] = policy["ingress"].as_sequence().unwrap().as_slice() else {
        panic!("one rule: {policy:?}")
    };
    // A rule without sources admits every client, and a rule without ports admits every port.
    let [source] = rule["from"].as_sequence().unwrap().as_slice() else { panic!("{rule:?}") };
    let namespace = &source["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"];
    assert_eq!(namespace, "monitoring");
    let [port] = rule["ports"].as_sequence().unwrap().as_slice() else { panic!("{rule:?}") };
    for path in ["deploy/kubernetes/walrelay.yaml", "deploy/kubernetes/consumer.yaml"] {
        let documents = documents(path);
        let deployment = documents.iter().find(|document| document["kind"] == "Deployment");
        let pod = &deployment.unwrap()["spec"]["template"];
        let name = pod["metadata"]["labels"][NAME_LABEL].as_str().unwrap();
        assert!(words(&selected["values"]).iter().any(|value| value == name), "{path}: {name}");
        let served = &pod["spec"]["containers"][0]["ports"][0]["name"];
        assert_eq!(&port["port"], served, "{path}");
    }
}

fn seconds(text: &str) -> Duration {
    Duration::from_secs(text.trim_end_matches('s').parse().unwrap())
}

#[test]
fn every_platform_waits_longer_for_a_stop_than_the_drain_takes() {
    let mounted = MountedFile::of("deploy/kubernetes/walrelay.yaml");
    with_containers(|container| {
        let Some(program) = command_of(container, &mounted) else { return };
        let kubernetes = mappings(container.document)
            .iter()
            .find_map(|value| value.get("terminationGracePeriodSeconds")?.as_u64());
        let compose = container.value.get("stop_grace_period").and_then(Value::as_str).map(seconds);
        // Cloud Run always waits ten seconds.
        let patience =
            kubernetes.map(Duration::from_secs).or(compose).unwrap_or(Duration::from_secs(10));
        assert!(program.drain_timeout + Duration::from_secs(2) < patience, "{}", container.place);
    });
}

#[test]
fn a_deployment_can_be_rolled_although_the_new_pod_is_ready_only_after_the_old_one_has_gone() {
    for path in ["deploy/kubernetes/walrelay.yaml", "deploy/kubernetes/consumer.yaml"] {
        assert_can_be_rolled(&documents(path));
    }
    // The slot is the relay's lease. Consumers share a subscription, so their rollout needs no such
    // setting.
    let relay = documents("deploy/kubernetes/walrelay.yaml");
    assert_eq!(relay[2]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"], 1);
}

fn assert_can_be_rolled(documents: &[Value]) {
    let of_kind = |kind: &str| {
        let found = documents.iter().find(|document| document["kind"].as_str() == Some(kind));
        &found.unwrap_or_else(|| panic!("no {kind}"))["spec"]
    };
    let deployment = of_kind("Deployment");
    assert_eq!(deployment["replicas"], 1);
    assert_eq!(deployment["selector"], of_kind("PodDisruptionBudget")["selector"]);
    assert_eq!(
        deployment["selector"]["matchLabels"]["app.kubernetes.io/name"],
        deployment["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
    );
}

#[test]
fn an_instance_is_started_again_after_a_failure_and_not_after_a_stop() {
    // Cloud Run's v1 reference allows Always, OnFailure and Never.
    let instance = &documents("deploy/cloud-run/instance.yaml")[0];
    assert_eq!(instance["spec"]["restartPolicy"], "OnFailure");
}

#[test]
fn the_image_is_built_of_what_exists_and_runs_as_nobody() {
    let dockerfile = text_of("Dockerfile");
    let ignored = text_of(".dockerignore");
    for kept in ignored.lines().filter_map(|line| line.strip_prefix('!')) {
        assert!(root().join(kept).exists(), "{kept} is sent to the build and does not exist");
    }
    // Without one of the workspace members, cargo refuses to build.
    for member in ["crates", "tests", "bench", "migrations", "Cargo.lock"] {
        assert!(ignored.contains(&format!("!{member}")), "{member} is left out");
    }
    let toolchain = text_of("rust-toolchain.toml");
    let version = toolchain.split('"').nth(1).unwrap();
    assert!(dockerfile.contains(&format!("FROM rust:{version}-")), "not the toolchain {version}");
    let last =
        |word: &str| dockerfile.lines().rfind(|line| line.starts_with(word)).unwrap_or_default();
    assert_eq!(last("FROM"), "FROM scratch");
    assert_eq!(last("USER"), "USER 65532:65532");
    let command: Vec<String> =
        serde_json::from_str(last("CMD").trim_start_matches("CMD ")).unwrap();
    let variables = [("DATABASE_URL", "postgresql://u@h/d"), ("WALRELAY_PROJECT", "p")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    config(&command, &variables, "Dockerfile");
}

#[test]
fn every_json_file_parses() {
    let paths: BTreeSet<String> = files(&[".json"]).into_iter().collect();
    assert!(paths.len() >= 2, "{paths:?}");
    for path in paths {
        let parsed = serde_json::from_str::<serde_json::Value>(&text_of(&path));
        assert!(parsed.is_ok(), "{path}: {parsed:?}");
    }
}
