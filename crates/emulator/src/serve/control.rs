//! The HTTP control port for tests and debugging: faults and published messages.

use std::future::Future;
use std::time::UNIX_EPOCH;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::emulator::Emulator;
use crate::faults::active_faults::{FaultId, FaultReport};
use crate::faults::fault::Fault;
use crate::store::message::StoredMessage;

impl Emulator {
    /// Serves the HTTP control port until `shutdown` completes.
    pub async fn serve_control(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let router = Router::new()
            .route("/faults", get(list_faults).post(set_fault).delete(clear_faults))
            .route("/faults/{id}", delete(clear_fault))
            .route("/release", post(release))
            .route("/published", get(published))
            .route("/stats", get(stats))
            .with_state(self.clone());
        axum::serve(listener, router).with_graceful_shutdown(shutdown).await
    }
}

async fn list_faults(State(emulator): State<Emulator>) -> Response {
    let line = |report: FaultReport| json!({ "id": report.id.0, "fault": report.fault.to_string(), "hits": report.hits });
    json_of(&emulator.faults().into_iter().map(line).collect::<Vec<_>>())
}

/// Activates the fault that the body contains as text. Answers with its id.
async fn set_fault(State(emulator): State<Emulator>, text: String) -> Response {
    match text.parse::<Fault>() {
        Ok(fault) => json_of(&json!({ "id": emulator.set_fault(fault).0 })),
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
}

async fn clear_fault(State(emulator): State<Emulator>, Path(id): Path<u64>) -> Response {
    match emulator.clear_fault(FaultId(id)) {
        true => StatusCode::NO_CONTENT.into_response(),
        false => (StatusCode::NOT_FOUND, format!("there is no fault {id}\n")).into_response(),
    }
}

async fn clear_faults(State(emulator): State<Emulator>) -> StatusCode {
    emulator.clear_faults();
    StatusCode::NO_CONTENT
}

async fn release(State(emulator): State<Emulator>) -> StatusCode {
    emulator.release();
    StatusCode::NO_CONTENT
}

async fn stats(State(emulator): State<Emulator>) -> Response {
    json_of(&emulator.stats())
}

/// The part of a topic's log to list.
#[derive(Deserialize)]
struct Published {
    topic: String,
    /// Only ids above this one, to continue a listing.
    #[serde(default)]
    after: u64,
    limit: Option<usize>,
}

/// The maximum number of messages in one answer.
const PUBLISHED_MAX: usize = 10_000;

async fn published(State(emulator): State<Emulator>, Query(query): Query<Published>) -> Response {
    let limit = query.limit.unwrap_or(PUBLISHED_MAX).min(PUBLISHED_MAX);
    let messages = emulator.published(&query.topic);
    let from = messages.partition_point(|message| message.id() <= query.after);
    json_of(&messages[from..].iter().take(limit).map(message_json).collect::<Vec<_>>())
}

fn message_json(message: &StoredMessage) -> Value {
    let attributes: serde_json::Map<String, Value> =
        message.attributes().iter().map(|(k, v)| ((*k).to_owned(), (*v).into())).collect();
    let since = message.publish_time().duration_since(UNIX_EPOCH).unwrap_or_default();
    let data = message.data();
    let mut value = json!({
        "id": message.id().to_string(),
        "ordering_key": message.key(),
        "attributes": attributes,
        "publish_time_unix_seconds": since.as_secs_f64(),
        "data_hex": hex(&data),
    });
    // Added for readability if the data are text.
    if let Ok(text) = std::str::from_utf8(&data) {
        value["data"] = text.into();
    }
    value
}

fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble & 0xF)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

fn json_of(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text + "\n").into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
