//! `walrelay explain`: prints the entry of an error code from the errors page.

use std::borrow::Cow;

use clap::Args;
use serde::Serialize;
use walrelay_errors::Code;

use crate::config::{Checks, OutputFormat};
use crate::error::Error;
use crate::error::explain::{cause, fix, section};
use crate::options::{ARGUMENTS, OutputOptions};
use crate::output::print_result;
use crate::plan::Plan;

/// Explain an error code: cause, exit code and fix.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay explain slot-lost\n  walrelay explain"
)]
pub(crate) struct Explain {
    /// The code, as an error shows it in `error[CODE]`, or an exit code. Without a code, all codes are listed.
    #[arg(value_name = "CODE")]
    code: Option<String>,
    #[command(flatten)]
    output: OutputOptions,
}

impl Explain {
    pub(crate) fn plan(self, _: &mut Checks<'_>) -> Option<Plan> {
        let format = self.output.output;
        Some(Plan::new(async move |_| match &self.code {
            Some(code) => explain(code, format),
            None => list(|_| true, format),
        }))
    }
}

fn explain(code: &str, format: OutputFormat) -> Result<(), Error> {
    let wanted = code.trim().trim_start_matches("error[").trim_end_matches(']');
    let wanted = wanted.to_ascii_lowercase();
    if let Ok(exit_code) = wanted.parse::<u8>() {
        return list(|it| it.exit().code() == exit_code, format);
    }
    if let Some(row) = row_reason(&wanted) {
        return print_result(format, &row, || row.text.to_string());
    }
    let Some(known) = Code::ALL.iter().find(|known| known.name() == wanted) else {
        let what = format!("no error has the code {code:?}{}", similar(&wanted));
        return Err(Error::refused(Code::ErrorCodeUnknown, what));
    };
    let explained = ExplainedCode::of(*known);
    print_result(format, &explained, || format!("{}\n", explained.text))
}

/// The page with the reasons why a row is dead, in a table.
const DEAD_ROWS: &str = include_str!("../../../../docs/how-to/operate/dead-rows.md");

/// Finds the reason why a row in dispatch state was not published, by its name in lower case.
fn row_reason(wanted: &str) -> Option<ExplainedCode> {
    let plain = |text: &str| {
        let without_targets =
            text.split("](").map(|part| part.split_once(')').map_or(part, |(_, it)| it));
        without_targets.collect::<String>().replace(['[', '`'], "")
    };
    DEAD_ROWS.lines().find_map(|line| {
        let mut cells = line.trim_matches(['|', ' ']).split(" | ");
        let code = cells.next()?.trim_matches('`');
        let (cause, fix) = (plain(cells.next()?), plain(cells.next()?));
        let text = format!("{code}\n\nA row was not published: {cause}.\n\nFix: {fix}.\n");
        (code.to_lowercase() == wanted).then(|| ExplainedCode {
            code,
            exit_code: None,
            cause: cause.into(),
            fix: fix.into(),
            text: text.into(),
        })
    })
}

#[derive(Debug, Serialize)]
struct ExplainedCode {
    code: &'static str,
    /// None for the reason of a row, with which no command ends.
    exit_code: Option<u8>,
    cause: Cow<'static, str>,
    fix: Cow<'static, str>,
    text: Cow<'static, str>,
}

impl ExplainedCode {
    fn of(code: Code) -> Self {
        let text = section(code.name()).unwrap_or_default();
        let (code_name, exit_code) = (code.name(), Some(code.exit().code()));
        let (cause, fix) = (cause(code).into(), fix(code).into());
        Self { code: code_name, exit_code, cause, fix, text: text.into() }
    }
}

/// Prints one line for each of these codes, with its cause.
fn list(is_meant: impl Fn(Code) -> bool, format: OutputFormat) -> Result<(), Error> {
    let codes = Code::ALL.iter().copied().filter(|code| is_meant(*code));
    let mut codes: Vec<_> = codes.map(ExplainedCode::of).collect();
    if codes.is_empty() {
        let what = "no error ends with this exit code; `walrelay help` lists the exit codes";
        return Err(Error::refused(Code::ErrorCodeUnknown, what.to_owned()));
    }
    codes.sort_unstable_by_key(|explained| explained.code);
    let line = |it: &ExplainedCode| format!("{:<36} {}\n", it.code, it.cause);
    print_result(format, &codes, || codes.iter().map(line).collect())
}

/// Returns the codes that contain words of the wanted code or begin as it does, the one with the most
/// words first.
fn similar(wanted: &str) -> String {
    let words: Vec<&str> = wanted.split(['-', '_', ' ']).filter(|word| word.len() > 3).collect();
    let common = |code: &str| {
        let begins = |word: &&&str| code.split('-').any(|part| part.starts_with(**word));
        words.iter().filter(begins).count()
    };
    let letters = |text: &str| text.replace(['-', '_', ' '], "");
    let start = letters(wanted);
    let same_start =
        |code: &str| letters(code).chars().zip(start.chars()).take_while(|(a, b)| a == b).count();
    let all = Code::ALL.iter().map(|code| code.name());
    let is_similar = |code: &&str| common(code) > 0 || same_start(code) > SAME_START_MIN;
    let mut codes: Vec<&str> = all.filter(is_similar).collect();
    codes.sort_by_key(|code| std::cmp::Reverse((common(code), same_start(code))));
    codes.truncate(5);
    match codes.is_empty() {
        true => String::new(),
        false => format!("; similar: {}", codes.join(", ")),
    }
}

/// Fewer equal first letters are an accident.
const SAME_START_MIN: usize = 3;

#[cfg(test)]
mod tests {
    use walrelay_core::FailureCode as F;
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn a_code_is_found_in_any_case_and_after_a_typing_error_it_is_suggested_first() {
        explain("SLOT-LOST", OutputFormat::Text).expect("the case is ignored");
        for wrong in ["slot-los", "Slot-Lots", "slotlost"] {
            let refused = explain(wrong, OutputFormat::Text).expect_err("no such code");
            assert!(refused.report().contains("similar: slot-lost"), "{}", refused.report());
        }
    }

    #[test]
    fn the_reason_of_a_dead_row_is_explained_as_the_page_does() {
        let reason = row_reason("local_limit").expect("a row of the table");
        let cause = "the key, an attribute or the message exceeds a limit";
        assert_eq!((reason.code, &*reason.cause, &*reason.fix), ("LOCAL_LIMIT", cause, "edit"));
        for code in [F::BadHeaders, F::LocalLimit, F::TooLarge, F::Unroutable, F::Unreadable] {
            assert!(row_reason(&code.as_str().to_lowercase()).is_some(), "{code}");
        }
    }

    #[test]
    fn an_exit_code_is_explained_by_the_codes_that_end_with_it() {
        explain("5", OutputFormat::Text).expect("slot-lost");
        for none in ["0", "99"] {
            let refused = explain(none, OutputFormat::Text).expect_err("no error ends so").report();
            assert!(refused.contains("walrelay help"), "{refused}");
        }
    }

    #[test]
    fn an_unknown_code_is_refused_with_similar_ones() {
        let refused = explain("slot-is-lost", OutputFormat::Text);
        let refused = refused.expect_err("no such code").report();
        assert!(refused.contains("slot-lost") && refused.contains("walrelay explain"), "{refused}");
        assert!(section("Errors").is_none());
    }

    #[test]
    fn the_json_is_documented() {
        assert_documented("explain", &ExplainedCode::of(Code::SlotLost));
    }
}
