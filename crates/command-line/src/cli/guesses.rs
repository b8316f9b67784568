//! Names the right command for a word that users of similar programs try. A guess is no alias: the
//! command line stays refused.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Guesses, from the first word of the command line on, and the commands that do the work.
const GUESSES: [(&str, &str); 60] = [
    ("adopt", "upgrade finish"),
    ("anchor delete", "anchor drop"),
    ("backfill", "replay start --source table"),
    ("carry-over", "upgrade prepare --carry-over"),
    ("config get", "config show"),
    ("config list", "config show"),
    ("config validate", "config check"),
    ("config view", "config show"),
    ("consume", "consumer run"),
    ("consumer create", "consumer init"),
    ("consumer describe", "consumer status"),
    ("consumer lag", "consumer status"),
    ("consumer show", "consumer status"),
    ("consumer start", "consumer run"),
    ("consumer stop", "consumer pause"),
    ("dead", "dispatch list --status dead"),
    ("dead-letters", "dispatch list --status dead"),
    ("describe", "status"),
    ("dispatch delete", "dispatch discard"),
    ("dispatch describe", "dispatch show"),
    ("dispatch get", "dispatch show"),
    ("dlq", "dispatch list --status dead"),
    ("doctor", "check"),
    ("errors", "explain"),
    ("events", "tail"),
    ("get", "status"),
    ("health", "status"),
    ("inbox delete", "inbox discard"),
    ("inbox describe", "inbox show"),
    ("inbox dlq", "inbox list --status dead"),
    ("inbox get", "inbox show"),
    ("lag", "status"),
    ("list", "status"),
    ("listen", "tail"),
    ("migrate", "init"),
    ("ping", "check"),
    ("prepare-upgrade", "upgrade prepare"),
    ("publish", "emit"),
    ("pull", "tail"),
    ("rebuild", "consumer rebuild"),
    ("recover", "slot recover"),
    ("replay abort", "replay cancel"),
    ("replay status", "replay list"),
    ("replay stop", "replay cancel"),
    ("retry", "dispatch retry"),
    ("send", "emit"),
    ("serve", "run"),
    ("setup", "init"),
    ("slot create", "init"),
    ("slot delete", "slot drop"),
    ("slot list", "status"),
    ("slot show", "status"),
    ("slot status", "status"),
    ("start", "run"),
    ("subscribe", "tail"),
    ("top", "status --watch"),
    ("topic", "init --create-topics"),
    ("topics", "init --create-topics"),
    ("upgrade abort", "upgrade cancel"),
    ("upgrade start", "upgrade prepare"),
];

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
    let found = GUESSES.iter().find(|(guess, _)| given == *guess);
    if let Some((_, command)) = found {
        let tip = StyledStr::from(format!("run `walrelay {command}`"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        error.remove(ContextKind::SuggestedSubcommand);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

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
