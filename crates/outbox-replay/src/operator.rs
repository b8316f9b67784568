//! The operator's side of a protocol: it receives steps, and answers questions.
//!
//! Each protocol has types of its own for steps and changes. The program that runs protocols for a
//! person implements the traits for each of them, and only this program prints and asks.

use walrelay_errors::BoxedError;

/// Receives the steps of a protocol.
pub trait StepSink<Step> {
    fn report(&self, step: &Step) -> Result<(), BoxedError>;
}

/// Agrees to the changes of a protocol, or refuses.
pub trait Consent<Change> {
    /// Returns whether the operator has agreed to every change in advance. The change is then not
    /// counted.
    fn has_agreed(&self) -> bool;

    /// Returns whether the operator only wants to know what would happen.
    fn is_dry_run(&self) -> bool;

    /// Asks whether the change may be made. Returns false after a dry run.
    ///
    /// # Errors
    ///
    /// The operator did not agree, or cannot be asked.
    fn may_change(&self, change: &Change) -> impl Future<Output = Result<bool, BoxedError>>;
}
