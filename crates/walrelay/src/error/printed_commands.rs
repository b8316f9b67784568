//! The commands in a printed text. Typed literally, they must be about the outbox or the inbox that this
//! command is about, so they repeat the options that name it.

use std::sync::OnceLock;

use walrelay_outbox_store::Shard;

const PROGRAM: &str = "walrelay ";

/// Finds the command at the start of a text: the length of its words, and its options. None if the text
/// names no single command.
pub(crate) type FindCommand = fn(&str) -> Option<(usize, Vec<String>)>;

/// Whether a command is about the outbox or about an inbox. Both have `--database-url`, which names a
/// different database in each, so it is repeated within a side only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Outbox,
    Inbox,
}

impl Side {
    /// Returns the side of the command at the start of a text.
    pub(crate) fn of(command: &str) -> Self {
        match command.split(|c: char| !c.is_ascii_lowercase()).next() {
            Some("consumer" | "inbox") => Self::Inbox,
            _ => Self::Outbox,
        }
    }
}

/// What this command line says about its outbox or inbox.
pub(crate) struct GivenPlace {
    pub(crate) side: Side,
    pub(crate) shard: Shard,
    /// The name of each other option, with its words.
    pub(crate) options: Vec<(String, String)>,
    pub(crate) find: FindCommand,
}

static GIVEN: OnceLock<GivenPlace> = OnceLock::new();

/// Sets what the printed commands repeat. A second call changes nothing.
pub(crate) fn set_given(given: GivenPlace) {
    GIVEN.get_or_init(|| given);
}

/// Adds to the commands in a text what this command line says about its outbox or inbox.
#[must_use]
pub(crate) fn as_given(text: &str) -> String {
    match GIVEN.get() {
        Some(given) => with_shard(&given.add_to(text), given.shard),
        None => text.to_owned(),
    }
}

impl GivenPlace {
    fn add_to(&self, text: &str) -> String {
        if self.options.is_empty() {
            return text.to_owned();
        }
        each_command(text, |rest| {
            let (length, accepted) = (self.find)(rest)?;
            let printed = one_command(rest);
            let is_missing = |option: &str| {
                accepted.iter().any(|it| it == option) && !printed.contains(&format!("--{option}"))
            };
            let is_other = |option: &str| {
                matches!(option, "database-url" | "database-auth") && Side::of(rest) != self.side
            };
            let missing =
                self.options.iter().filter(|(option, _)| is_missing(option) && !is_other(option));
            Some((length, missing.map(|(_, words)| format!(" {words}")).collect()))
        })
    }
}

/// Adds `--shard` to each command in a text that is about one shard.
#[must_use]
pub(crate) fn with_shard(text: &str, shard: Shard) -> String {
    if shard.is_whole() {
        return text.to_owned();
    }
    each_command(text, |rest| {
        let length = of_one_shard(rest)?;
        (!one_command(rest).contains("--shard")).then(|| (length, format!(" --shard {shard}")))
    })
}

/// Returns the start of a text, up to the end of its command.
fn one_command(text: &str) -> &str {
    text.split(['`', ';', '\n']).next().unwrap_or_default()
}

/// Returns the length of the command at the start of the text, if it is about one shard.
fn of_one_shard(text: &str) -> Option<usize> {
    let mut words = text.split(|c: char| !c.is_ascii_lowercase());
    match (words.next(), words.next()) {
        (Some("run"), _) => Some("run".len()),
        (Some("replay"), Some(command @ ("start" | "resume" | "cancel"))) => {
            Some("replay ".len() + command.len())
        }
        (Some(group @ ("slot" | "anchor" | "dispatch")), Some(command)) if !command.is_empty() => {
            Some(group.len() + 1 + command.len())
        }
        _ => None,
    }
}

/// Inserts into each command of a text, after so many of its characters.
fn each_command(text: &str, addition: impl Fn(&str) -> Option<(usize, String)>) -> String {
    let (mut done, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(PROGRAM) {
        let (length, words) = addition(after).unwrap_or_default();
        let (command, after) = after.split_at(length);
        done.extend([before, PROGRAM, command, &words]);
        rest = after;
    }
    done + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_command_about_one_slot_names_its_shard() {
        let shard: Shard = "1/4".parse().unwrap();
        for (text, expected) in [
            ("run `walrelay slot recover`", "run `walrelay slot recover --shard 1/4`"),
            ("walrelay slot reset --to-anchor a", "walrelay slot reset --shard 1/4 --to-anchor a"),
            ("walrelay slot recover --shard 0/2", "walrelay slot recover --shard 0/2"),
            ("walrelay anchor drop a", "walrelay anchor drop --shard 1/4 a"),
            ("start it: walrelay run", "start it: walrelay run --shard 1/4"),
            ("walrelay replay resume 5f", "walrelay replay resume --shard 1/4 5f"),
            ("walrelay replay cancel 5f", "walrelay replay cancel --shard 1/4 5f"),
            ("walrelay init, `walrelay slot` commands", "walrelay init, `walrelay slot` commands"),
            (
                "`walrelay slot drop`, or name one with --shard I/N",
                "`walrelay slot drop --shard 1/4`, or name one with --shard I/N",
            ),
        ] {
            assert_eq!(with_shard(text, shard), expected);
            assert_eq!(with_shard(text, Shard::WHOLE), text);
        }
    }

    #[test]
    fn a_database_is_repeated_only_for_commands_of_its_kind() {
        let given = |side| GivenPlace {
            shard: Shard::WHOLE,
            side,
            options: vec![("database-url".to_owned(), "--database-url u".to_owned())],
            find: crate::cli::command_at,
        };
        let (outbox, inbox) = ("walrelay audit", "walrelay inbox list");
        assert_eq!(given(Side::Outbox).add_to(outbox), "walrelay audit --database-url u");
        assert_eq!(given(Side::Outbox).add_to(inbox), inbox);
        assert_eq!(given(Side::Inbox).add_to(inbox), "walrelay inbox list --database-url u");
        assert_eq!(given(Side::Inbox).add_to(outbox), outbox);
    }

    #[test]
    fn a_printed_command_repeats_the_options_that_name_its_outbox_if_it_has_them() {
        let words = |option: &str, words: &str| (option.to_owned(), words.to_owned());
        let given = GivenPlace {
            shard: Shard::WHOLE,
            side: Side::Outbox,
            options: vec![words("slot", "--slot s2"), words("config", "--config c.toml")],
            find: crate::cli::command_at,
        };
        for (text, expected) in [
            ("walrelay init --backfill", "walrelay init --slot s2 --config c.toml --backfill"),
            ("`walrelay slot recover`", "`walrelay slot recover --slot s2 --config c.toml`"),
            ("walrelay slot recover --slot x", "walrelay slot recover --config c.toml --slot x"),
            ("walrelay explain x", "walrelay explain --config c.toml x"),
            ("the `walrelay slot` commands, walrelay", "the `walrelay slot` commands, walrelay"),
            ("walrelay is a program", "walrelay is a program"),
        ] {
            assert_eq!(given.add_to(text), expected);
        }
    }
}
