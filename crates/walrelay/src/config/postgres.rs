//! Options for Postgres: the connection, the slot, the publication and the tables.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::OnceCell;
use walrelay_core::{ColumnAliases, ColumnNames};
use walrelay_errors::{Chain, Code};
use walrelay_outbox_store::{Definition, Outbox, Shard};
use walrelay_pg_client::{
    ConnectConfig, PasswordFuture, PasswordSource, PgEnv, QualifiedName, Secret,
};
use walrelay_pubsub::{GoogleTokens, PubsubError};

use super::checks::Checks;
use super::definition_place::{DefinitionNeed, DefinitionPlace};
use super::environment::Environment;
use crate::options::values::{NamedDatabase, OptionalColumn, is_identifier, is_slot_name};
use crate::options::{
    ConnectionOptions, DatabaseAuth, DatabaseOptions, DefinitionOptions, InboxPlaces, Preset,
};

#[derive(Debug, Clone)]
pub(crate) struct DatabaseConfig {
    pub(crate) connect: ConnectConfig,
    pub(crate) outbox: Outbox,
}

/// A consumer in a database of its own.
#[derive(Debug, Clone)]
pub(crate) struct InboxPlace {
    pub(crate) consumer: String,
    pub(crate) connect: ConnectConfig,
}

impl Checks<'_> {
    /// Returns the connection and the outbox. `None` without a valid connection string.
    pub(crate) fn database(&mut self, options: &DatabaseOptions) -> Option<DatabaseConfig> {
        let outbox = self.outbox(options);
        let connect = self.connect(&options.connection)?;
        self.note_record_of(&connect, options);
        Some(DatabaseConfig { connect, outbox })
    }

    /// Notes where the definition of the outbox is on record.
    pub(crate) fn note_record_of(&mut self, connect: &ConnectConfig, options: &DatabaseOptions) {
        let (connect, slot) = (connect.clone(), options.slot.clone());
        self.record = Some(DefinitionPlace { connect, slot, need: DefinitionNeed::Required });
    }

    /// Notes whether the command works without the definition of its outbox.
    pub(crate) fn needs_definition(&mut self, need: DefinitionNeed) {
        if let Some(place) = &mut self.record {
            place.need = need;
        }
    }

    /// Takes the given values into the definition.
    pub(crate) fn define(&mut self, given: &DefinitionOptions) {
        if let Some(publication) = &given.publication {
            self.definition.publication.clone_from(publication);
        }
        let mut tables: Vec<QualifiedName> = Vec::new();
        for table in &given.outbox_table {
            if !tables.contains(table) {
                tables.push(table.clone());
            }
        }
        if !tables.is_empty() {
            self.definition.tables = tables;
        }
        let columns = &mut self.definition.columns;
        if let Some(preset) = given.preset {
            *columns = columns_of(preset);
        }
        let set = |column: &mut Option<ColumnAliases>, option: &Option<OptionalColumn>| {
            if let Some(named) = option {
                column.clone_from(&named.0);
            }
        };
        set(&mut columns.aggregate_type, &given.column_aggregate_type);
        set(&mut columns.aggregate_id, &given.column_aggregate_id);
        set(&mut columns.event_type, &given.column_event_type);
        set(&mut columns.version, &given.column_version);
        set(&mut columns.schema_version, &given.column_schema_version);
        set(&mut columns.headers, &given.column_headers);
        set(&mut columns.occurred_at, &given.column_occurred_at);
        if let Some(id) = &given.column_id {
            columns.id.clone_from(id);
        }
        if let Some(payload) = &given.column_payload {
            columns.payload.clone_from(payload);
        }
        if let Some(attributes) = &given.attribute_columns {
            columns.attributes.clone_from(attributes);
        }
        self.check_attribute_columns();
    }

    /// Refuses columns that are published whole already, and whose values no attribute can hold.
    fn check_attribute_columns(&mut self) {
        let columns = &self.definition.columns;
        let whole = [Some(&columns.payload), columns.headers.as_ref()];
        let is_whole =
            |name: &str| whole.into_iter().flatten().any(|it| it.iter().any(|one| one == name));
        let refused = columns.attributes.iter().find(|(name, _)| is_whole(name));
        if let Some((name, _)) = refused {
            let allowed =
                format!("other columns: {name} is published already, as payload or headers");
            let value = columns.attributes.to_string();
            self.wrong("attribute-columns", &value, allowed);
        }
    }

    pub(crate) fn connect(&mut self, options: &ConnectionOptions) -> Option<ConnectConfig> {
        match options.database_url.as_ref().filter(|url| !url.reveal().trim().is_empty()) {
            Some(url) => self.connect_to("database-url", url),
            None => {
                let allowed = "not set; postgresql://user@host:port/database, also as DATABASE_URL";
                self.wrong_or_missing("database-url", allowed);
                None
            }
        }
    }

    /// Reads a connection string. Reports a problem without the string, which may contain a
    /// password.
    pub(crate) fn connect_to(&mut self, option: &str, url: &Secret) -> Option<ConnectConfig> {
        let variable = |name| self.environment.get(name);
        let environment = PgEnv {
            user: variable("PGUSER").map(str::to_owned),
            password: variable("PGPASSWORD").map(Secret::new),
            passfile: variable("PGPASSFILE").map(Into::into),
            service: variable("PGSERVICE").map(str::to_owned),
            service_files: service_files(self.environment),
            sslrootcert_pem: variable("WALRELAY_SSLROOTCERT_PEM").map(str::to_owned),
        };
        match ConnectConfig::parse(url.reveal(), &environment) {
            Ok(connect) if self.database_auth == DatabaseAuth::Google => {
                self.google_login(option, connect)
            }
            Ok(connect) => Some(connect),
            Err(found) => {
                for problem in found {
                    let code = match problem.is_about_roots() {
                        true => Code::TlsRoots,
                        false => Code::ConfigurationInvalid,
                    };
                    self.report(option, None, problem.to_string(), code);
                }
                None
            }
        }
    }

    /// Gives the connection tokens for its passwords. Refuses what the service would refuse with less
    /// helpful words, and what would show a token to others.
    fn google_login(&mut self, option: &str, connect: ConnectConfig) -> Option<ConnectConfig> {
        let user = connect.user();
        if let Some(name) = user.strip_suffix(".gserviceaccount.com") {
            let allowed = format!("the user of a service account is {name}, without the rest");
            self.wrong_or_missing(option, allowed);
            return None;
        }
        if !connect.requires_tls() {
            let allowed = "with --database-auth google it needs sslmode=require, verify-ca or verify-full: \
                           a token would be readable on the way";
            self.wrong_or_missing(option, allowed);
            return None;
        }
        Some(connect.with_password_source(Arc::new(LoginTokens::default())))
    }

    pub(crate) fn inbox_places(&mut self, places: &InboxPlaces) -> Option<Vec<InboxPlace>> {
        let place = |named: &NamedDatabase| {
            let connect = self.connect_to("inbox", &named.url)?;
            Some(InboxPlace { consumer: named.consumer.clone(), connect })
        };
        places.inbox.iter().map(place).collect()
    }

    /// Returns the outbox, or the named shard of it.
    pub(crate) fn outbox(&mut self, options: &DatabaseOptions) -> Outbox {
        self.shard = options.shard.unwrap_or(Shard::WHOLE);
        self.outbox_of(options, self.shard)
    }

    /// Returns the whole outbox, for a command on all shards.
    pub(crate) fn whole_outbox(&mut self, options: &DatabaseOptions, shards: u32) -> Outbox {
        if options.shard.is_some() {
            let allowed = "not with this command, which is about all shards: leave it out";
            self.wrong_or_missing("shard", allowed);
        }
        // Checks the last shard, whose names are the longest.
        let _: Option<Outbox> = Shard::all(shards).last().map(|last| self.outbox_of(options, last));
        self.outbox_of(options, Shard::WHOLE)
    }

    /// Returns the outbox as one of its shards. The options name slot and publication of the whole
    /// outbox, and a shard adds its number to both.
    fn outbox_of(&mut self, options: &DatabaseOptions, shard: Shard) -> Outbox {
        let Definition { slot: recorded, publication: base, tables, .. } = self.definition.clone();
        let base_slot = options.slot.as_ref().unwrap_or(&recorded);
        let (slot, publication) = (shard.name(base_slot), shard.name(&base));
        let with = "together with the number of the shard";
        if !is_slot_name(&slot) {
            let allowed = format!("1 to 63 lower-case letters, digits and underscores, {with}");
            self.wrong("slot", base_slot, allowed);
        }
        if !is_identifier(&publication) {
            self.wrong("publication", &base, format!("1 to 63 bytes, {with}"));
        }
        Outbox { slot, publication, tables, shard }
    }
}

