//! An upgrade with `pg_upgrade`, as an operator runs it.

use std::path::PathBuf;

use super::PrivatePostgres;
use crate::storage::{Storage, run};
use crate::{Installation, StartError};

/// The first version whose `initdb` enables checksums by default.
const CHECKSUMS_SINCE: u32 = 18;

impl Installation {
    /// Returns the path of this version's `pg_upgrade`, if it is installed.
    #[must_use]
    pub fn pg_upgrade(&self) -> Option<PathBuf> {
        Some(self.bin_dir.join("pg_upgrade")).filter(|program| program.exists())
    }
}

impl PrivatePostgres {
    /// Stops this server, upgrades it with `pg_upgrade`, and starts the new version on the same
    /// port.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and [`StartError::Failed`] with the end of `pg_upgrade`'s output.
    /// After a failure the server is stopped and unchanged, and [`restart`](Self::restart) starts
    /// it.
    pub fn upgrade(
        &mut self,
        to: &Installation,
        settings: &[(&str, &str)],
    ) -> Result<(), StartError> {
        self.stop_fast()?;
        let storage = Storage::create(&self.account)?;
        // `pg_upgrade` needs checksums on both clusters or on neither.
        let differs = self.installation.major < CHECKSUMS_SINCE && to.major >= CHECKSUMS_SINCE;
        let options: &[&str] = if differs { &["--no-data-checksums"] } else { &[] };
        storage.fill_with(to, &self.account, options)?;
        let mut new = Self {
            supervisor: None,
            storage,
            installation: to.clone(),
            account: self.account.clone(),
            port: self.port,
        };
        let settings: Vec<(String, String)> = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        new.configure(&settings)?;

        let program = to.bin_dir.join("pg_upgrade");
        let mut command = self.account.command(&program);
        // `pg_upgrade` writes a script into its working directory.
        command.current_dir(new.storage.base());
        command.arg("--socketdir").arg(new.storage.base()).args(["--username", "postgres"]);
        command.arg("--old-bindir").arg(&self.installation.bin_dir);
        command.arg("--new-bindir").arg(&to.bin_dir);
        command.arg("--old-datadir").arg(self.storage.data_dir());
        command.arg("--new-datadir").arg(new.storage.data_dir());
        run(command, &program)?;
        new.launch()?;
        *self = new;
        Ok(())
    }
}
