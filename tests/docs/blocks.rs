//! The fenced SQL and shell blocks of a page, and what a page says about running them.
//!
//! A block runs as it stands. A comment on the line before its fence changes that:
//!
//! - `<!-- not tested: REASON -->`: it cannot run here, and why.
//! - `<!-- tested with: THIS -> THAT; … -->`: placeholders that a reader replaces.

use std::fmt;

/// What a block is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Sql,
    Shell,
}

/// A block that runs here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) language: Language,
    /// The line of its fence, from 1.
    pub(crate) line: usize,
    /// Its text, placeholders replaced.
    pub(crate) text: String,
}

/// What is wrong with a page's marks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) line: usize,
    pub(crate) problem: String,
}

impl fmt::Display for Mark {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "line {}: {}", self.line, self.problem)
    }
}

/// The blocks of `page` that run here, in order.
pub(crate) fn runnable(page: &str) -> Result<Vec<Block>, Mark> {
    let lines: Vec<&str> = page.lines().collect();
    let mut blocks = Vec::new();
    let mut index = 0;
    while index < lines.len() {
        let Some(info) = lines[index].trim_start().strip_prefix("```") else {
            index += 1;
            continue;
        };
        let body = lines[index + 1..].iter().take_while(|line| line.trim() != "```");
        let body: Vec<&str> = body.copied().collect();
        let before = index.checked_sub(1).map_or("", |above| lines[above].trim());
        if let Some(language) = language(info.trim())
            && let Some(text) = text(before, &body.join("\n"), index)?
        {
            blocks.push(Block { language, line: index + 1, text });
        }
        index += body.len() + 2;
    }
    Ok(blocks)
}

fn language(info: &str) -> Option<Language> {
    match info {
        "sql" => Some(Language::Sql),
        "sh" | "bash" => Some(Language::Shell),
        _ => None,
    }
}

fn text(before: &str, body: &str, line: usize) -> Result<Option<String>, Mark> {
    let wrong = |problem: String| Mark { line, problem };
    let Some(mark) = before.strip_prefix("<!-- ").and_then(|mark| mark.strip_suffix(" -->")) else {
        return Ok(Some(format!("{body}\n")));
    };
    if let Some(reason) = mark.strip_prefix("not tested:") {
        let has_reason = !reason.trim().is_empty();
        return has_reason.then_some(None).ok_or_else(|| wrong("say why it is not tested".into()));
    }
    let Some(replacements) = mark.strip_prefix("tested with:") else {
        return Err(wrong(format!("`{mark}`: neither `not tested: …` nor `tested with: …`")));
    };
    let mut text = format!("{body}\n");
    for replacement in replacements.split(';') {
        let (this, that) = replacement
            .split_once("->")
            .ok_or_else(|| wrong(format!("`{replacement}` is not `THIS -> THAT`")))?;
        if !text.contains(this.trim()) {
            return Err(wrong(format!("`{}` does not stand in the block", this.trim())));
        }
        text = text.replace(this.trim(), that.trim());
    }
    Ok(Some(text))
}

#[test]
fn blocks_are_found_with_their_language_and_line() {
    let page = "# T\n\n```sql\nSELECT 1;\n```\n\n```text\nno\n```\n```sh\na\nb\n```\n";
    let blocks = runnable(page).expect("no marks");
    let sql = Block { language: Language::Sql, line: 3, text: "SELECT 1;\n".into() };
    let shell = Block { language: Language::Shell, line: 10, text: "a\nb\n".into() };
    assert_eq!(blocks, [sql, shell]);
}

#[test]
fn a_block_is_left_out_with_a_reason_only() {
    let page = |mark: &str| format!("{mark}\n```sh\ngcloud\n```\n");
    assert_eq!(runnable(&page("<!-- not tested: needs a project -->")), Ok(Vec::new()));
    assert!(runnable(&page("<!-- not tested: -->")).is_err());
    assert!(runnable(&page("<!-- untested -->")).is_err());
}

#[test]
fn placeholders_are_replaced_and_have_to_stand_there() {
    let page = |mark: &str| format!("{mark}\n```sql\nSELECT 'ID', '…';\n```\n");
    let blocks = runnable(&page("<!-- tested with: 'ID' -> 'x'; … -> 1 -->")).expect("replaced");
    assert_eq!(blocks[0].text, "SELECT 'x', '1';\n");
    assert!(runnable(&page("<!-- tested with: GONE -> x -->")).is_err());
}
