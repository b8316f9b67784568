//! The language of pages: short sentences, the words of the field, named actors, short pages.
//!
//! The limits are rates over all pages together, because a rare exception is cheaper than a rule
//! about exceptions. A finding is reported for each place once a rate is exceeded.

use crate::language::{BANNED, SENTENCE_WORDS_MAX, WHAT_PER_THOUSAND_MAX, sentences};
use crate::repository::{Files, Finding};

/// Of 1,000 sentences. A page with more of them is read twice.
const LONG_SENTENCES_PER_THOUSAND_MAX: usize = 30;

/// Of 10,000 words.
const BANNED_PER_TEN_THOUSAND_MAX: usize = 3;

/// A longer page answers more than one question.
const PAGE_WORDS_MAX: usize = 1_500;

/// A runbook is read during an incident.
const RUNBOOK_WORDS_MAX: usize = 400;

/// Pages outside `docs/` that follow these rules.
const OTHER_PAGES: &[&str] = &["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];

/// The pages that are read by section: one for each error code, and one for each command.
const BY_SECTION: [&str; 2] = ["errors.md", "json.md"];

/// The first words of a page that a program writes. Its length follows from the program.
const GENERATED: &str = "<!-- generated";

/// Words that are usual in comments and unclear on a page, each with its replacement.
const BANNED_ON_PAGES: &[(&str, &str)] = &[
    ("rights", "privileges or permissions"),
    ("what helps", "the fix or the next step"),
    ("what waits", "pending or queued rows"),
    ("come again", "are redelivered"),
    ("coming again", "being redelivered"),
    ("go out again", "are republished"),
    ("going on", "continuing"),
    ("mending", "fixing"),
    ("of log", "of WAL"),
    ("log waits", "WAL is retained"),
    ("piles up", "accumulates"),
    ("stand", "is"),
    ("stands behind", "is queued behind"),
    ("the other half", "the consumer"),
    ("the other end", "the consumer"),
];

/// A part of a page that is read as one: a paragraph, a list item, a heading, a table cell.
struct Passage {
    line: usize,
    text: String,
}

fn is_page(path: &str) -> bool {
    (path.starts_with("docs/") && path.ends_with(".md")) || OTHER_PAGES.contains(&path)
}

fn pages(files: &Files) -> impl Iterator<Item = (&str, &str)> {
    let all = files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
    all.filter(|(path, _)| is_page(path))
}

/// Returns the prose of a page without its code and HTML comments.
fn passages(page: &str) -> Vec<Passage> {
    let mut found: Vec<Passage> = Vec::new();
    let (mut is_open, mut is_code, mut is_comment) = (false, false, false);
    for (index, line) in page.lines().enumerate() {
        let line = line.trim_start_matches(['>', ' ']).trim();
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        is_comment |= line.starts_with("<!--");
        if is_fence || is_code || is_comment || line.is_empty() {
            is_comment &= !line.ends_with("-->");
            is_open = false;
            continue;
        }
        if line.starts_with('|') {
            let cells = line.split('|').map(str::trim);
            let cells = cells.filter(|cell| cell.contains(char::is_alphanumeric));
            found.extend(cells.map(|cell| Passage { line: index + 1, text: cell.to_owned() }));
            is_open = false;
            continue;
        }
        match found.last_mut().filter(|_| is_open && !begins_passage(line)) {
            Some(open) => {
                open.text.push(' ');
                open.text.push_str(line);
            }
            None => found.push(Passage { line: index + 1, text: line.to_owned() }),
        }
        is_open = !line.starts_with('#');
    }
    found
}

/// Reports whether a line is a heading or begins a list item.
fn begins_passage(line: &str) -> bool {
    let number = line.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let is_numbered = number.len() < line.len() && number.starts_with(". ");
    is_numbered || ["- ", "* ", "#"].iter().any(|mark| line.starts_with(mark))
}

/// Removes the targets of links and images, whose words nobody reads.
fn without_targets(text: &str) -> String {
    let mut parts = text.split("](");
    let mut read = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        read.push(']');
        read.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    read
}

/// A sentence, and the line where its passage begins.
struct Sentence<'a> {
    path: &'a str,
    line: usize,
    words: Vec<String>,
}

impl Sentence<'_> {
    fn finding(&self, remedy: String) -> Finding {
        Finding::new(self.path, self.line, remedy)
    }

    fn opening(&self) -> String {
        self.words.iter().take(6).map(String::as_str).collect::<Vec<_>>().join(" ")
    }
}

fn sentences_of<'a>(path: &'a str, page: &str) -> Vec<Sentence<'a>> {
    let mut found = Vec::new();
    for Passage { line, text } in passages(page) {
        let of_passage = sentences(&without_targets(&text));
        let of_passage = of_passage.into_iter().filter(|words| !words.is_empty());
        found.extend(of_passage.map(|words| Sentence { path, line, words }));
    }
    found
}

fn all_sentences(files: &Files) -> Vec<Sentence<'_>> {
    pages(files).flat_map(|(path, page)| sentences_of(path, page)).collect()
}

