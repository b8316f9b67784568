//! Names the right command for a word that users of similar programs try. A guess is no alias: the
//! command line stays refused.

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Guesses, from the first word of the command line on, and the commands that do the work.
const GUESSES: [(&str, &str); 83] = [
    ("adopt", "slot recover"),
    ("anchor delete", "anchor drop"),
    ("anchor describe", "anchor list"),
    ("anchor remove", "anchor drop"),
    ("anchor rm", "anchor drop"),
    ("anchor show", "anchor list"),
    ("apply", "consumer run"),
    ("archive", "prune --archive"),
    ("backfill", "replay start --source table"),
    ("config get", "config show"),
    ("config list", "config show"),
    ("config validate", "config check"),
    ("config view", "config show"),
    ("consume", "consumer run"),
    ("consumer create", "consumer init"),
    ("consumer describe", "consumer status"),
    ("consumer get", "consumer status"),
    ("consumer lag", "consumer status"),
    ("consumer logs", "consumer status"),
    ("consumer seek", "consumer rebuild --from-time"),
    ("consumer show", "consumer status"),
    ("consumer start", "consumer run"),
    ("consumer stop", "consumer pause"),
    ("dead", "dispatch list --status dead"),
    ("dead-letters", "dispatch list --status dead"),
    ("describe", "status"),
    ("dispatch delete", "dispatch discard"),
    ("dispatch describe", "dispatch show"),
    ("dispatch get", "dispatch show"),
    ("dispatch purge", "dispatch discard"),
    ("dispatch redrive", "dispatch retry"),
    ("dlq", "dispatch list --status dead"),
    ("doctor", "check"),
    ("errors", "explain"),
    ("events", "tail"),
    ("get", "status"),
    ("health", "status"),
    ("inbox delete", "inbox discard"),
    ("inbox describe", "inbox show"),
    ("inbox dlq", "inbox list --status dead"),
    ("inbox drop", "inbox discard"),
    ("inbox get", "inbox show"),
    ("inbox purge", "consumer prune"),
    ("lag", "status"),
    ("list", "status"),
    ("listen", "tail"),
    ("logs", "status"),
    ("messages", "tail"),
    ("migrate", "init"),
    ("partitions", "check"),
    ("pause", "consumer pause"),
    ("ping", "check"),
    ("prepare-upgrade", "slot release"),
    ("pull", "tail"),
    ("ready", "status"),
    ("rebuild", "consumer rebuild"),
    ("recover", "slot recover"),
    ("replay abort", "replay cancel"),
    ("replay delete", "replay cancel"),
    ("replay describe", "replay show"),
    ("replay status", "replay list"),
    ("replay stop", "replay cancel"),
    ("restart", "run"),
    ("restore", "slot recover"),
    ("resume", "consumer resume"),
    ("retry", "dispatch retry"),
    ("scale", "reshard"),
    ("seek", "replay start"),
    ("send", "emit"),
    ("serve", "run"),
    ("setup", "init"),
    ("slot create", "init"),
    ("slot delete", "slot drop"),
    ("slot describe", "status"),
    ("slot list", "status"),
    ("slot show", "status"),
    ("slot status", "status"),
    ("slots", "status"),
    ("start", "run"),
    ("subscribe", "tail"),
    ("top", "status --watch"),
    ("topic", "init --create-topics"),
    ("topics", "init --create-topics"),
];

/// Guesses of a command that does not exist, and what to do instead. clap would advise a similar
/// word, such as `prune`.
const NO_COMMANDS: [(&str, &str); 12] = [
    ("consumer delete", REMOVAL),
    ("consumer drop", REMOVAL),
    ("consumer remove", REMOVAL),
    ("delete", DELETION),
    ("drop", DELETION),
    ("kill", STOP),
    ("publish", PUBLICATION),
    ("remove", DELETION),
    ("reset", RESET),
    ("rm", DELETION),
    ("stop", STOP),
    ("upgrade", UPGRADE),
];
const DELETION: &str = "`walrelay help` lists the commands with their effects";
const PUBLICATION: &str =
    "`walrelay run` publishes the rows of the outbox; `walrelay emit` writes one";
const RESET: &str = "`walrelay slot reset` publishes old rows again; `walrelay consumer rebuild` applies all events again; \
     `walrelay consumer reset-key` corrects one key";
