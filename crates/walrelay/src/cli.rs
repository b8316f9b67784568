//! The command line: the tree of commands, and what clap's help shows of it.
//!
//! The file of each command declares its arguments and options. Groups of options that several
//! commands share are in `options`.

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command, CommandFactory as _, Parser};

use crate::commands::{
    anchor, audit, check, completions, config, consumer, demo, dispatch, emulator, explain, inbox,
    init, man, produce, prune, replay, reshard, run, slot, status, tail, trace, version,
};
use crate::error::explain::DOCUMENTATION;
use crate::options::values::may_hold_secret;
use crate::options::{ARGUMENTS, GeneralOptions, OWN_OPTIONS, is_option};

/// Carries a Postgres transactional outbox into Google Cloud Pub/Sub, in order, losing nothing.
///
/// Every option is a flag, an environment variable WALRELAY_<NAME>, and a key of the file named by
/// --config: a flag beats the environment, the environment beats the file, the file beats the
/// default. Durations are written 500ms, 30s, 5m, 12h, 7d; sizes 512KiB, 64MiB, 10MB.
#[derive(Debug, Parser)]
#[command(name = "walrelay", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub general: GeneralOptions,
    #[command(subcommand)]
    pub command: CommandArgs,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done or asked to stop; 1 unexpected; 2 usage or configuration; 3 Postgres is not set up \
for this; 4 Pub/Sub is not set up for this; 5 the slot is lost; 6 the slot is held by somebody else; \
101 a broken invariant.";

crate::plan::commands! {
    /// One per command of the manual.
    CommandArgs {
        Init(init::Init),
        Check(check::Check),
        Run(run::Run),
        Status(status::Status),
        /// List, show, retry, edit and discard rows that Pub/Sub refused.
        ///
        /// Works while the relay runs, which notices within two seconds. Nothing is ever discarded by
        /// itself.
        #[command(subcommand)]
        Dispatch(dispatch::Dispatch),
        /// Drop, advance, reset or recover the replication slot.
        #[command(subcommand)]
        Slot(slot::Slot),
        /// Create, list, advance and drop anchors, which retain WAL.
        #[command(subcommand)]
        Anchor(anchor::Anchor),
        /// Publish rows again, and manage such replays.
        #[command(subcommand)]
        Replay(replay::Replay),
        Reshard(reshard::Reshard),
        Prune(prune::Prune),
        /// Set up, run and operate consumers, which apply events.
        #[command(subcommand)]
        Consumer(consumer::Consumer),
        /// List, show, retry, edit and discard events that cannot be applied.
        ///
        /// Works while consumers run, which notice within a second. Nothing is ever discarded by itself.
        #[command(subcommand)]
        Inbox(inbox::Inbox),
        Audit(audit::Audit),
        Trace(trace::Trace),
        Emit(produce::emit::Emit),
        Forget(produce::forget::Forget),
        Snapshot(produce::snapshot::Snapshot),
        Tail(tail::Tail),
        Emulator(emulator::EmulatorCommand),
        Demo(demo::Demo),
        /// Show, check and describe the configuration.
        #[command(subcommand)]
        Config(config::Config),
        Explain(explain::Explain),
        Version(version::Version),
        Completions(completions::Completions),
        Man(man::Man),
    }
}

/// Returns the declaration of the command line. The switches among its options take a value, so
/// that a flag can turn off what the environment or the file has turned on.
#[must_use]
pub fn command() -> Command {
    fn shape(command: Command) -> Command {
        command.mut_args(shape_switch).mut_args(hide_secret).mut_subcommands(shape)
    }
    let command = shape(Cli::command()).mut_subcommand("run", with_short_help);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}General:\n{{options}}{{after-help}}\n\n\
         Documentation: {DOCUMENTATION}",
        groups_text(&command)
    );
    command.help_template(template)
}

/// Finds the command at the start of a text, without the name of the program: the length of its words,
/// and its options. None if there is none, or only a group of commands.
pub(crate) fn command_at(text: &str) -> Option<(usize, Vec<String>)> {
    let mut command = &command();
    let mut length = 0;
    for word in text.split_inclusive(|c: char| !(c.is_ascii_lowercase() || c == '-')) {
        let name = word.trim_end_matches(|c: char| !(c.is_ascii_lowercase() || c == '-'));
        let Some(below) = command.find_subcommand(name) else { break };
        let gap = if length == 0 { 0 } else { 1 };
        (command, length) = (below, length + gap + name.len());
    }
    let has_options = length > 0 && !command.has_subcommands();
    let options = command.get_arguments().filter_map(Arg::get_long).chain(["config"]);
    has_options.then(|| (length, options.map(str::to_owned).collect()))
}

/// The commands in the groups that the help shows.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Start", &["init", "check", "run", "demo"]),
    ("Operate", &["status", "dispatch", "prune", "reshard", "audit", "trace"]),
    ("Recover", &["slot", "anchor", "replay"]),
    ("Consume", &["consumer", "inbox"]),
    (
        "Tools",
        &[
            "emit",
            "tail",
            "snapshot",
            "forget",
            "emulator",
            "config",
            "explain",
            "completions",
            "man",
            "version",
        ],
    ),
];

/// Lists the commands by group, because clap has one list for all.
fn groups_text(command: &Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text.push_str(&format!("{heading}:\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {name:<11}  {about}\n"));
        }
        text.push('\n');
    }
    text
}

/// Returns the command with the headings of its help. Clap lists positional arguments without a
/// heading under `Arguments`, and flags without a heading under `Options`, next to `--help`. So the
/// headings that only mark arguments are removed.
pub(crate) fn with_help_headings(command: Command) -> Command {
    fn with_help_heading(argument: Arg) -> Arg {
        match argument.get_help_heading() {
            Some(ARGUMENTS | OWN_OPTIONS | "Emulator" | "Demo") => {
                argument.help_heading(None::<&'static str>)
            }
            Some(_) | None => argument,
        }
    }
    command.mut_args(with_help_heading).mut_subcommands(with_help_headings)
}

/// The options that `run -h` shows, so that they fit on one screen.
const SHORT_HELP: [&str; 10] = [
    "database-url",
    "project",
    "topic-template",
    "ordering-key",
    "outbox-table",
    "slot",
    "shard",
    "endpoint",
    "http",
    "until-caught-up",
];

fn with_short_help(command: Command) -> Command {
    command.mut_args(|argument| {
        let is_short = argument.get_long().is_some_and(|long| SHORT_HELP.contains(&long));
        argument.hide_short_help(!is_short)
    })
}

/// Keeps the help from showing a secret that the environment or the file has set.
fn hide_secret(argument: Arg) -> Arg {
    let is_secret = may_hold_secret(&argument);
    let is_hidden = argument.is_hide_default_value_set();
    argument.hide_default_value(is_secret || is_hidden)
}

fn shape_switch(argument: Arg) -> Arg {
    if !is_option(&argument) || !matches!(argument.get_action(), ArgAction::SetTrue) {
        return argument;
    }
    argument
        .action(ArgAction::Set)
        .value_name("BOOL")
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
        .default_value("false")
        .hide_default_value(true)
        .hide_possible_values(true)
        .value_parser(BoolishValueParser::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_shows_each_command_in_one_group_and_the_address_of_the_documentation() {
        let command = command();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let mut declared: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        grouped.sort_unstable();
        declared.sort_unstable();
        assert_eq!(grouped, declared);
        let help = command.clone().render_help().to_string();
        assert!(help.contains("Recover:\n  slot "), "{help}");
        assert!(help.contains(DOCUMENTATION), "{help}");
    }
}
