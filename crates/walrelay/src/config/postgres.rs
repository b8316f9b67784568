//! Options for Postgres: the connection, the slot, the publication and the tables.

use walrelay_outbox_store::{Outbox, ParseShardError, Shard};
use walrelay_pg_client::{
    ConnectConfig, ConninfoProblem, ParseNameError, PgEnv, QualifiedName, Secret,
};

use super::builder::ConfigBuilder;
use super::command::DatabaseConfig;
use super::names::{is_identifier, is_slot_name};
use crate::options;

impl ConfigBuilder<'_> {
    /// Returns the connection and the outbox. `None` without a valid connection string.
    pub(super) fn database(&mut self) -> Option<DatabaseConfig> {
        let outbox = self.outbox();
        Some(DatabaseConfig { connect: self.connect()?, outbox })
    }

    pub(super) fn connect(&mut self) -> Option<ConnectConfig> {
        let Some(url) = self.problems.read(options::DATABASE_URL) else {
            let allowed = "not set; postgresql://user@host:port/database, also as DATABASE_URL";
            self.problems.report_without_value("database-url", allowed);
            return None;
        };
        match ConnectConfig::parse(&url, &self.postgres_environment()) {
            Ok(connect) => Some(connect),
            Err(found) => {
                for problem in found {
                    self.wrong_conninfo("database-url", &problem);
                }
                None
            }
        }
    }

    /// Reports a problem of a connection string without its value, which may contain a password.
    pub(super) fn wrong_conninfo(&mut self, option: &str, problem: &ConninfoProblem) {
        match problem.is_about_roots() {
            true => self.problems.report_root_certificates(option, problem.to_string()),
            false => self.problems.report_without_value(option, problem.to_string()),
        }
    }

    /// Returns the environment's values for parts that a URL leaves out.
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
        let shard = self.shard();
        self.outbox_of(shard)
    }

    /// Returns the outbox as one of its shards. The options name slot and publication of the whole
    /// outbox, and a shard adds its number to both.
    fn outbox_of(&mut self, shard: Shard) -> Outbox {
        let (slot, publication) =
            (self.problems.read(options::SLOT), self.problems.read(options::PUBLICATION));
        let with = if shard.is_whole() { "" } else { ", together with the number of the shard" };
        if !is_slot_name(&shard.name(&slot)) {
            let allowed = format!("1 to 63 lower-case letters, digits and underscores{with}");
            self.problems.wrong("slot", &slot, allowed);
        }
        if !is_identifier(&shard.name(&publication)) {
            self.problems.wrong("publication", &publication, format!("1 to 63 bytes{with}"));
        }
        let (slot, publication) = (shard.name(&slot), shard.name(&publication));
        Outbox { slot, publication, tables: self.outbox_tables(), shard }
    }

    /// Returns the named shard, or the whole outbox.
    fn shard(&mut self) -> Shard {
        let Some(text) = self.problems.read(options::SHARD) else { return Shard::WHOLE };
        text.parse().unwrap_or_else(|error| {
            self.problems.wrong("shard", &text, ParseShardError::to_string(&error));
            Shard::WHOLE
        })
    }

    /// Returns the whole outbox and its number of shards, for a command on all shards.
    pub(super) fn divided_outbox(&mut self) -> (Outbox, u32) {
        let given = self.problems.read(options::SHARDS).to_string();
        let count = self.number_of_shards(&given);
        (self.outbox_of(Shard::WHOLE), count)
    }

    /// Returns the number of shards, for a command on all shards.
    pub(super) fn number_of_shards(&mut self, text: &str) -> u32 {
        if self.problems.read(options::SHARD).is_some() {
            let allowed = "not with this command, which is about all shards: leave it out";
            self.problems.report_without_value("shard", allowed);
        }
        let Some(count) = text.trim().parse().ok().filter(|count| Shard::is_count(*count)) else {
            self.problems.wrong("shards", text, "a power of two, from 1 to 64");
            return 1;
        };
        // Checks the last shard, whose names are the longest.
        let _: Option<Outbox> = Shard::all(count).last().map(|last| self.outbox_of(last));
        count
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
            self.problems.report_without_value("outbox-table", "at least one table");
        }
        tables
    }
}
