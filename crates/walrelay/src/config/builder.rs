//! The input of every part of the configuration, and the collected problems.

use super::layers::Environment;
use super::problem::Problems;

/// Turns options into parts of the configuration. Each file in this folder adds its own parts.
pub(super) struct ConfigBuilder<'a> {
    /// The options, and the problems found so far.
    pub(super) problems: Problems<'a>,
    /// Variables that are not options, such as those of libpq and Cloud Run.
    pub(super) environment: &'a Environment,
}
