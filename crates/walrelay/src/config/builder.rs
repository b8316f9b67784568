//! What every part of the configuration is read from, and where problems are collected.

use super::layers::Environment;
use super::problem::Problems;

/// Turns options into parts of the configuration; each file beside this one adds its parts.
pub(super) struct Builder<'a> {
    /// The options, and what is wrong with them.
    pub(super) problems: Problems<'a>,
    /// Variables that are no options, such as those of libpq and Cloud Run.
    pub(super) environment: &'a Environment,
}
