//! The findings of `walrelay check`.

use serde::Serialize;
use walrelay_outbox_admin::{CheckResult, Finding};

use crate::error::explain;
use crate::options::choices::Verbosity;
use crate::output::colour::{ColourMode, Tone};
use crate::output::text::visible;

/// Adds the fix of its code to each problem without a fix of its own.
pub(super) fn add_fixes(findings: &mut [Finding]) {
    for finding in findings {
        if let (true, Some(code)) = (finding.fix.is_empty(), finding.code()) {
            explain::fix(code).clone_into(&mut finding.fix);
        }
    }
}

/// Returns the severity, the name of a passed check, and the code of a failed one.
fn result_of(finding: &Finding) -> (&'static str, Option<&'static str>, Option<&'static str>) {
    match finding.result {
        CheckResult::Passed(check) => ("ok", Some(check), None),
        CheckResult::Warning(code) => ("warning", None, Some(code.name())),
        CheckResult::Error(code) => ("error", None, Some(code.name())),
    }
}

/// The output of `check -o json`.
#[derive(Debug, Serialize)]
pub(super) struct CheckReport<'a> {
    findings: Vec<FindingReport<'a>>,
}

#[derive(Debug, Serialize)]
struct FindingReport<'a> {
    severity: &'static str,
    check: Option<&'static str>,
    code: Option<&'static str>,
    subject: &'a str,
    message: &'a str,
    fix: &'a str,
}

impl<'a> CheckReport<'a> {
    #[must_use]
    pub(super) fn of(findings: &'a [Finding]) -> Self {
        Self { findings: findings.iter().map(FindingReport::of).collect() }
    }
}

impl<'a> FindingReport<'a> {
    fn of(finding: &'a Finding) -> Self {
        let (severity, check, code) = result_of(finding);
        let Finding { subject, message, fix, .. } = finding;
        Self { severity, check, code, subject, message, fix }
    }
}

/// Lists errors first, then warnings, then successful checks.
#[must_use]
pub(super) fn check_text(findings: &[Finding], verbosity: Verbosity, paint: ColourMode) -> String {
    let mut text = String::new();
    let mut counts = Vec::new();
    let groups = [
        ("error", "✗", "error", "errors", Tone::Bad),
        ("warning", "!", "warning", "warnings", Tone::Attention),
        ("ok", "✓", "passed", "passed", Tone::Good),
    ];
    for (severity, mark, one, several, tone) in groups {
        let group: Vec<_> = findings.iter().filter(|it| result_of(it).0 == severity).collect();
        counts.push(match group.len() {
            1 => format!("1 {one}"),
            count => format!("{count} {several}"),
        });
        let is_listed = tone != Tone::Good || verbosity == Verbosity::Verbose;
        for finding @ Finding { subject, message, fix, .. } in
            group.into_iter().filter(|_| is_listed)
        {
            let code = result_of(finding).2.map_or_else(String::new, |code| format!("[{code}] "));
            let mark = paint.text(tone, mark);
            text.push_str(&format!("{mark} {code}{}: {}\n", visible(subject), visible(message)));
            if !fix.is_empty() {
                text.push_str(&format!("  fix: {fix}\n"));
            }
        }
    }
    let hint = if verbosity == Verbosity::Verbose { "" } else { " (-v lists them)" };
    format!("{text}{}{hint}\n", counts.join(", "))
}

#[cfg(test)]
mod tests {
    use walrelay_errors::Code;
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        let finding = Finding::warning(Code::DeadRows, "slot walrelay", "2 dead rows").fix("list");
        assert_documented("check", &CheckReport::of(&[finding]));
    }

    #[test]
    fn a_problem_without_a_fix_of_its_own_has_the_fix_of_its_code() {
        let mut findings = [
            Finding::error(Code::SlotMissing, "slot walrelay", "does not exist"),
            Finding::warning(Code::DeadRows, "slot walrelay", "2 dead rows").fix("list"),
            Finding::passed("slot", "slot walrelay", "is usable"),
        ];
        add_fixes(&mut findings);
        assert!(findings[0].fix.contains("walrelay init"), "{}", findings[0].fix);
        assert_eq!((findings[1].fix.as_str(), findings[2].fix.as_str()), ("list", ""));
    }

    #[test]
    fn what_a_producer_wrote_cannot_break_a_line_of_a_finding() {
        let hostile = Finding::error(Code::ConnectionBroken, "a\nfine", "b\x1b[2J");
        let text = check_text(&[hostile], Verbosity::Normal, ColourMode::Plain);
        assert!(text.contains("✗ [connection-broken] a\\nfine: b\\u{1b}[2J\n"), "{text}");
    }

    #[test]
    fn what_must_be_mended_stands_first_and_the_counts_last() {
        let findings = [
            Finding::passed("slot", "a", "is so"),
            Finding::warning(Code::SlotAtRisk, "b", "is so").fix("do this"),
            Finding::error(Code::SlotLost, "c", "is so").fix("do this"),
            Finding::passed("slot", "d", "is so"),
        ];
        let text = check_text(&findings, Verbosity::Verbose, ColourMode::Plain);
        let order: Vec<_> = text.lines().filter(|line| line.contains(": is so")).collect();
        assert_eq!(
            order,
            ["✗ [slot-lost] c: is so", "! [slot-at-risk] b: is so", "✓ a: is so", "✓ d: is so"]
        );
        assert_eq!(text.lines().last(), Some("1 error, 1 warning, 2 passed"));
        let short = check_text(&findings, Verbosity::Normal, ColourMode::Plain);
        assert!(!short.contains("✓"), "{short}");
        assert_eq!(short.lines().last(), Some("1 error, 1 warning, 2 passed (-v lists them)"));
    }
}