const UPGRADE: &str = "after an upgrade of walrelay run `walrelay init`; before an upgrade of Postgres run `walrelay slot release`";
const STOP: &str = "send SIGTERM to the process: the relay then settles its rows and stops";
const REMOVAL: &str = "no command removes a consumer: stop its instances, then delete its rows of app_inbox, app_inbox_key \
     and app_inbox_consumer, and its subscription";

/// Guesses of options, and the options that may be meant. Those that the command has are named.
const OPTION_GUESSES: [(&str, &[&str]); 12] = [
    ("consumer", &["inbox"]),
    ("follow", &["watch"]),
    ("force", &["yes"]),
    ("format", &["output json"]),
    ("from", &["from-time", "from-lsn", "since", "older-than"]),
    ("json", &["output json"]),
    ("name", &["consumer", "slot", "topic"]),
    ("once", &["until-caught-up"]),
    ("port", &["http", "listen"]),
    ("since", &["from-time", "from-lsn", "older-than"]),
    ("until", &["to-time", "to-lsn", "until-caught-up"]),
    ("to", &["to-time", "to-lsn", "to-topic", "shards"]),
];

const NOTHING_TO_FORCE: &str = "`init` only creates what is missing, and needs no consent; if the slot is lost, run `walrelay slot recover`";

/// Replaces clap's tips about an unknown option by the options of the command that may be meant.
/// Clap would advise to pass the option as a value.
pub(crate) fn with_right_option(mut error: clap::Error, command: &Command) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let Some(name) = unknown.strip_prefix("--") else { return error };
    let name = name.split('=').next().unwrap_or_default();
    let Some((_, meant)) = OPTION_GUESSES.iter().find(|(guess, _)| *guess == name) else {
        return error;
    };
    // `init` asks for consent only to a loss, and no tip may lead to one.
    if command.get_name() == "init" && name == "force" {
        let tip = StyledStr::from(NOTHING_TO_FORCE);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        error.remove(ContextKind::SuggestedArg);
        return error;
    }
    let has = |option: &str| command.get_arguments().any(|it| it.get_long() == Some(option));
    let meant = meant.iter().filter(|option| option.split(' ').next().is_some_and(has));
    let options: Vec<String> = meant.map(|option| format!("`--{option}`")).collect();
    let positional = command.get_positionals().next().and_then(|it| it.get_value_names()?.first());
    let tip = match (positional, options.as_slice()) {
        (Some(place), _) if name == "name" && place == "NAME" => {
            Some("give the name without an option".to_owned())
        }
        (_, []) => None,
        (_, options) => Some(format!("use {}", options.join(" or "))),
    };
    match tip.map(StyledStr::from) {
        Some(tip) => error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip])),
        None => error.remove(ContextKind::Suggested),
    };
    error.remove(ContextKind::SuggestedArg);
    error
}

/// Adds the right command to the error about an unknown one. `words` are the words of the command
/// line before the first option.
pub(crate) fn with_right_command(mut error: clap::Error, words: &[&str]) -> clap::Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let end = words.iter().position(|word| word == unknown);
    let given = end.map_or_else(|| unknown.clone(), |at| words[..=at].join(" "));
    let command = GUESSES.iter().find(|(guess, _)| given == *guess);
    let tip = match command {
        Some((_, command)) => Some(format!("run `walrelay {command}`")),
        None => {
            let instead = NO_COMMANDS.iter().find(|(guess, _)| given == *guess);
            instead.map(|(_, tip)| (*tip).to_owned())
        }
    };
    if let Some(tip) = tip {
        let tip = StyledStr::from(tip);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        error.remove(ContextKind::SuggestedSubcommand);
    }
    error
}

