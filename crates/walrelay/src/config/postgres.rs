//! Options about Postgres: how to connect, and which slot, publication and tables.

use walrelay_postgres::{ConnectConfig, Outbox, ParseNameError, PgEnv, QualifiedName, Secret};

use super::builder::Builder;
use super::command::DatabaseConfig;
use super::names::{is_identifier, is_slot_name};
use crate::options;

impl Builder<'_> {
    /// Where Postgres is and what to read there; `None` when there is nothing to connect with.
    pub(super) fn database(&mut self) -> Option<DatabaseConfig> {
        let outbox = self.outbox();
        Some(DatabaseConfig { connect: self.connect()?, outbox })
    }

    pub(super) fn connect(&mut self) -> Option<ConnectConfig> {
        let Some(url) = self.problems.read(options::DATABASE_URL) else {
            let allowed = "not set; postgresql://user@host:port/database, also as DATABASE_URL";
            self.problems.wrong_unseen("database-url", allowed);
            return None;
        };
        match ConnectConfig::parse(&url, &self.postgres_environment()) {
            Ok(connect) => Some(connect),
            Err(found) => {
                for problem in found {
                    self.problems.wrong_unseen("database-url", problem.to_string());
                }
                None
            }
        }
    }

    /// What stands in the environment for whatever a URL leaves out.
    pub(super) fn postgres_environment(&self) -> PgEnv {
        let variable = |name| self.environment.get(name);
        PgEnv {
            user: variable("PGUSER").map(str::to_owned),
            password: variable("PGPASSWORD").map(Secret::new),
            passfile: variable("PGPASSFILE").map(Into::into),
            sslrootcert_pem: variable("WALRELAY_SSLROOTCERT_PEM").map(str::to_owned),
        }
    }

    pub(super) fn outbox(&mut self) -> Outbox {
        let slot = self.problems.read(options::SLOT);
        if !is_slot_name(&slot) {
            let allowed = "1 to 63 lower-case letters, digits and underscores";
            self.problems.wrong("slot", &slot, allowed);
        }
        let publication = self.problems.read(options::PUBLICATION);
        if !is_identifier(&publication) {
            self.problems.wrong("publication", &publication, "1 to 63 bytes");
        }
        Outbox { slot, publication, tables: self.outbox_tables() }
    }

    fn outbox_tables(&mut self) -> Vec<QualifiedName> {
        let given = self.problems.read(options::OUTBOX_TABLE);
        let mut tables = Vec::new();
        for text in &given {
            match text.parse() {
                Ok(name) if tables.contains(&name) => {}
                Ok(name) => tables.push(name),
                Err(error) => {
                    self.problems.wrong("outbox-table", text, ParseNameError::to_string(&error));
                }
            }
        }
        if given.is_empty() {
            self.problems.wrong_unseen("outbox-table", "at least one table");
        }
        tables
    }
}
