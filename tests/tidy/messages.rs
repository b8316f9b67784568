//! The language of messages: errors, hints, log messages and printed texts. The rules for comments
//! apply to them also.

use crate::language::{SENTENCE_WORDS_MAX, banned_words, sentences};
use crate::repository::{Files, Finding, rust_files};

/// Crates of tests, whose messages only a developer reads.
const OF_TESTS: &[&str] = &[
    "crates/testkit/",
    "crates/private-postgres/",
    "crates/emulator/",
    "crates/walrelay/src/demo",
];

/// Words that only SQL has in capitals.
const SQL: &[&str] = &[
    "SELECT", "INSERT", "UPDATE", "DELETE", "FROM", "WHERE", "ALTER", "CREATE", "WITH", "AND",
    "RAISE", "CASE",
];

fn in_scope(files: &Files) -> impl Iterator<Item = (&str, &str)> {
    rust_files(files).filter(|(path, _)| {
        let is_program = path.starts_with("crates/") && path.contains("/src/");
        let is_test = path.ends_with("tests.rs") || path.ends_with("error_table.rs");
        let is_left_out = OF_TESTS.iter().any(|it| path.starts_with(it));
        is_program && !is_test && !is_left_out
    })
}

/// Returns the texts in quotes before the unit tests, each with its line. SQL and single words are
/// left out.
fn messages(text: &str) -> Vec<(usize, String)> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, line) in code.lines().enumerate() {
        if open.is_none() && line.trim_start().starts_with("//") {
            continue;
        }
        let mut characters = line.chars().peekable();
        if open.is_some() {
            while characters.next_if(|it| it.is_whitespace()).is_some() {}
        }
        while let Some(character) = characters.next() {
            match (&mut open, character) {
                // A line break within the message.
                (Some((_, message)), '\\') if characters.peek() == Some(&'n') => {
                    characters.next();
                    message.push_str(". ");
                }
                (Some((_, message)), '\\') => message.extend(characters.next()),
                (Some(_), '"') => found.extend(open.take()),
                (Some((_, message)), other) => message.push(other),
                (None, '\'') if characters.peek() == Some(&'"') => drop(characters.next()),
                (None, '"') => open = Some((index + 1, String::new())),
                (None, _) => {}
            }
        }
    }
    found.retain(|(_, message)| {
        let is_sql = message.split(|it: char| !it.is_alphabetic()).any(|it| SQL.contains(&it));
        message.trim().contains(' ') && !is_sql
    });
    found
}

/// A semicolon separates the parts of an error, which are sentences of their own.
fn sentences_of(message: &str) -> Vec<Vec<String>> {
    message.split(';').flat_map(sentences).collect()
}

pub(crate) fn messages_have_short_sentences(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in in_scope(files) {
        for (line, message) in messages(text) {
            let longest = sentences_of(&message).iter().map(Vec::len).max().unwrap_or(0);
            if longest > SENTENCE_WORDS_MAX {
                let remedy = format!("a message has a sentence of {longest} words: split it");
                findings.push(Finding::new(path, line, remedy));
            }
        }
    }
    findings
}

pub(crate) fn messages_use_the_words_of_the_field(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in in_scope(files) {
        for (line, message) in messages(text) {
            let used = sentences_of(&message).into_iter().flat_map(|it| banned_words(&it));
            findings.extend(used.map(|(word, use_)| {
                Finding::new(path, line, format!("a message says `{word}`: {use_}"))
            }));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::{files, places};

    const PATH: &str = "crates/relay/src/a.rs";

    #[test]
    fn a_banned_word_is_found_in_a_message_and_not_in_code_or_sql() {
        let text =
            "let sick = 1;\nlog(\"the key is \\\n     sick\");\nsql(\"SELECT sick FROM t\");\n";
        let found = messages_use_the_words_of_the_field(&files(&[(PATH, text)]));
        assert_eq!(places(&found), [(PATH, 2)]);
        let tested = "fn f() {}\n#[cfg(test)]\nmod tests { const A: &str = \"it is sick\"; }\n";
        assert!(messages_use_the_words_of_the_field(&files(&[(PATH, tested)])).is_empty());
    }

    #[test]
    fn a_long_sentence_of_a_message_is_found_and_its_parts_are_counted_apart() {
        let long = format!("log(\"{}\");\n", "word ".repeat(26));
        let parts = format!("log(\"{}; {}\");\n", "word ".repeat(20), "word ".repeat(20));
        let found = messages_have_short_sentences(&files(&[
            (PATH, &long),
            ("crates/relay/src/b.rs", &parts),
        ]));
        assert_eq!(places(&found), [(PATH, 1)]);
    }

    #[test]
    fn a_quote_in_a_character_or_a_comment_opens_no_message() {
        let text = "// \"the key\nlet quote = '\"';\nlet a = b.sick;\n";
        assert!(messages(text).is_empty(), "{:?}", messages(text));
    }
}
