//! One run's database, sink and working folder, and the values that a description may name.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use walrelay_testkit::process::clean_command;

use crate::description::{Peer, Variant, render};
use crate::extent::REPLY_MILLIS;
use walrelay_bench::database::{Database, Server};
use walrelay_bench::failure::Failure;
use walrelay_bench::process::{Output, Process};
use walrelay_bench::sink::{Keeping, Sink, SinkOptions, TOPIC};

/// A place in which a peer runs.
pub(crate) struct Workplace {
    pub(crate) database: Database,
    pub(crate) sink: Sink,
    command: Vec<String>,
    environment: Vec<(String, String)>,
    folder: PathBuf,
    /// The address of the liveness probe with its path.
    pub(crate) liveness: Option<(String, String)>,
}

impl Workplace {
    /// Creates a database with the peer's table and functions, and a sink.
    pub(crate) async fn create(
        server: &Server,
        peer: &Peer,
        variant: &Variant,
        keeping: Keeping,
    ) -> Result<Self, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut database = server.create(&format!("peer_{number}")).await?;
        database.client().batch_execute(&peer.sql()?).await?;
        // Reading starts at a slot's position, so the slot exists before the first row.
        let slot =
            if peer.has_own_table() { "unused".to_owned() } else { database.copy_slot().await? };
        let options = SinkOptions { delay_millis: REPLY_MILLIS, keeping, tls: false };
        let sink = Sink::start(options).await?;

        let folder =
            std::env::temp_dir().join(format!("walrelay-peer-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let places = places(peer, &database, &slot, &sink, &folder)?;
        for (path, template) in &variant.files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap_or(&folder))?;
            fs::write(&path, render(&peer.template(template)?, &places))?;
        }
        let environment = variant.environment.iter();
        let liveness = peer.liveness.as_ref().map(|url| {
            let url = render(url, &places);
            let rest = url.trim_start_matches("http://");
            let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
            (address.to_owned(), format!("/{path}"))
        });
        Ok(Self {
            command: variant.command.iter().map(|word| render(word, &places)).collect(),
            environment: environment
                .map(|(name, value)| (name.clone(), render(value, &places)))
                .collect(),
            database,
            sink,
            folder,
            liveness,
        })
    }

    /// Starts the peer in its folder.
    pub(crate) fn start(&self) -> Result<Process, Failure> {
        let (program, arguments) = self.command.split_first().ok_or("the command is empty")?;
        let mut command = clean_command(program);
        command.args(arguments).current_dir(&self.folder).envs(self.environment.iter().cloned());
        Process::start(program, command, Output::Log)
    }

    /// Removes the folder and, where the server still runs, the database.
    pub(crate) async fn remove(self, server: Option<&Server>) -> Result<(), Failure> {
        fs::remove_dir_all(&self.folder)?;
        match server {
            Some(server) => server.remove(self.database).await,
            None => Ok(()),
        }
    }
}

fn places(
    peer: &Peer,
    database: &Database,
    slot: &str,
    sink: &Sink,
    folder: &Path,
) -> Result<Vec<(&'static str, String)>, Failure> {
    let address = database.address()?;
    let (host, port) = address.split_once(':').ok_or("the server's address has no port")?;
    let name = database.url().rsplit('/').next().unwrap_or_default();
    let http = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let topic_id = TOPIC.rsplit('/').next().unwrap_or_default();
    let mut places = peer.places.clone();
    places.extend([
        ("url", database.url().to_owned()),
        ("host", host.to_owned()),
        ("port", port.to_owned()),
        ("user", "postgres".to_owned()),
        ("database", name.to_owned()),
        ("slot", slot.to_owned()),
        ("pubsub", sink.address()),
        ("project", "bench".to_owned()),
        ("topic", TOPIC.to_owned()),
        ("topic_id", topic_id.to_owned()),
        ("http", http),
        ("work", folder.display().to_string()),
    ]);
    Ok(places)
}
