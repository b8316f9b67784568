//! `walrelay explain`: prints the entry of an error code from the errors page.

use walrelay_errors::Code;

use crate::error::Error;
use crate::explain::{cause, section};
use crate::output::print;

/// Prints the section of the code, or the list of codes.
///
/// # Errors
///
/// No error has the code, or standard output cannot be written.
pub fn execute(code: Option<&str>) -> Result<(), Error> {
    let Some(code) = code else { return print(&list()) };
    let wanted = code.trim().trim_start_matches("error[").trim_end_matches(']');
    match section(wanted) {
        Some(text) => print(&format!("{text}\n")),
        None => Err(Error::Unfit {
            what: format!("no error has the code {code:?}{}", similar(wanted)),
            hint: "`walrelay explain` lists the codes",
        }),
    }
}

/// Returns one line for each code, with its cause.
fn list() -> String {
    let mut codes: Vec<Code> = Code::ALL.to_vec();
    codes.sort_unstable_by_key(|code| code.name());
    codes.into_iter().map(|code| format!("{:<36} {}\n", code.name(), cause(code))).collect()
}

/// Returns the codes that contain words of the wanted code, the one with the most words first.
fn similar(wanted: &str) -> String {
    let words: Vec<&str> = wanted.split(['-', '_', ' ']).filter(|word| word.len() > 3).collect();
    let common = |code: &str| words.iter().filter(|word| code.contains(**word)).count();
    let all = Code::ALL.iter().map(|code| code.name());
    let mut codes: Vec<&str> = all.filter(|code| common(code) > 0).collect();
    codes.sort_by_key(|code| std::cmp::Reverse(common(code)));
    codes.truncate(5);
    match codes.is_empty() {
        true => String::new(),
        false => format!("; similar: {}", codes.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_code_is_refused_with_similar_ones() {
        let refused = execute(Some("slot-is-lost")).expect_err("no such code").report();
        assert!(refused.contains("slot-lost") && refused.contains("walrelay explain"), "{refused}");
        assert!(section("Errors").is_none());
    }
}
