//! Whether a command asks for consent first.

/// Whether the user has agreed to the action of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consent {
    /// The user gave `--yes`.
    Given,
    /// The command asks at the terminal.
    Asked,
}
