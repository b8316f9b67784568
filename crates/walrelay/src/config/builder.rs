//! Builds the configuration from the options, and collects its problems.

use walrelay_errors::Code;
use walrelay_outbox_store::{Definition, Shard};
use walrelay_pg_client::Schema;

use super::definition_place::DefinitionPlace;
use super::environment::Environment;
use super::problem::{Origins, Problem};
use crate::options::values::looks_secret;

/// Builds the parts of the configuration, and collects the problems that no single value has: those
/// of values that contradict each other, and of files and variables. Each file in this folder adds
/// its own parts.
pub(super) struct ConfigBuilder<'a> {
    /// Variables that are not options, such as those of libpq and Cloud Run.
    pub(super) environment: &'a Environment,
    /// Path of the configuration file.
    pub(super) file: Option<String>,
    /// The options of the command line that a replay has also.
    pub(super) selection: Vec<String>,
    /// The origins of the options' values.
    pub(super) origins: Origins,
    /// The schema of walrelay's own tables.
    pub(super) schema: Schema,
    /// The shard that the command is about.
    pub(super) shard: Shard,
    /// The definition of the outbox: the one on record, or the standard one, with the values given.
    pub(super) definition: Definition,
    /// Where the record of the definition is. None for a command without an outbox.
    pub(super) record: Option<DefinitionPlace>,
    /// The problems found so far.
    pub(super) problems: Vec<Problem>,
}

impl ConfigBuilder<'_> {
    /// Reports a wrong value of `option` (long name without dashes).
    pub(super) fn wrong(&mut self, option: &str, value: &str, allowed: impl Into<String>) {
        self.report(option, Some(value.to_owned()), allowed.into(), Code::ConfigurationInvalid);
    }

    /// Reports that `option` is missing, or that its value is wrong and may be a secret.
    pub(super) fn wrong_or_missing(&mut self, option: &str, allowed: impl Into<String>) {
        self.report(option, None, allowed.into(), Code::ConfigurationInvalid);
    }

    /// Reports a wrong variable or argument that has no option of its own.
    pub(super) fn wrong_variable(&mut self, name: &str, allowed: &str) {
        self.problems.push(Problem {
            option: name.to_owned(),
            value: None,
            origin: None,
            allowed: allowed.to_owned(),
            code: Code::ConfigurationInvalid,
        });
    }

    pub(super) fn report(
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
}
