//! Names the right command for a word that users of similar programs try. A guess is no alias: the
//! command line stays refused.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Guesses, and the commands that do the work.
const GUESSES: [(&str, &str); 18] = [
    ("adopt", "upgrade finish"),
    ("backfill", "replay start --source table"),
    ("carry-over", "upgrade prepare --carry-over"),
    ("consume", "consumer run"),
    ("consumer create", "consumer init"),
    ("consumer start", "consumer run"),
    ("doctor", "check"),
    ("dlq", "dispatch list --status dead"),
    ("migrate", "init"),
    ("prepare-upgrade", "upgrade prepare"),
    ("recover", "slot recover"),
    ("replay abort", "replay cancel"),
    ("replay stop", "replay cancel"),
    ("setup", "init"),
    ("slot create", "init"),
    ("slot list", "status"),
    ("slot show", "status"),
    ("start", "run"),
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
    let end = words.iter().position(|word| word == unknown).map_or(words.len(), |at| at + 1);
    let given = words[..end].join(" ");
    let found = GUESSES.iter().find(|(guess, _)| given == *guess || unknown == guess);
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
