//! Asking whoever sits at the terminal.

use std::io::{self, IsTerminal as _, Write as _};

use crate::config::Consent;
use crate::error::Error;

/// Whether to go on; `alone` decides where nobody can be asked.
///
/// # Errors
///
/// Nobody agreed, or the terminal cannot be used.
pub(super) fn agreed(
    question: &str,
    consent: Consent,
    alone: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    if consent == Consent::Given {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return alone();
    }
    let failed = |source| Error::Io { action: "ask".into(), source };
    let mut errors = io::stderr().lock();
    write!(errors, "{question} [y/N] ").and_then(|()| errors.flush()).map_err(failed)?;
    drop(errors);
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(failed)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(Error::Unfit { what: "nothing was done".into(), hint: "answer y to go on" })
}