/// Adds the command that lists the objects of a group to the error that none is named.
pub(crate) fn with_list(mut error: clap::Error, words: &[&str]) -> clap::Error {
    let is_name = |it: &String| it.starts_with("<NAME>") || it.starts_with("<ID>");
    let missing = error.get(ContextKind::InvalidArg);
    let is_missing = matches!(missing, Some(ContextValue::Strings(all)) if all.iter().any(is_name));
    let [group @ ("consumer" | "dispatch" | "inbox" | "anchor"), command] = words else {
        return error;
    };
    // These name a new object.
    let is_new = matches!(*command, "init" | "create");
    if is_missing && !is_new && error.kind() == ErrorKind::MissingRequiredArgument {
        let tip =
            StyledStr::from(format!("`walrelay {group} list`, with the same options, lists them"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(words: &[&str]) -> String {
        let environment = crate::config::Environment::new(Vec::<(String, String)>::new());
        let arguments = words.iter().map(|word| (*word).into());
        match crate::config::Config::parse(arguments, &environment) {
            Err(crate::config::Refusal::Clap(error)) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_guessed_option_leads_to_the_options_of_that_command() {
        for (words, tip) in [
            (&["walrelay", "audit", "--since", "7d"][..], "tip: use `--from-time`"),
            (&["walrelay", "tail", "order.events", "--from=7d"], "tip: use `--since`"),
            (&["walrelay", "run", "--once"], "tip: use `--until-caught-up`"),
            (&["walrelay", "status", "--json"], "tip: use `--output json`"),
            (&["walrelay", "status", "--follow"], "tip: use `--watch`"),
            (&["walrelay", "slot", "drop", "--force"], "tip: use `--yes`"),
            (&["walrelay", "reshard", "--to", "2"], "tip: use `--shards`"),
            (
                &["walrelay", "anchor", "drop", "--name", "a"],
                "tip: give the name without an option",
            ),
            (&["walrelay", "slot", "drop", "--name", "a"], "tip: use `--slot`"),
        ] {
            let text = told(words);
            assert!(text.contains(tip) && !text.contains("as a value"), "{words:?}: {text}");
        }
        let removal = told(&["walrelay", "consumer", "delete", "billing"]);
        assert!(removal.contains("no command removes a consumer"), "{removal}");
        let stop = told(&["walrelay", "stop"]);
        assert!(stop.contains("SIGTERM"), "{stop}");
        let init = told(&["walrelay", "init", "--force"]);
        assert!(init.contains("slot recover") && !init.contains("--yes"), "{init}");
        let none = told(&["walrelay", "version", "--force"]);
        assert!(!none.contains("tip:") && !none.contains("\n\n\n"), "{none}");
    }

    #[test]
    fn no_guessed_word_leads_to_a_command_that_deletes() {
        for (word, tip) in [
            ("reset", "`walrelay slot reset` publishes"),
            ("upgrade", "`walrelay init`; before"),
            ("restart", "run `walrelay run`"),
            ("pause", "run `walrelay consumer pause`"),
            ("delete", "`walrelay help`"),
            ("remove", "`walrelay help`"),
        ] {
            let text = told(&["walrelay", word]);
            let is_harmless = ["forget", "prune", "reshard"].iter().all(|it| !text.contains(it));
            assert!(text.contains(tip) && is_harmless, "{word}: {text}");
        }
    }

    #[test]
    fn a_missing_name_leads_to_the_list_and_a_missing_change_to_its_options() {
        for (words, tip) in [
            (
                &["walrelay", "consumer", "status"][..],
                "tip: `walrelay consumer list`, with the same options",
            ),
            (
                &["walrelay", "dispatch", "show"],
                "tip: `walrelay dispatch list`, with the same options",
            ),
            (
                &["walrelay", "inbox", "edit", "--dry-run"],
                "tip: `walrelay inbox list`, with the same options",
            ),
            (&["walrelay", "dispatch", "edit", "6f1c9a9e"], "--set-topic <TOPIC>|--set-key <KEY>"),
        ] {
            assert!(told(words).contains(tip), "{words:?}: {}", told(words));
        }
        let new = told(&["walrelay", "consumer", "init"]);
        assert!(!new.contains("tip:"), "{new}");
    }

    #[test]
    fn a_guessed_option_is_none_and_the_options_that_it_means_exist() {
        fn has(command: &Command, option: &str) -> bool {
            command.get_arguments().any(|it| it.get_long() == Some(option))
                || command.get_subcommands().any(|below| has(below, option))
        }
        let root = crate::cli::command();
        for (guess, meant) in OPTION_GUESSES {
            for option in meant.iter().filter_map(|option| option.split(' ').next()) {
                assert!(has(&root, option), "{guess}: --{option} is no option");
            }
        }
    }

    #[test]
    fn every_guess_leads_to_a_command_and_is_none() {
        let find = |words: &str| {
            let mut command = &crate::cli::command();
            let mut is_found = true;
            for word in words.split(' ').take_while(|word| !word.starts_with('-')) {
                match command.find_subcommand(word) {
                    Some(below) => command = below,
                    None => is_found = false,
                }
            }
            is_found
        };
        for (guess, command) in GUESSES {
            assert!(!find(guess), "{guess} is a command");
            assert!(find(command), "{command} is no command");
        }
    }
}
