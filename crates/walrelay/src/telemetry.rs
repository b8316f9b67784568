//! Logs: text or JSON lines in Cloud Logging's field names.
//!
//! Unless a format is set, services write text at a terminal and JSON elsewhere. One-shot commands
//! write JSON with `-o json` and text otherwise.
//!
//! Logs go to standard error, so that standard output carries only the results of a command.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal, Write as _};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;

use crate::config::{LogConfig, LogFormat, LogLines};
use crate::error::Error;
use crate::error::explain::DOCUMENTATION;
use crate::error::printed_commands::as_given;
use crate::output::live::AboveLines;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::{LookupSpan, Scope};
use tracing_subscriber::util::SubscriberInitExt;
use walrelay_errors::{Chain, Coded, Exit};

/// The format of this process, once [`start`] was called.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Installs the subscriber of this process. A second call changes nothing.
pub(crate) fn start(config: &LogConfig) {
    let filter = targets(&config.filter);
    let terminal = io::stderr().is_terminal();
    let format = config.format.unwrap_or(match terminal {
        true => LogFormat::Text,
        false => LogFormat::Json,
    });
    FORMAT.get_or_init(|| format);
    let layer = tracing_subscriber::fmt::layer().with_writer(|| AboveLines);
    let registry = tracing_subscriber::registry().with(filter);
    let installed = match (format, config.lines) {
        (LogFormat::Text, LogLines::Timed) if terminal => {
            let layer = layer.with_ansi(terminal).with_timer(ClockTime).with_target(false);
            registry.with(layer).try_init()
        }
        (LogFormat::Text, LogLines::Timed | LogLines::WithOrigins) => {
            registry.with(layer.with_ansi(terminal)).try_init()
        }
        (LogFormat::Text, LogLines::Plain) => {
            let layer = layer.with_ansi(terminal).without_time().with_target(false);
            registry.with(layer).try_init()
        }
        (LogFormat::Json, _) => {
            registry.with(layer.fmt_fields(JsonFields).event_format(CloudLogging)).try_init()
        }
    };
    if installed.is_err() {
        tracing::debug!("a subscriber is installed already");
    }
}

/// The time of day in UTC, for a person who watches.
struct ClockTime;

impl FormatTime for ClockTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seconds = now.unwrap_or_default().as_secs() % 86_400;
        let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
        write!(writer, "{hours:02}:{minutes:02}:{:02}", seconds % 60)
    }
}

/// Returns the filter of a checked `--log-level`. A plain level such as `debug` is limited to our own
/// crates. Otherwise one request would log ten HTTP/2 frames.
fn targets(filter: &str) -> Targets {
    let level = filter.trim();
    let is_noisy = ["debug", "trace"].iter().any(|noisy| noisy.eq_ignore_ascii_case(level));
    let directives: Cow<'_, str> = match level {
        "" => "error".into(),
        _ if is_noisy => format!("info,walrelay={level},pgoutput_parser={level}").into(),
        _ => level.into(),
    };
    directives.parse().unwrap_or_default()
}

/// Reports the error that ends the process: as plain text, or as a line of the JSON log.
pub(crate) fn report_error(error: &Error) {
    if FORMAT.get() != Some(&LogFormat::Json) {
        let code = error.code().name();
        let report = as_given(&error.report());
        let page = format!("{DOCUMENTATION}/reference/errors.md#{code}");
        return write_plainly(&format!("error[{code}]: {report}\nsee: {page}"));
    }
    let (exit, error_code) = (error.exit().code(), error.code().name());
    match as_given(&error.next_step()).as_str() {
        "" => tracing::error!(exit, error_code, "{}", Chain(error)),
        fix => tracing::error!(exit, error_code, fix, "{}", Chain(error)),
    }
}

/// Writes one line about a panic, with its place.
pub(crate) fn report_panic(panic: &PanicHookInfo<'_>) {
    let what = panic.payload_as_str().unwrap_or("panic");
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    if tracing::dispatcher::has_been_set() {
        tracing::error!(exit = Exit::BrokenInvariant.code(), location, "broken invariant: {what}");
    } else {
        write_plainly(&format!("walrelay: broken invariant: {what} at {location}"));
    }
}

fn write_plainly(text: &str) {
    // If standard error is closed, there is nowhere left to report to.
    drop(writeln!(AboveLines, "{text}"));
}

/// One JSON object per line, in the field names of Cloud Logging's structured logs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CloudLogging;

