//! Findings: the result of each check, and its fix.

use walrelay_errors::Code;

/// The fix of a finding whose code has the fix. Only the shell names commands and options.
pub(super) const FIX_OF_CODE: &str = "";

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub result: CheckResult,
    /// Subject of the finding, such as `slot "walrelay"`.
    pub subject: String,
    pub message: String,
    /// The fix of this case. Empty if the fix of the code is enough, or none is needed.
    pub fix: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckResult {
    /// No problem. Contains the name of the check.
    Passed(&'static str),
    /// The relay runs, but somebody should act.
    Warning(Code),
    /// The relay cannot run.
    Error(Code),
}

impl Finding {
    pub fn passed(
        check: &'static str,
        subject: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self::new(CheckResult::Passed(check), subject, message)
    }

    pub fn warning(code: Code, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(CheckResult::Warning(code), subject, message)
    }

    pub fn error(code: Code, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(CheckResult::Error(code), subject, message)
    }

    #[must_use]
    pub fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: fix.into(), ..self }
    }

    #[must_use]
    pub const fn code(&self) -> Option<Code> {
        match self.result {
            CheckResult::Warning(code) | CheckResult::Error(code) => Some(code),
            CheckResult::Passed(_) => None,
        }
    }

    /// Returns the code of a problem that stops the relay.
    #[must_use]
    pub const fn error_code(&self) -> Option<Code> {
        match self.result {
            CheckResult::Error(code) => Some(code),
            CheckResult::Warning(_) | CheckResult::Passed(_) => None,
        }
    }

    fn new(result: CheckResult, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self { result, subject: subject.into(), message: message.into(), fix: String::new() }
    }
}

#[derive(Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn ok(&mut self, check: &'static str, subject: &str, message: impl Into<String>) {
        self.0.push(Finding::passed(check, subject, message));
    }

    pub(super) fn warning(
        &mut self,
        code: Code,
        subject: &str,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.0.push(Finding::warning(code, subject, message).fix(fix));
    }

    pub(super) fn error(
        &mut self,
        code: Code,
        subject: &str,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.0.push(Finding::error(code, subject, message).fix(fix));
    }

    pub(super) fn into_list(self) -> Vec<Finding> {
        self.0
    }

    /// Returns whether no finding since `start` is an error.
    pub(super) fn is_fine_since(&self, start: usize) -> bool {
        self.0[start..].iter().all(|finding| finding.error_code().is_none())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
