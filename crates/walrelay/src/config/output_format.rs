//! For people or for programs.

/// The form of what a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}
