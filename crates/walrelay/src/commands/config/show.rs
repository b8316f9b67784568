//! `walrelay config show`: shows the effective value of every option of a command.

use clap::Args;

use crate::config::{Checks, EffectiveValue, effective_values};
use crate::options::{ARGUMENTS, OutputOptions};
use crate::output::print_result;
use crate::plan::Plan;

/// Show the effective value of every option of a command, and its source.
///
/// The source is the command line, a variable, the configuration file or the default. Values that may contain a
/// password are masked. Nothing is connected to.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay config show --config walrelay.toml\n  \
        walrelay config show --output json -- consumer status billing"
)]
pub(crate) struct Show {
    /// The command, with its options after `--`.
    #[arg(value_name = "COMMAND", default_value = "run")]
    command: Vec<String>,
    #[command(flatten)]
    output: OutputOptions,
}

impl Show {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let root = (checks.program.command)();
        let found =
            effective_values(root, &self.command, checks.file.as_deref(), checks.environment);
        let values = found.map_err(|refusal| checks.refuse(refusal)).ok()?;
        let format = self.output.output;
        Some(Plan::new(async move |_| print_result(format, &values, || table(&values))))
    }
}

fn table(values: &[EffectiveValue]) -> String {
    let shown = |value: &EffectiveValue| value.value.clone().unwrap_or_else(|| "-".to_owned());
    let width = |text: &dyn Fn(&EffectiveValue) -> usize| values.iter().map(text).max();
    let option = width(&|value| value.option.len()).unwrap_or_default();
    let text = width(&|value| shown(value).chars().count()).unwrap_or_default();
    let line = |value: &EffectiveValue| {
        format!("{:option$}  {:text$}  {}\n", value.option, shown(value), value.source)
    };
    values.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        let value = EffectiveValue {
            option: "slot".to_owned(),
            value: Some("walrelay".to_owned()),
            source: "default".to_owned(),
        };
        assert_documented("config show", &[value]);
    }
}
