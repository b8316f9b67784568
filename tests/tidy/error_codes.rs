//! Checks that error codes are used, and that messages send nobody to a file of the repository.

use crate::repository::{Files, Finding, rust_files};

const CODES: &str = "crates/errors/src/code.rs";

/// Finds codes that no error has. Their section of the errors page would describe nothing.
pub(crate) fn error_codes_are_used(files: &Files) -> Vec<Finding> {
    let Some(codes) = files.get(CODES) else { return Vec::new() };
    let is_used = |code: &str| {
        let name = format!("Code::{code}");
        let is_whole = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric());
        let names_it = |text: &str| text.split(&name).skip(1).any(is_whole);
        rust_files(files).any(|(path, text)| !path.starts_with("crates/errors/") && names_it(text))
    };
    let declared = codes.lines().enumerate().filter_map(|(number, line)| {
        let (code, rest) = line.trim().split_once(" \"")?;
        let is_declaration = rest.ends_with(';') && code.chars().all(char::is_alphanumeric);
        is_declaration.then_some((number + 1, code))
    });
    declared
        .filter(|(_, code)| !is_used(code))
        .map(|(line, code)| Finding::new(CODES, line, format!("no error has the code {code}")))
        .collect()
}

/// Finds logged errors without a code. An operator looks the code up.
pub(crate) fn logged_errors_have_codes(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in rust_files(files).filter(|(path, _)| is_program(path)) {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (start, _) in code.match_indices("tracing::error!(") {
            let call = &code[start..code[start..].find(';').map_or(code.len(), |end| start + end)];
            if !call.contains("error_code") && !call.contains("broken invariant") {
                let line = code[..start].matches('\n').count() + 1;
                let remedy =
                    "a logged error has no `error_code`: add the code that selects the fix";
                findings.push(Finding::new(path, line, remedy));
            }
        }
    }
    findings
}

/// Finds messages that name a file of the repository. A container image does not contain these
/// files.
pub(crate) fn messages_name_no_files(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in rust_files(files).filter(|(path, _)| is_program(path)) {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            let is_comment = line.trim_start().starts_with("//");
            let names_file = ["docs/", "migrations/README.md"].iter().any(|it| line.contains(it));
            // A page that is part of the binary is no message.
            let is_included = line.contains("include_str!(");
            if names_file && !is_comment && !is_included {
                let remedy = "a message names a file of the repository: say what to do instead";
                findings.push(Finding::new(path, number + 1, remedy));
            }
        }
    }
    findings
}

/// Returns whether the file is part of the product. The demo's own failures have no fix.
fn is_program(path: &str) -> bool {
    let of_tests = ["crates/testkit/", "crates/private-postgres/", "crates/emulator/"];
    path.starts_with("crates/")
        && path.contains("/src/")
        && !path.ends_with("/tests.rs")
        && !path.ends_with("/commands/demo.rs")
        && !of_tests.iter().any(|folder| path.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> Files {
        Files::from([(path.to_owned(), text.to_owned())])
    }

    #[test]
    fn a_code_that_no_error_has_is_found() {
        let declared = "    SlotLost \"slot-lost\": LOST, LOST, LOST;\n";
        let mut files = file(CODES, declared);
        assert_eq!(error_codes_are_used(&files).len(), 1);
        files.insert("crates/relay/src/error.rs".to_owned(), "Code::SlotLostToo".to_owned());
        assert_eq!(error_codes_are_used(&files).len(), 1);
        files.insert("crates/relay/src/error.rs".to_owned(), "Code::SlotLost => 5".to_owned());
        assert_eq!(error_codes_are_used(&files), []);
    }

    #[test]
    fn a_logged_error_without_a_code_is_found() {
        let bare = file("crates/relay/src/a.rs", "fn a() {\n tracing::error!(slot, \"lost\");\n}");
        assert_eq!(logged_errors_have_codes(&bare)[0].line, 2);
        let coded = "tracing::error!(error_code = code.name(), slot, \"lost\");";
        assert_eq!(logged_errors_have_codes(&file("crates/relay/src/a.rs", coded)), []);
    }

    #[test]
    fn a_message_that_names_a_page_is_found_and_a_comment_is_not() {
        let message = file("crates/relay/src/a.rs", "\"see docs/operations.md\"");
        assert_eq!(messages_name_no_files(&message).len(), 1);
        let comment = file("crates/relay/src/a.rs", "// See docs/operations.md.");
        assert_eq!(messages_name_no_files(&comment), []);
        let of_the_shell = file("crates/walrelay/src/a.rs", "\"see docs/operations.md\"");
        assert_eq!(messages_name_no_files(&of_the_shell).len(), 1);
        let page = "const PAGE: &str = include_str!(\"../docs/errors.md\");";
        assert_eq!(messages_name_no_files(&file("crates/walrelay/src/a.rs", page)), []);
    }
}