fn words_in(sentences: &[Sentence<'_>]) -> usize {
    sentences.iter().map(|sentence| sentence.words.len()).sum()
}

/// Puts the rate in front of the findings if it is exceeded, and drops the findings otherwise.
fn above(limit: usize, per: usize, of: usize, findings: Vec<Finding>, what: &str) -> Vec<Finding> {
    if findings.len() * per < limit * of.max(1) || findings.is_empty() {
        return Vec::new();
    }
    let rate = format!("{} {what} of {of}, under {limit} of {per} allowed", findings.len());
    std::iter::once(Finding::new("docs", 0, rate)).chain(findings).collect()
}

pub(crate) fn pages_have_short_sentences(files: &Files) -> Vec<Finding> {
    let all = all_sentences(files);
    let long = all.iter().filter(|sentence| sentence.words.len() > SENTENCE_WORDS_MAX);
    let findings = long.map(|sentence| {
        let words = sentence.words.len();
        sentence.finding(format!("{words} words, split it: {} …", sentence.opening()))
    });
    let findings = findings.collect();
    above(LONG_SENTENCES_PER_THOUSAND_MAX, 1_000, all.len(), findings, "long sentences")
}

pub(crate) fn pages_use_the_words_of_the_field(files: &Files) -> Vec<Finding> {
    let all = all_sentences(files);
    let mut findings = Vec::new();
    for sentence in &all {
        let text = format!(" {} ", sentence.words.join(" "));
        let banned = BANNED.iter().chain(BANNED_ON_PAGES);
        let used = banned.filter(|(word, _)| text.contains(&format!(" {word} ")));
        findings.extend(used.map(|(word, use_)| sentence.finding(format!("`{word}`: {use_}"))));
        if text.ends_with(" too ") {
            findings.push(sentence.finding("`too` at the end: also".to_owned()));
        }
    }
    above(BANNED_PER_TEN_THOUSAND_MAX, 10_000, words_in(&all), findings, "banned words")
}

pub(crate) fn pages_name_their_actors(files: &Files) -> Vec<Finding> {
    let all = all_sentences(files);
    let mut findings = Vec::new();
    for sentence in &all {
        let count = sentence.words.iter().filter(|word| *word == "what").count();
        let remedy = format!("`what`, name it: {} …", sentence.opening());
        findings.extend((0..count).map(|_| sentence.finding(remedy.clone())));
    }
    above(WHAT_PER_THOUSAND_MAX, 1_000, words_in(&all), findings, "times `what`")
}

pub(crate) fn pages_are_short(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, page) in pages(files) {
        let is_exempt =
            BY_SECTION.iter().any(|name| path.ends_with(name)) || page.contains(GENERATED);
        let is_runbook = path.starts_with("docs/runbooks/") && !path.ends_with("README.md");
        let limit = if is_runbook { RUNBOOK_WORDS_MAX } else { PAGE_WORDS_MAX };
        let words = words_in(&sentences_of(path, page));
        if words > limit && !is_exempt {
            let remedy = format!("{words} words, {limit} allowed: split by question");
            findings.push(Finding::new(path, 1, remedy));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::{files, places};

    #[test]
    fn code_links_and_comments_are_no_prose() {
        let page = "# A title\n\n<!-- not tested: a long\nreason -->\n```sh\nmend it\n```\n\
                    See [the page](mend.md#room).\n\n| Cell | `mend` |\n| --- | --- |\n";
        let words: Vec<String> =
            sentences_of("a.md", page).into_iter().flat_map(|it| it.words).collect();
        assert_eq!(words, ["a", "title", "see", "the", "page", "cell", "x"]);
    }

    #[test]
    fn a_list_item_and_a_table_cell_are_sentences_of_their_own() {
        let half = "word ".repeat(SENTENCE_WORDS_MAX - 1);
        let page = format!("- {half}\n- {half}\n1. {half}\n\n| {half} | {half} |\n");
        assert!(pages_have_short_sentences(&files(&[("docs/a.md", &page)])).is_empty());
        let long = format!("{half}\n{half}.\n");
        let found = files(&[("docs/decisions/a.md", &long), ("docs/b.md", &long)]);
        let expected = [("docs", 0), ("docs/b.md", 1), ("docs/decisions/a.md", 1)];
        assert_eq!(places(&pages_have_short_sentences(&found)), expected);
    }

    #[test]
    fn a_rate_below_the_limit_passes() {
        let long = format!("{}.\n", "word ".repeat(SENTENCE_WORDS_MAX + 1));
        let rare = format!("{}{long}", "A word.\n".repeat(40));
        assert!(pages_have_short_sentences(&files(&[("README.md", &rare)])).is_empty());
        let often = format!("{}{long}", "A word.\n".repeat(20));
        assert_eq!(pages_have_short_sentences(&files(&[("README.md", &often)])).len(), 2);
    }

    #[test]
    fn a_banned_word_is_found_with_its_line() {
        let page = "A page.\n\nThe reader must mend it.\nIt is old, too.\n";
        let found = pages_use_the_words_of_the_field(&files(&[("SECURITY.md", page)]));
        assert_eq!(places(&found), [("docs", 0), ("SECURITY.md", 3), ("SECURITY.md", 3)]);
    }

    #[test]
    fn a_clause_without_an_actor_counts() {
        let rare = format!("what {}", "word ".repeat(999));
        assert!(pages_name_their_actors(&files(&[("docs/a.md", &rare)])).is_empty());
        let found = pages_name_their_actors(&files(&[("docs/a.md", "What it is.")]));
        assert_eq!(places(&found), [("docs", 0), ("docs/a.md", 1)]);
    }

    #[test]
    fn a_long_page_is_found_unless_it_is_exempt() {
        let page = "word. ".repeat(PAGE_WORDS_MAX + 1);
        let runbook = "word. ".repeat(RUNBOOK_WORDS_MAX + 1);
        let generated = format!("{GENERATED} from the program -->\n{page}");
        let all = files(&[
            ("docs/a.md", &page),
            ("docs/generated.md", &generated),
            ("docs/reference/errors.md", &page),
            ("docs/runbooks/README.md", &runbook),
            ("docs/runbooks/slot-lost.md", &runbook),
        ]);
        let expected = [("docs/a.md", 1), ("docs/runbooks/slot-lost.md", 1)];
        assert_eq!(places(&pages_are_short(&all)), expected);
    }
}
