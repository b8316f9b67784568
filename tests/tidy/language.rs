//! The language of comments: short sentences, and the words of the field.

use crate::repository::{Files, Finding, rust_files};

/// Longer sentences need a second reading.
pub(crate) const SENTENCE_WORDS_MAX: usize = 25;

/// Of 1,000 words in comments. A clause that begins with this word usually hides its actor.
pub(crate) const WHAT_PER_THOUSAND_MAX: usize = 3;

/// Words with a plainer or more usual replacement.
pub(crate) const BANNED: &[(&str, &str)] = &[
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("anew", "again"),
    ("besides", "also"),
    ("tell", "report, show or log"),
    ("tells", "reports, shows or logs"),
    ("told", "reported, shown or logged"),
    ("looks at", "checks or reads"),
    ("look at", "check or read"),
    ("comes again", "is redelivered"),
    ("goes out again", "is republished"),
    ("goes on", "continues"),
    ("go on", "continue"),
    ("room", "headroom, free space or capacity"),
    ("stands", "is"),
    ("held back", "retained"),
    ("holds back", "retains"),
    ("trouble", "failure"),
    ("sick", "failing"),
    ("takes up", "resumes"),
    ("whatever", "any, with its noun"),
    ("whoever", "the actor's name"),
];

/// Help texts, which clap reads from comments.
const HELP: &[&str] = &[
    "crates/walrelay/src/cli",
    "crates/walrelay/src/commands",
    "crates/walrelay/src/options",
    "bench/src/",
    "bench/peers/src/",
];

/// A comment of one or more lines, with the number of its first line.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut is_open, mut is_code) = (false, false);
    for (index, line) in text.lines().enumerate() {
        let comment = line.trim_start().strip_prefix("//");
        let comment = comment.map(|rest| rest.trim_start_matches(['/', '!']).trim());
        is_code &= comment.is_some();
        let Some(words) = comment.filter(|words| !words.is_empty()) else {
            is_open = false;
            continue;
        };
        if words.starts_with("```") {
            is_code = !is_code;
            is_open = false;
            continue;
        }
        let begins = words.starts_with(['-', '*', '#', '|']);
        if is_code {
            continue;
        }
        match found.last_mut().filter(|_| is_open && !begins) {
            Some((_, open)) => {
                open.push(' ');
                open.push_str(words);
            }
            None => found.push((index + 1, words.to_owned())),
        }
        is_open = true;
    }
    found
}

/// Returns a text without its code, in sentences of lower-case words.
pub(crate) fn sentences(text: &str) -> Vec<Vec<String>> {
    let prose: Vec<&str> = text.split('`').step_by(2).collect();
    let prose = prose.join("x");
    let mut sentences = vec![Vec::new()];
    for word in prose.split_whitespace() {
        let letters: String = word.chars().filter(|it| it.is_alphabetic() || *it == '\'').collect();
        if let Some(sentence) = sentences.last_mut().filter(|_| !letters.is_empty()) {
            sentence.push(letters.to_lowercase());
        }
        if word.trim_end_matches([')', '"', '\'']).ends_with(['.', '!', '?', ':', '|']) {
            sentences.push(Vec::new());
        }
    }
    sentences
}

/// Returns the banned words of a sentence, each with its replacement.
pub(crate) fn banned_words(sentence: &[String]) -> Vec<(&'static str, &'static str)> {
    let sentence = format!(" {} ", sentence.join(" "));
    let is_used = |word: &str| sentence.contains(&format!(" {word} "));
    BANNED.iter().filter(|(word, _)| is_used(word)).copied().collect()
}

fn in_scope(files: &Files) -> impl Iterator<Item = (&str, &str)> {
    rust_files(files).filter(|(path, _)| !HELP.iter().any(|help| path.starts_with(help)))
}

pub(crate) fn comments_have_short_sentences(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in in_scope(files) {
        for (line, comment) in comments(text) {
            let longest = sentences(&comment).iter().map(Vec::len).max().unwrap_or(0);
            if longest > SENTENCE_WORDS_MAX {
                let remedy = format!(
                    "{longest} words in a sentence, {SENTENCE_WORDS_MAX} allowed: split it"
                );
                findings.push(Finding::new(path, line, remedy));
            }
        }
    }
    findings
}

pub(crate) fn comments_use_the_words_of_the_field(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in in_scope(files) {
        for (line, comment) in comments(text) {
            let used = sentences(&comment).into_iter().flat_map(|it| banned_words(&it));
            findings.extend(
                used.map(|(word, use_)| Finding::new(path, line, format!("`{word}`: {use_}"))),
            );
        }
    }
    findings
}

pub(crate) fn comments_name_their_actors(files: &Files) -> Vec<Finding> {
    let all = in_scope(files).flat_map(|(_, text)| comments(text));
    let words: Vec<String> = all.flat_map(|(_, comment)| sentences(&comment)).flatten().collect();
    let found = words.iter().filter(|word| *word == "what").count();
    match found * 1000 > WHAT_PER_THOUSAND_MAX * words.len() {
        true => {
            let remedy = format!("`what` {found} times in {} words of comments", words.len());
            vec![Finding::new("crates", 0, remedy)]
        }
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::{files, places};

    #[test]
    fn a_long_sentence_over_several_lines_is_found() {
        let long = format!("/// {}\n/// {}.\nfn f() {{}}\n", "word ".repeat(20), "word ".repeat(6));
        let short = format!("/// {}.\n/// {}.\n", "word ".repeat(20), "word ".repeat(6));
        let found = comments_have_short_sentences(&files(&[("a.rs", &long), ("b.rs", &short)]));
        assert_eq!(places(&found), [("a.rs", 1)]);
    }

    #[test]
    fn a_banned_word_is_found_in_a_comment_and_not_in_code() {
        let text = "// The key is `sick`.\nlet sick = 1;\n// The row goes\n// on.\n";
        let found = comments_use_the_words_of_the_field(&files(&[("a.rs", text)]));
        assert_eq!(places(&found), [("a.rs", 3)]);
    }

    #[test]
    fn the_rate_of_clauses_without_an_actor_is_limited() {
        let rare = format!("// {}\n// what\n", "word ".repeat(999));
        assert!(comments_name_their_actors(&files(&[("a.rs", &rare)])).is_empty());
        let often = "// what it is\n";
        assert_eq!(comments_name_their_actors(&files(&[("a.rs", often)])).len(), 1);
    }
}
