//! The logging configuration.

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line: `severity`, `message`, `time`, `target`, and every field.
    Json,
}

/// The logging configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// The format of a line. `None` means text on a terminal, and JSON otherwise.
    pub format: Option<LogFormat>,
    /// A filter in the syntax of `RUST_LOG`.
    pub filter: String,
}
