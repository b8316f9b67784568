//! The private server from start to removal.

mod copies;
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

/// How long a start may take: recovery after a crash under load, on a busy machine.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// How long a stop may take: a fast stop waits for replication clients.
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// Another process may take a port between our look and the server's bind.
const PORT_ATTEMPTS_MAX: u32 = 10;

/// A Postgres server of our own, gone when this is dropped.
///
/// All methods block: call them from a thread that may wait.
#[derive(Debug)]
pub struct PrivatePostgres {
    // Dropped in this order: the server ends before its folder is removed.
    supervisor: Option<Supervisor>,
    storage: Storage,
    installation: Installation,
    account: Account,
    port: u16,
}

impl PrivatePostgres {
    /// Starts a server with `settings` on top of our own, and waits until it accepts connections.
    ///
    /// Its data is a copy of a template, so all servers of one version share a system identifier.
    ///
    /// # Errors
    ///
    /// [`StartError`], with the end of the server's log where there is one.
    pub fn start(
        installation: &Installation,
        settings: &[(&str, &str)],
    ) -> Result<Self, StartError> {
        Self::start_with(installation, settings, Storage::fill_from_template)
    }

    /// As [`start`](Self::start), but slower and with a system identifier that no other server has.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
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

    /// Starts a server on data that is there, at a port of its own.
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

    /// The TCP port on 127.0.0.1; a restart keeps it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of the Unix socket, for `host=`.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        self.storage.base()
    }

    /// The connection string of a database, over TCP.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The binaries it runs on.
    #[must_use]
    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    /// The last lines of the server's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.storage.log_tail()
    }

    /// Asks for a fast stop and returns at once: the server then waits for its replication clients.
    ///
    /// # Errors
    ///
    /// [`StopError::Tell`] when the supervisor cannot be reached.
    pub fn begin_stop_fast(&mut self) -> Result<(), StopError> {
        self.supervisor.as_mut().map_or(Ok(()), |supervisor| supervisor.signal(Signal::FastStop))
    }

    /// Stops as `pg_ctl stop -m fast` does, and waits. The data stays for [`restart`](Self::restart).
    ///
    /// # Errors
    ///
    /// [`StopError::StillRunning`] when a client keeps the server from stopping.
    pub fn stop_fast(&mut self) -> Result<(), StopError> {
        self.stop(Signal::FastStop)
    }

    /// Ends at once without a checkpoint: the next start recovers from the WAL, as after a crash.
    ///
    /// # Errors
    ///
    /// [`StopError`] when the server does not end.
    pub fn crash(&mut self) -> Result<(), StopError> {
        self.stop(Signal::ImmediateStop)
    }

    /// Starts again on the same data and port; a running server is stopped first.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start); [`StartError::Stop`] when it could not be stopped.
    pub fn restart(&mut self) -> Result<(), StartError> {
        self.stop_fast()?;
        self.launch()
    }

    /// Whether the server process is there.
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
        // A supervisor that has seen the end of its server leaves the folder alone.
        self.supervisor = None;
        Ok(())
    }

    /// Appends to the file that `initdb` wrote; of two lines for one name the later counts.
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
