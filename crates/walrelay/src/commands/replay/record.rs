//! The hint about an unfinished replay, for the commands that it blocks.

/// Returns the hint for an unfinished replay that blocks another command.
pub(in crate::commands) fn unfinished_hint(id: &str) -> String {
    format!(
        "let it finish (`walrelay replay resume {id}`), or give it up: `walrelay replay cancel {id}`"
    )
}
