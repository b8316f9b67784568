//! Whether somebody is asked first.

/// Whether somebody has agreed to what a command is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consent {
    /// By `--yes`.
    Given,
    /// Who sits at the terminal is asked.
    Asked,
}