impl<S, N> FormatEvent<S, N> for CloudLogging
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Map::new();
        // Outermost span first, so that for a repeated name the innermost span wins.
        for span in context.event_scope().into_iter().flat_map(Scope::from_root) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>();
            let text = fields.map_or("", |fields| fields.fields.as_str());
            if let Ok(Value::Object(object)) = serde_json::from_str(text) {
                line.extend(object);
            }
            line.insert("span".into(), span.name().into());
        }
        event.record(&mut JsonVisitor(&mut line));

        let metadata = event.metadata();
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        line.insert("time".into(), time.into());
        line.insert("severity".into(), severity(*metadata.level()).into());
        line.insert("target".into(), metadata.target().into());
        if let (Some(file), Some(number)) = (metadata.file(), metadata.line()) {
            // Cloud Logging expects the line number as text, the JSON form of a protobuf int64.
            let location = serde_json::json!({ "file": file, "line": number.to_string() });
            line.insert("logging.googleapis.com/sourceLocation".into(), location);
        }
        writeln!(writer, "{}", Value::Object(line))
    }
}

fn severity(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARNING",
        Level::INFO => "INFO",
        Level::DEBUG | Level::TRACE => "DEBUG",
    }
}

/// Stores a span's fields as one JSON object, until an event inside the span needs them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JsonFields;

impl<'w> FormatFields<'w> for JsonFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut object = Map::new();
        fields.record(&mut JsonVisitor(&mut object));
        write!(writer, "{}", Value::Object(object))
    }

    fn add_fields(
        &self,
        current: &'w mut FormattedFields<Self>,
        fields: &tracing::span::Record<'_>,
    ) -> fmt::Result {
        let mut object: Map<String, Value> =
            serde_json::from_str(&current.fields).unwrap_or_default();
        fields.record(&mut JsonVisitor(&mut object));
        current.fields = Value::Object(object).to_string();
        Ok(())
    }
}

struct JsonVisitor<'a>(&'a mut Map<String, Value>);

impl JsonVisitor<'_> {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for JsonVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, Chain(value).to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Captured {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn a_level_alone_is_not_for_the_libraries() {
        let captured = Captured::default();
        let layer = tracing_subscriber::fmt::layer().with_writer(captured.clone()).with_ansi(false);
        let filter = targets("DEBUG");
        tracing::subscriber::with_default(
            tracing_subscriber::registry().with(filter).with(layer),
            || {
                tracing::debug!(target: "walrelay_relay::observe", "ours");
                tracing::debug!(target: "h2::codec", "a frame");
                tracing::info!(target: "h2::codec", "a connection");
            },
        );
        let text = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains("ours") && text.contains("a connection"), "{text}");
        assert!(!text.contains("a frame"), "{text}");
        assert_eq!(targets("h2=debug,warn").to_string(), "h2=debug,warn");
        assert_eq!(targets("").to_string(), "error");
    }

    fn lines_of(log: impl FnOnce()) -> Vec<Value> {
        let captured = Captured::default();
        let layer = tracing_subscriber::fmt::layer()
            .fmt_fields(JsonFields)
            .event_format(CloudLogging)
            .with_writer(captured.clone());
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, log);
        let bytes = captured.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_line_is_one_json_object_whatever_it_contains() {
        let lines = lines_of(|| {
            tracing::warn!(slot = "a\"b\\c\nd", pid = 7_u64, share = 0.5, "held by\t{}", "\u{1}");
        });
        assert_eq!(lines.len(), 1);
        let line = &lines[0];
        assert_eq!(line["severity"], "WARNING");
        assert_eq!(line["message"], "held by\t\u{1}");
        assert_eq!(line["slot"], "a\"b\\c\nd");
        assert_eq!(line["pid"], 7);
        assert_eq!(line["share"], 0.5);
        let time = line["time"].as_str().unwrap();
        assert!(time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
        let location = &line["logging.googleapis.com/sourceLocation"];
        assert!(location["line"].is_string(), "{location}");
    }

    #[test]
    fn fields_of_the_surrounding_spans_are_part_of_the_line() {
        let lines = lines_of(|| {
            let span =
                tracing::info_span!("session", slot = "walrelay", system = tracing::field::Empty);
            span.record("system", "7381");
            let _entered = span.entered();
            tracing::info!("streaming");
        });
        assert_eq!(lines[0]["slot"], "walrelay");
        assert_eq!(lines[0]["system"], "7381");
        assert_eq!(lines[0]["span"], "session");
    }

    #[test]
    fn an_error_is_logged_with_its_causes() {
        let error =
            crate::error::Error::File { path: "x".into(), source: io::Error::other("gone") };
        let lines = lines_of(|| {
            tracing::error!(error = &error as &dyn std::error::Error, "stopped");
        });
        assert_eq!(lines[0]["error"], "read x: gone");
    }
}
