//! Help headings that several groups of options share.

/// Heading of the options that belong to one command, such as `--output`.
pub(crate) const OWN_OPTIONS: &str = "Options";
