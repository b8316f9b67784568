//! How a process logs.

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For a person.
    Text,
    /// One JSON object a line: `severity`, `message`, `time`, `target`, and every field.
    Json,
}

/// How to log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// The form of a line; `None` decides by whether standard error is a terminal.
    pub format: Option<LogFormat>,
    /// A filter in the syntax of `RUST_LOG`.
    pub filter: String,
}
