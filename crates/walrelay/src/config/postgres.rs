//! Options about Postgres: how to connect, and which slot, publication and tables.

use walrelay_outbox_store::{Outbox, ParseShardError, Shard};
use walrelay_pg_client::{
    ConnectConfig, ConninfoProblem, ParseNameError, PgEnv, QualifiedName, Secret,
};

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
                    self.wrong_conninfo("database-url", &problem);
                }
                None
            }
        }
    }

    /// What is wrong with a connection string, which may hold a password.
    pub(super) fn wrong_conninfo(&mut self, option: &str, problem: &ConninfoProblem) {
        match problem.is_about_roots() {
            true => self.problems.wrong_roots(option, problem.to_string()),
            false => self.problems.wrong_unseen(option, problem.to_string()),
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
        let shard = self.shard();
        self.outbox_of(shard)
    }

    /// The outbox as one of its shards. What is named is slot and publication of the whole, and a shard
    /// adds its number to both.
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

    /// The shard that is named; the whole outbox without.
    fn shard(&mut self) -> Shard {
        let Some(text) = self.problems.read(options::SHARD) else { return Shard::WHOLE };
        text.parse().unwrap_or_else(|error| {
            self.problems.wrong("shard", &text, ParseShardError::to_string(&error));
            Shard::WHOLE
        })
    }

    /// The whole outbox, and how many shards it is to have, for a command that is about all of them.
    pub(super) fn divided_outbox(&mut self) -> (Outbox, u32) {
        let given = self.problems.read(options::SHARDS).to_string();
        let count = self.number_of_shards(&given);
        (self.outbox_of(Shard::WHOLE), count)
    }

    /// How many shards there are to be, for a command that is about all of them.
    pub(super) fn number_of_shards(&mut self, text: &str) -> u32 {
        if self.problems.read(options::SHARD).is_some() {
            let allowed = "not with this command, which is about all shards: leave it out";
            self.problems.wrong_unseen("shard", allowed);
        }
        let Some(count) = text.trim().parse().ok().filter(|count| Shard::is_count(*count)) else {
            self.problems.wrong("shards", text, "a power of two, from 1 to 64");
            return 1;
        };
        // The longest names, so that all of them are looked at.
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
            self.problems.wrong_unseen("outbox-table", "at least one table");
        }
        tables
    }
}
