//! `walrelay emit`: writes one event with the producer's SQL function.

use std::io::{self, Read as _, read_to_string, stdin};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde::Serialize;
use tokio::task::spawn_blocking;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use walrelay_errors::Code;
use walrelay_outbox_replay::AdminError;
use walrelay_pg_client::{
    ConnectConfig, Parameter, SCHEMA, SqlClient, connect_shared, quote_identifier, sql,
};

use crate::commands::shared::cancellable::run_until_shutdown;
use crate::config::{Checks, OutputFormat};
use crate::error::Error;
use crate::error::printed_commands::as_given;
use crate::options::values::json;
use crate::options::{ARGUMENTS, ConnectionOptions, OutputOptions};
use crate::output::print;
use crate::plan::Plan;

/// Write one event to the outbox with the function app_outbox_emit.
///
/// Prints the version of the event within its aggregate and the event id. The id needs SELECT on the outbox table.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay emit order A-1 OrderPlaced '{\"total\": 42}'"
)]
pub(crate) struct Emit {
    /// Aggregate type, as in `order`.
    #[arg(value_name = "TYPE", value_parser = NonEmptyStringValueParser::new())]
    aggregate_type: String,
    /// Aggregate id, which is the ordering key, as in `A-1`.
    #[arg(value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    aggregate_id: String,
    /// Event type, as in `OrderPlaced`.
    #[arg(value_name = "EVENT_TYPE")]
    event_type: String,
    /// Payload as JSON, or `-` for that of standard input.
    #[arg(value_name = "JSON", value_parser = json_or_dash)]
    payload: String,
    /// Write the event only if no event has this key. If one has, print that event.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    connection: ConnectionOptions,
}

impl Emit {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let connect = checks.connect(&self.connection)?;
        Some(Plan::new(async move |shutdown| {
            run_until_shutdown(self.run(&connect), shutdown).await
        }))
    }

    /// Writes the event, and prints its version and its id.
    ///
    /// # Errors
    ///
    /// `walrelay init` has not created the function.
    async fn run(mut self, connect: &ConnectConfig) -> Result<(), Error> {
        if self.payload == STANDARD_INPUT {
            // A read blocks, and must not keep a signal from ending the command.
            let read = spawn_blocking(|| read_to_string(stdin().take(INPUT_BYTES_MAX)));
            let read = read.await.unwrap_or_else(|error| Err(io::Error::other(error)));
            let text =
                read.map_err(|source| Error::Io { action: "read standard input".into(), source })?;
            self.payload = json(&text).map_err(|allowed| {
                Error::unfit(format!("standard input is not {allowed}"), "give the payload as JSON")
            })?;
        }
        let client = connect_shared(connect).await?;
        let done = match &self.idempotency_key {
            Some(key) => emit_once(&client, &self, key).await,
            None => emit(&client, &self).await,
        };
        client.close().await;
        print(&done.map_err(|error| not_emitted(error, &self, connect.user()))?)
    }
}

/// More than any payload that Pub/Sub or jsonb takes.
const INPUT_BYTES_MAX: u64 = 300 << 20;

const STANDARD_INPUT: &str = "-";

fn json_or_dash(text: &str) -> Result<String, String> {
    if text == STANDARD_INPUT { Ok(text.to_owned()) } else { json(text) }
}

#[derive(Debug, Serialize)]
struct EmittedEvent {
    /// None if the role may not read the outbox.
    event_id: Option<String>,
    version: i64,
}

async fn emit(client: &SqlClient, event: &Emit) -> Result<String, tokio_postgres::Error> {
    let payload = payload_sql(client).await?;
    // spliced: the cast of the payload.
    let sql = format!("SELECT {SCHEMA}.app_outbox_emit($1, $2, $3, {payload})");
    let row = client.query_typed_one(&sql, &arguments(event)).await?;
    let version: i64 = row.get(0);
    let id = event_id(client, event, version).await?;
    Ok(match event.output.output {
        OutputFormat::Json => {
            format!("{}\n", serde_json::json!(EmittedEvent { event_id: id, version }))
        }
        OutputFormat::Text => match id {
            Some(id) => {
                let next = as_given(&format!("next: `walrelay trace {id}`\n"));
                format!("version {version}, event id {id}\n{next}")
            }
            None => {
                format!("version {version}, event id unknown: this role may not read app_outbox\n")
            }
        },
    })
}

