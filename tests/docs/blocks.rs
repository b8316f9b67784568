//! Finds the runnable code blocks of a page, and the marks that control their execution.
//!
//! A block runs unchanged. A comment on the line before its fence changes this rule:
//!
//! - `<!-- not tested: REASON -->`: the block does not run here, for the given reason.
//! - `<!-- tested with: THIS -> THAT; … -->`: replaces placeholders as a reader would.
//! - `<!-- tested until: SQL -->`: runs the block, and stops it when the SQL returns true.

use std::fmt;

/// The language of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Sql,
    Shell,
    Python,
    TypeScript,
    Go,
    Java,
    CSharp,
}

/// A block that runs here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) language: Language,
    /// The line of the block's fence, from 1.
    pub(crate) line: usize,
    /// The block's text, with placeholders replaced.
    pub(crate) text: String,
    /// For a program without an end of its own, the SQL condition after which the program is
    /// stopped.
    pub(crate) until: Option<String>,
}

/// An error in a page's marks.
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

/// Returns the runnable blocks of `page` in order.
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
            && let Some((text, until)) = text(before, &body.join("\n"), index)?
        {
            blocks.push(Block { language, line: index + 1, text, until });
        }
        index += body.len() + 2;
    }
    Ok(blocks)
}

fn language(info: &str) -> Option<Language> {
    match info {
        "sql" => Some(Language::Sql),
        "sh" | "bash" => Some(Language::Shell),
        "python" => Some(Language::Python),
        "typescript" => Some(Language::TypeScript),
        "go" => Some(Language::Go),
        "java" => Some(Language::Java),
        "csharp" => Some(Language::CSharp),
        _ => None,
    }
}

/// Returns the text to run and the stop condition. `None` for an excluded block.
fn text(before: &str, body: &str, line: usize) -> Result<Option<(String, Option<String>)>, Mark> {
    let wrong = |problem: String| Mark { line, problem };
    let Some(mark) = before.strip_prefix("<!-- ").and_then(|mark| mark.strip_suffix(" -->")) else {
        return Ok(Some((format!("{body}\n"), None)));
    };
    if let Some(sql) = mark.strip_prefix("tested until:") {
        return Ok(Some((format!("{body}\n"), Some(sql.trim().to_owned()))));
    }
    if let Some(reason) = mark.strip_prefix("not tested:") {
        let has_reason = !reason.trim().is_empty();
        return has_reason.then_some(None).ok_or_else(|| wrong("say why it is not tested".into()));
    }
    let Some(replacements) = mark.strip_prefix("tested with:") else {
        let known = "`not tested: …`, `tested with: …` or `tested until: …`";
        return Err(wrong(format!("`{mark}` is none of {known}")));
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
    Ok(Some((text, None)))
}

#[test]
fn blocks_are_found_with_their_language_and_line() {
    let page = "# T\n\n```sql\nSELECT 1;\n```\n\n```text\nno\n```\n```sh\na\nb\n```\n";
    let blocks = runnable(page).expect("no marks");
    let block =
        |language, line, text: &str| Block { language, line, text: text.into(), until: None };
    let sql = block(Language::Sql, 3, "SELECT 1;\n");
    let shell = block(Language::Shell, 10, "a\nb\n");
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
fn placeholders_are_replaced_and_must_exist() {
    let page = |mark: &str| format!("{mark}\n```sql\nSELECT 'ID', '…';\n```\n");
    let blocks = runnable(&page("<!-- tested with: 'ID' -> 'x'; … -> 1 -->")).expect("replaced");
    assert_eq!(blocks[0].text, "SELECT 'x', '1';\n");
    assert!(runnable(&page("<!-- tested with: GONE -> x -->")).is_err());
}

#[test]
fn a_program_that_is_stopped_says_when() {
    let page = "<!-- tested until: SELECT true -->\n```python\nrun()\n```\n";
    let blocks = runnable(page).expect("a mark");
    assert_eq!(blocks[0].until.as_deref(), Some("SELECT true"));
    assert_eq!((blocks[0].language, blocks[0].text.as_str()), (Language::Python, "run()\n"));
}
