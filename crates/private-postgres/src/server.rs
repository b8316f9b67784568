//! The life of a private server, from its start to the removal of its files.

mod copies;
mod reset_wal;
mod upgrade;

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use crate::account::Account;
use crate::readiness::{accepts_connections, free_port, poll_until};
use crate::settings::config_lines;
use crate::storage::Storage;
use crate::supervisor::{Signal, Supervisor};
use crate::{Installation, StartError, StopError};

pub use copies::Backup;

/// The time limit for a start, which includes crash recovery on a busy machine.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// The time limit for a stop, because a fast stop waits for replication clients.
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// The number of attempts to bind a port. Another process may take a free port before the server
/// binds it.
const PORT_ATTEMPTS_MAX: u32 = 10;

/// A private Postgres server. Dropping the value ends the server and removes its data.
///
/// All methods block, so call them from a thread that may wait.
#[derive(Debug)]
pub struct PrivatePostgres {
    // Fields drop in this order: the server must end before its folder is removed.
    supervisor: Option<Supervisor>,
    storage: Storage,
    installation: Installation,
    account: Account,
    port: u16,
}

impl PrivatePostgres {
    /// Starts a server with `settings` on top of the defaults, and waits until it accepts
    /// connections.
    ///
    /// The data is a copy of a template, so all servers of one version share a system identifier.
    ///
    /// # Errors
    ///
    /// [`StartError`], with the end of the server's log where one exists.
    pub fn start(
        installation: &Installation,
        settings: &[(&str, &str)],
    ) -> Result<Self, StartError> {
        Self::start_with(installation, settings, Storage::fill_from_template)
    }

    /// As [`start`](Self::start), but slower and with a unique system identifier.
    pub fn start_with_own_identity(
        installation: &Installation,
        settings: &[(&str, &str)],
    ) -> Result<Self, StartError> {
        Self::start_with(installation, settings, Storage::fill_with_initdb)
    }

    fn start_with(
        installation: &Installation,
        settings: &[(&str, &str)],
        fill: fn(&Storage, &Installation, &Account) -> Result<(), StartError>,
    ) -> Result<Self, StartError> {
        let account = Account::choose()?;
        let storage = Storage::create(&account)?;
        fill(&storage, installation, &account)?;
        let settings: Vec<(String, String)> = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Self::begin(installation, account, storage, &settings)
    }

    /// Starts a server on existing data, on a new port.
    fn begin(
        installation: &Installation,
        account: Account,
        storage: Storage,
        settings: &[(String, String)],
    ) -> Result<Self, StartError> {
        let mut server = Self {
            supervisor: None,
            storage,
            installation: installation.clone(),
            account,
            port: 0,
        };
        for _ in 0..PORT_ATTEMPTS_MAX {
            server.port =
                free_port().ok_or(StartError::NoFreePort { attempts: PORT_ATTEMPTS_MAX })?;
            server.configure(settings)?;
            match server.launch() {
                Err(StartError::Ended { log }) if log.contains("could not bind") => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(server),
            }
        }
        Err(StartError::NoFreePort { attempts: PORT_ATTEMPTS_MAX })
    }

    /// Returns the TCP port on 127.0.0.1. A restart keeps the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the folder of the Unix socket, for `host=`.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        self.storage.base()
    }

    /// Returns the connection string of a database, over TCP.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{database}", self.port)
    }

    #[must_use]
    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    #[must_use]
    pub fn log_tail(&self) -> String {
        self.storage.log_tail()
    }

    /// Requests a fast stop and returns at once. The server then waits for its replication clients.
    ///
    /// # Errors
    ///
    /// [`StopError::Tell`] when the supervisor cannot be reached.
    pub fn begin_stop_fast(&mut self) -> Result<(), StopError> {
        self.supervisor.as_mut().map_or(Ok(()), |supervisor| supervisor.signal(Signal::FastStop))
    }

    /// Stops the server as `pg_ctl stop -m fast` does, and waits for the end. The data stays for
    /// [`restart`](Self::restart).
    ///
    /// # Errors
    ///
    /// [`StopError::StillRunning`] when a client keeps the server from stopping.
    pub fn stop_fast(&mut self) -> Result<(), StopError> {
        self.stop(Signal::FastStop)
    }

    /// Ends the server at once without a checkpoint. As after a crash, the next start recovers from
    /// the WAL.
    pub fn crash(&mut self) -> Result<(), StopError> {
        self.stop(Signal::ImmediateStop)
    }

    /// Starts the server again on the same data and port. Stops a running server first.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and [`StartError::Stop`] when the server could not be stopped.
    pub fn restart(&mut self) -> Result<(), StartError> {
        self.stop_fast()?;
        self.launch()
    }

    pub fn is_running(&mut self) -> bool {
        self.supervisor.as_mut().is_some_and(|supervisor| !supervisor.has_ended())
    }

    fn stop(&mut self, signal: Signal) -> Result<(), StopError> {
        let Some(supervisor) = &mut self.supervisor else { return Ok(()) };
        supervisor.signal(signal)?;
        if !supervisor.wait_ended(STOP_DEADLINE) {
            let log = self.storage.log_tail();
            return Err(StopError::StillRunning { waited: STOP_DEADLINE, log });
        }
        // A supervisor that has seen its server end does not remove the folder.
        self.supervisor = None;
        Ok(())
    }

    /// Appends the settings to the file that `initdb` wrote. If a name occurs twice, the later line
    /// wins.
    fn configure(&self, settings: &[(String, String)]) -> Result<(), StartError> {
        let path = self.storage.data_dir().join("postgresql.conf");
        let lines = config_lines(self.port, self.storage.base(), settings);
        let append = || -> io::Result<()> {
            OpenOptions::new().append(true).open(&path)?.write_all(lines.as_bytes())
        };
        append().map_err(|source| StartError::Storage { path: path.clone(), source })
    }

    fn launch(&mut self) -> Result<(), StartError> {
        let mut supervisor = Supervisor::start(&self.installation, &self.account, &self.storage)?;
        let mut has_ended = false;
        let (socket_dir, port) = (self.storage.base(), self.port);
        let settled = poll_until(START_DEADLINE, || {
            has_ended = supervisor.has_ended();
            has_ended || accepts_connections(socket_dir, port)
        });
        let log = || self.storage.log_tail();
        match (has_ended, settled) {
            (true, _) => Err(StartError::Ended { log: log() }),
            (false, false) => Err(StartError::NotReady { waited: START_DEADLINE, log: log() }),
            (false, true) => {
                self.supervisor = Some(supervisor);
                Ok(())
            }
        }
    }
}
