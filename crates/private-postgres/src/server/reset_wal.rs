//! Another next transaction id, with `pg_resetwal`.

use super::PrivatePostgres;
use crate::storage::run;
use crate::{Installation, StartError};

impl Installation {
    /// Whether this version's `pg_resetwal` is installed.
    #[must_use]
    pub fn has_pg_resetwal(&self) -> bool {
        self.bin_dir.join("pg_resetwal").exists()
    }
}

impl PrivatePostgres {
    /// Lets the server continue 2³² transactions later: with the same transaction ids in 32 bits, in
    /// the next epoch. Logical slots are lost with the WAL.
    ///
    /// # Errors
    ///
    /// As [`restart`](Self::restart), and [`StartError::Failed`] with the end of `pg_resetwal`'s
    /// output.
    pub fn skip_an_epoch(&mut self) -> Result<(), StartError> {
        self.stop_fast()?;
        let program = self.installation.bin_dir.join("pg_resetwal");
        let mut command = self.account.command(&program);
        command.args(["--epoch", "1", "--pgdata"]).arg(self.storage.data_dir());
        run(command, &program)?;
        self.launch()
    }
}
