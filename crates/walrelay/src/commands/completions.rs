//! `walrelay completions`: prints the completions of a shell, from the clap definition.

use clap::{Args, Command};
use clap_complete::shells;

use crate::config::{Checks, Shell};
use crate::options::ARGUMENTS;
use crate::options::values::word;
use crate::output::print;
use crate::plan::Plan;

const SHELLS: &[(&str, Shell)] =
    &[("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)];

/// Print the completions of a shell.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  \
        walrelay completions bash > /etc/bash_completion.d/walrelay\n  \
        walrelay completions zsh > \"${fpath[1]}/_walrelay\"\n  \
        walrelay completions fish > ~/.config/fish/completions/walrelay.fish"
)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_name = "SHELL", value_parser = word(SHELLS))]
    shell: Shell,
}

impl Completions {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let script = script_of(self.shell, (checks.program.command)());
        Some(Plan::new(async move |_| print(&script)))
    }
}

fn script_of(shell: Shell, mut command: Command) -> String {
    let mut script = Vec::new();
    let name = "walrelay";
    match shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, name, &mut script),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, name, &mut script),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, name, &mut script),
    }
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_that_takes_few_words_is_completed_with_them() {
        let script = script_of(Shell::Bash, crate::cli::command());
        for words in [
            "retrying dead published discarded all",
            "done late retrying dead discarded all",
            "text json",
            "continue hold",
        ] {
            assert!(script.contains(&format!("compgen -W \"{words}\"")), "{words}");
        }
        // A positional argument lists its words together with the flags.
        assert!(script.contains(" bash zsh fish\""), "shells");
    }
}
