//! The trait of errors that have a code.

use crate::code::Code;

/// An error that asks a person to act.
///
/// Each implementation matches every variant of its enum, so a new variant does not compile without
/// a code.
pub trait Coded: std::error::Error + Send + Sync + 'static {
    /// Returns the code, which selects the reaction and the fix.
    fn code(&self) -> Code;

    /// Returns the fix of this case, if it is more precise than the fix of the code. An example is
    /// a `GRANT` statement with the names of role and table.
    fn fix(&self) -> Option<String> {
        None
    }
}