/// Access tokens as passwords. The credentials are looked for when the first connection is opened.
#[derive(Debug, Default)]
struct LoginTokens(OnceCell<GoogleTokens>);

impl PasswordSource for LoginTokens {
    fn password(&self) -> PasswordFuture<'_> {
        Box::pin(async {
            let failed = |error: PubsubError| io::Error::other(Chain(&error).to_string());
            let find = async || GoogleTokens::of_database_login();
            let tokens = self.0.get_or_try_init(find).await.map_err(failed)?;
            Ok(Secret::new(tokens.get().await.map_err(failed)?))
        })
    }
}

/// Returns the files that libpq reads a service from.
fn service_files(environment: &Environment) -> Vec<PathBuf> {
    let variable = |name| environment.get(name);
    let own = variable("PGSERVICEFILE").map(PathBuf::from);
    let own = own.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".pg_service.conf")));
    let of_machine = variable("PGSYSCONFDIR").map(|it| PathBuf::from(it).join("pg_service.conf"));
    own.into_iter().chain(of_machine).collect()
}

/// The column names of a preset.
fn columns_of(preset: Preset) -> ColumnNames {
    let named = |name: &str| Some(ColumnAliases::parse(name));
    match preset {
        Preset::Walrelay => ColumnNames::default(),
        Preset::Debezium => ColumnNames {
            event_type: named("type"),
            version: None,
            schema_version: None,
            headers: None,
            occurred_at: named("timestamp"),
            ..ColumnNames::default()
        },
    }
}