async fn emit_once(
    client: &SqlClient,
    event: &Emit,
    key: &str,
) -> Result<String, tokio_postgres::Error> {
    let payload = payload_sql(client).await?;
    // spliced: the cast of the payload.
    let sql = format!(
        "SELECT event_id::text, version, is_new FROM {SCHEMA}.app_outbox_emit_once($1, $2, $3, {payload}, $5)"
    );
    let mut arguments = arguments(event).to_vec();
    arguments.push((&key, Type::TEXT));
    let row = client.query_typed_one(&sql, &arguments).await?;
    let (id, version, is_new): (String, i64, bool) = (row.get(0), row.get(1), row.get(2));
    Ok(match event.output.output {
        OutputFormat::Json => {
            format!(
                "{}\n",
                serde_json::json!({ "event_id": id, "version": version, "is_new": is_new })
            )
        }
        OutputFormat::Text if is_new => format!("version {version}, event id {id}\n"),
        OutputFormat::Text => {
            format!("version {version}, event id {id}, written earlier with this key\n")
        }
    })
}

/// The SQLSTATE class of values that the database does not accept.
const DATA_EXCEPTION: &str = "22";

/// Returns the error of the producer's function. Its own refusals are errors of the command line.
fn not_emitted(error: tokio_postgres::Error, event: &Emit, role: &str) -> Error {
    let code = error.as_db_error().and_then(|answer| match *answer.code() {
        // A constraint of the table has a name, and the function's refusal has none.
        SqlState::UNIQUE_VIOLATION if answer.constraint().is_none() => {
            Some(Code::IdempotencyKeyTaken)
        }
        SqlState::PROGRAM_LIMIT_EXCEEDED | SqlState::STATEMENT_TOO_COMPLEX => {
            Some(Code::EventRefused)
        }
        _ if answer.code().code().starts_with(DATA_EXCEPTION) => Some(Code::EventRefused),
        _ => None,
    });
    // An error inside the function has a context.
    let of_the_call = error.as_db_error().filter(|answer| answer.where_().is_none());
    if let Some(answer) = of_the_call
        && *answer.code() == SqlState::INSUFFICIENT_PRIVILEGE
    {
        let function = match event.idempotency_key {
            Some(_) => "app_outbox_emit_once",
            None => "app_outbox_emit",
        };
        let role = quote_identifier(role);
        return Error::Refused {
            code: Code::PermissionMissing,
            what: answer.message().to_owned(),
            fix: Some(format!(
                "as the owner of the function: GRANT EXECUTE ON FUNCTION {SCHEMA}.{function} TO {role}"
            )),
        };
    }
    if of_the_call.is_some_and(|answer| *answer.code() == SqlState::UNDEFINED_FUNCTION) {
        return Error::Refused {
            code: Code::OutboxTableMissing,
            what: format!("the database has no function {SCHEMA}.app_outbox_emit, which `walrelay init` creates"),
            fix: Some(
                "run `walrelay init`; it creates the function if the outbox has the columns that `walrelay init` would give it"
                    .to_owned(),
            ),
        };
    }
    match (code, error.as_db_error()) {
        (Some(code), Some(answer)) => Error::refused(code, answer.message().to_owned()),
        _ => AdminError::sql("emit an event")(error).into(),
    }
}

fn arguments(event: &Emit) -> [Parameter<'_>; 4] {
    [
        (&event.aggregate_type, Type::TEXT),
        (&event.aggregate_id, Type::TEXT),
        (&event.event_type, Type::TEXT),
        (&event.payload, Type::TEXT),
    ]
}

/// Returns SQL that turns the fourth argument, which is text, into a payload. Without the function,
/// the statement that calls it reports the error.
async fn payload_sql(client: &SqlClient) -> Result<&'static str, tokio_postgres::Error> {
    let found = client.query_typed_opt(sql!("emit.sql", "payload_type"), &[]).await?;
    let payload_type = found.map(|row| row.get::<_, String>("payload_type"));
    Ok(match payload_type.as_deref() {
        Some("json") => "$4::text::json",
        Some("text") => "$4",
        Some("bytea") => "convert_to($4, 'UTF8')",
        Some(_) | None => "$4::text::jsonb",
    })
}

/// Returns the id of the event. A producer's role may emit events without the permission to read
/// them.
async fn event_id(
    client: &SqlClient,
    event: &Emit,
    version: i64,
) -> Result<Option<String>, tokio_postgres::Error> {
    let found = client
        .query_typed_opt(
            sql!("emit.sql", "event_id"),
            &[
                (&event.aggregate_type, Type::TEXT),
                (&event.aggregate_id, Type::TEXT),
                (&version, Type::INT8),
            ],
        )
        .await;
    match found {
        Ok(row) => Ok(row.map(|row| row.get(0))),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        let event = EmittedEvent { event_id: Some("e-1".to_owned()), version: 3 };
        assert_documented("emit", &event);
    }
}
