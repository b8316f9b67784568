//! Checks the values of options that depend on each other, and collects the problems.

use std::ffi::OsString;

use clap::Command;
use walrelay_core::ColumnNames;
use walrelay_errors::Code;
use walrelay_outbox_store::{Definition, Shard};
use walrelay_pg_client::Schema;

use super::definition_place::DefinitionPlace;
use super::environment::Environment;
use super::layers::{CommandLine, Refusal};
use super::problem::{Origins, Problem};
use crate::options::DatabaseAuth;
use crate::options::choices::Verbosity;
use crate::options::values::looks_secret;

/// The program's own command line. Commands cannot ask `cli`, which lists their files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) command: fn() -> Command,
    pub(crate) check: fn(Vec<OsString>, &Environment) -> Result<(), Refusal>,
}

/// Checks groups of options, and collects the problems that clap cannot find: contradicting values,
/// and wrong variables and files. Each file in this folder adds its own groups.
pub(crate) struct Checks<'a> {
    pub(crate) program: Program,
    /// Variables that are not options, such as those of libpq and Cloud Run.
    pub(crate) environment: &'a Environment,
    pub(crate) verbosity: Verbosity,
    /// Path of the configuration file.
    pub(crate) file: Option<String>,
    pub(crate) replay_options: Vec<String>,
    pub(crate) origins: Origins,
    pub(crate) schema: Schema,
    pub(crate) database_auth: DatabaseAuth,
    pub(crate) shard: Shard,
    /// The definition of the outbox: the one on record, or the standard one, with the values given.
    pub(crate) definition: Definition,
    pub(crate) record: Option<DefinitionPlace>,
    pub(crate) problems: Vec<Problem>,
}

impl<'a> Checks<'a> {
    /// Begins without a configuration file, for the standard outbox.
    pub(crate) fn new(environment: &'a Environment, program: Program) -> Self {
        let schema = Schema::PUBLIC;
        Self {
            program,
            environment,
            verbosity: Verbosity::Normal,
            file: None,
            replay_options: Vec::new(),
            origins: Origins::default(),
            shard: Shard::WHOLE,
            definition: Definition {
                slot: "walrelay".to_owned(),
                publication: "walrelay".to_owned(),
                tables: vec![schema.table("app_outbox")],
                columns: ColumnNames::default(),
                taken_names: Vec::new(),
            },
            schema,
            database_auth: DatabaseAuth::default(),
            record: None,
            problems: Vec::new(),
        }
    }

    /// Takes over where the values of a command line come from.
    pub(crate) fn take_line(&mut self, line: CommandLine) {
        let CommandLine { file, replay_options, origins, problems, schema, database_auth, .. } =
            line;
        self.database_auth = database_auth;
        self.definition.tables = vec![schema.table("app_outbox")];
        self.schema = schema;
        self.file = file;
        self.replay_options = replay_options;
        self.origins = origins;
        self.problems = problems;
    }
}

impl Checks<'_> {
    /// Reports a wrong value of `option` (long name without dashes).
    pub(crate) fn wrong(&mut self, option: &str, value: &str, allowed: impl Into<String>) {
        self.report(option, Some(value.to_owned()), allowed.into(), Code::ConfigurationInvalid);
    }

    /// Reports that `option` is missing, or that its value is wrong and may be a secret.
    pub(crate) fn wrong_or_missing(&mut self, option: &str, allowed: impl Into<String>) {
        self.report(option, None, allowed.into(), Code::ConfigurationInvalid);
    }

    /// Reports a wrong variable or argument that has no option of its own.
    pub(crate) fn wrong_variable(&mut self, name: &str, allowed: &str) {
        self.problems.push(Problem {
            option: name.to_owned(),
            value: None,
            origin: None,
            allowed: allowed.to_owned(),
            code: Code::ConfigurationInvalid,
        });
    }

    pub(crate) fn report(
        &mut self,
        option: &str,
        value: Option<String>,
        allowed: String,
        code: Code,
    ) {
        let origin = self.origins.of(option).name();
        let value = value.filter(|value| !looks_secret(value));
        let problem = Problem { option: format!("--{option}"), value, origin, allowed, code };
        // An option may be checked more than once.
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Reports why another command line is refused.
    pub(crate) fn refuse(&mut self, refusal: Refusal) {
        match refusal {
            // The problems of the file are known from this command's own reading of the file.
            Refusal::Config(mut problems) => {
                problems.retain(|problem| !self.problems.contains(problem));
                self.problems.extend(problems);
            }
            Refusal::Clap(error) => {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default();
                self.wrong_variable("COMMAND", first.trim_start_matches("error: "));
            }
        }
    }
}
