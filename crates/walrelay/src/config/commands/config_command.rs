//! The arguments of `config`.

use std::ffi::OsString;

use walrelay_errors::Code;

use super::super::build::Config;
use super::super::builder::ConfigBuilder;
use super::super::command::ConfigAction;
use super::super::file::CONFIG;
use super::super::layers::{CommandLine, Refusal, effective_values};
use super::super::problem::Problem;
use crate::cli::ConfigActionArgs;

impl ConfigBuilder<'_> {
    pub(in crate::config) fn configuration(
        &mut self,
        action: ConfigActionArgs,
    ) -> Option<ConfigAction> {
        match action {
            ConfigActionArgs::Show(args) => {
                let found = effective_values(&args.command, self.file.as_deref(), self.environment);
                let values = found.map_err(|refusal| self.refuse(refusal)).ok()?;
                Some(ConfigAction::Show { values, format: args.output.output })
            }
            ConfigActionArgs::Check(args) => {
                self.check_command(&args.command).map_err(|refusal| self.refuse(refusal)).ok()?;
                Some(ConfigAction::Check {
                    command: args.command.join(" "),
                    format: args.output.output,
                })
            }
            ConfigActionArgs::Schema => Some(ConfigAction::Schema),
        }
    }

    fn check_command(&self, words: &[String]) -> Result<(), Refusal> {
        let file = self.file.iter().map(|path| format!("--{CONFIG}={path}"));
        let arguments = ["walrelay".to_owned()].into_iter().chain(file);
        let arguments = arguments.chain(words.iter().cloned()).map(OsString::from);
        let line = CommandLine::parse(arguments, self.environment)?;
        Config::new(line, self.environment, None).map(|_| ()).map_err(Refusal::Config)
    }

    fn refuse(&mut self, refusal: Refusal) {
        match refusal {
            // The problems of the file are known from this command's own reading of the file.
            Refusal::Config(mut problems) => {
                problems.retain(|problem| !self.problems.contains(problem));
                self.problems.extend(problems);
            }
            Refusal::Clap(error) => {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default();
                self.problems.push(Problem {
                    option: "COMMAND".to_owned(),
                    value: None,
                    origin: None,
                    allowed: first.trim_start_matches("error: ").to_owned(),
                    code: Code::ConfigurationInvalid,
                });
            }
        }
    }
}
