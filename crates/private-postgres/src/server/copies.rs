//! Copies of a server's data: a backup to restore, or the base of a standby.

use std::fs;
use std::path::PathBuf;

use super::PrivatePostgres;
use crate::StartError;
use crate::storage::Storage;

/// A copy of a stopped server's data. Dropping the value removes the copy.
#[derive(Debug)]
pub struct Backup {
    storage: Storage,
}

impl PrivatePostgres {
    /// Copies the data of this server, which must be stopped.
    pub fn backup(&self) -> Result<Backup, StartError> {
        let storage = Storage::create(&self.account)?;
        storage.fill_from(&self.storage.data_dir(), &self.account)?;
        Ok(Backup { storage })
    }

    /// Replaces the data of this server, which must be stopped, with a backup.
    pub fn restore(&mut self, backup: &Backup) -> Result<(), StartError> {
        let data = self.storage.data_dir();
        let failed = |source| StartError::Storage { path: data.clone(), source };
        fs::remove_dir_all(&data).map_err(failed)?;
        self.storage.fill_from(&backup.storage.data_dir(), &self.account)
    }

    /// Starts an asynchronous standby of this server from a backup. The standby has no replication
    /// slots, as after `pg_basebackup`.
    pub fn start_standby(&self, backup: &Backup) -> Result<Self, StartError> {
        let storage = Storage::create(&self.account)?;
        storage.fill_from(&backup.storage.data_dir(), &self.account)?;
        let data = storage.data_dir();
        let failed = |path: PathBuf| move |source| StartError::Storage { path, source };
        let slots = data.join("pg_replslot");
        for slot in fs::read_dir(&slots).map_err(failed(slots.clone()))? {
            let slot = slot.map_err(failed(slots.clone()))?.path();
            fs::remove_dir_all(&slot).map_err(failed(slot.clone()))?;
        }
        let signal = data.join("standby.signal");
        fs::write(&signal, "").map_err(failed(signal.clone()))?;
        let primary = format!("host=127.0.0.1 port={} user=postgres", self.port);
        let settings = [("primary_conninfo".to_owned(), primary)];
        Self::begin(&self.installation, self.account.clone(), storage, &settings)
    }
}
