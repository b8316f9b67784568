//! Administration as JSON over HTTP/1.1, on the same port as gRPC.
//!
//! Some official clients, the Rust one among them, publish and pull over gRPC and administer topics
//! and subscriptions this way. Paths and field names are those of the Pub/Sub REST reference (v1).

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as proto;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use crate::calls::admin;
use crate::emulator::Emulator;
use crate::wire::codes::name_of;

/// Connections that turned out not to speak HTTP/2.
pub(crate) struct Connections {
    pub(crate) accepted: mpsc::Receiver<(TcpStream, SocketAddr)>,
    pub(crate) address: io::Result<SocketAddr>,
}

impl axum::serve::Listener for Connections {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        match self.accepted.recv().await {
            Some(accepted) => accepted,
            // No more will come; the server is ended from outside.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.address.as_ref().copied().map_err(|error| error.kind().into())
    }
}

pub(crate) async fn serve(
    emulator: Emulator,
    connections: Connections,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let router = Router::new().fallback(answer).with_state(emulator);
    let served = axum::serve(connections, router).with_graceful_shutdown(shutdown).await;
    if let Err(error) = served {
        tracing::warn!(%error, "JSON port failed");
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Paging {
    #[serde(default)]
    page_size: i32,
    #[serde(default)]
    page_token: String,
}

async fn answer(
    State(emulator): State<Emulator>,
    Query(paging): Query<Paging>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> Response {
    match call(&emulator, paging, &method, uri.path(), &body) {
        Ok(value) => json_response(StatusCode::OK, &value),
        Err(status) => {
            let http = http_status(status.code());
            let error = json!({ "error": {
                "code": http.as_u16(),
                "message": status.message(),
                "status": name_of(status.code()),
            }});
            json_response(http, &error)
        }
    }
}

fn call(
    emulator: &Emulator,
    paging: Paging,
    method: &Method,
    path: &str,
    body: &[u8],
) -> Result<Value, Status> {
    let name = percent_decoded(path.strip_prefix("/v1/").unwrap_or_default());
    let parts: Vec<&str> = name.split('/').collect();
    let mut broker = emulator.broker();
    match (method.as_str(), parts.as_slice()) {
        ("PUT", ["projects", _, "topics", _]) => {
            let topic = decode::<Topic>(body)?.named(name);
            admin::create_topic(&mut broker, topic).map(|topic| topic_json(&topic))
        }
        ("GET", ["projects", _, "topics", _]) => Ok(topic_json(&broker.topic(&name)?.config)),
        ("DELETE", ["projects", _, "topics", _]) => broker.remove_topic(&name).map(|()| json!({})),
        ("GET", ["projects", project, "topics"]) => {
            let project = format!("projects/{project}");
            let Paging { page_size, page_token } = paging;
            let request = proto::ListTopicsRequest { project, page_size, page_token };
            let page = admin::list_topics(&broker, &request)?;
            let topics: Vec<_> = page.topics.iter().map(topic_json).collect();
            Ok(json!({ "topics": topics, "nextPageToken": page.next_page_token }))
        }
        ("GET", ["projects", _, "topics", _, "subscriptions"]) => {
            let topic = parts[..4].join("/");
            let Paging { page_size, page_token } = paging;
            let request = proto::ListTopicSubscriptionsRequest { topic, page_size, page_token };
            let page = admin::list_topic_subscriptions(&broker, &request)?;
            Ok(json!({
                "subscriptions": page.subscriptions,
                "nextPageToken": page.next_page_token,
            }))
        }
        ("PUT", ["projects", _, "subscriptions", _]) => {
            let subscription = decode::<Subscription>(body)?.named(name);
            admin::create_subscription(&mut broker, subscription)
                .map(|subscription| subscription_json(&subscription))
        }
        ("GET", ["projects", _, "subscriptions", _]) => {
            Ok(subscription_json(&broker.subscription_mut(&name)?.config))
        }
        ("DELETE", ["projects", _, "subscriptions", _]) => {
            broker.remove_subscription(&name).map(|()| json!({}))
        }
        ("GET", ["projects", project, "subscriptions"]) => {
            let project = format!("projects/{project}");
            let Paging { page_size, page_token } = paging;
            let request = proto::ListSubscriptionsRequest { project, page_size, page_token };
            let page = admin::list_subscriptions(&broker, &request)?;
            let subscriptions: Vec<_> = page.subscriptions.iter().map(subscription_json).collect();
            Ok(json!({ "subscriptions": subscriptions, "nextPageToken": page.next_page_token }))
        }
        (method, _) => Err(Status::unimplemented(format!(
            "the emulator does not implement {method} {path} as JSON; use gRPC"
        ))),
    }
}

/// A topic's fields as JSON. A field that is not here is refused, not ignored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Topic {
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

impl Topic {
    fn named(self, name: String) -> proto::Topic {
        proto::Topic { name, labels: self.labels, ..Default::default() }
    }
}

/// A subscription's fields as JSON. A field that is not here is refused, not ignored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "these are the resource's fields")]
struct Subscription {
    #[serde(rename = "name")]
    _name: Option<String>,
    topic: String,
    #[serde(default)]
    ack_deadline_seconds: i32,
    #[serde(default)]
    enable_message_ordering: bool,
    #[serde(default)]
    enable_exactly_once_delivery: bool,
    #[serde(default)]
    filter: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

impl Subscription {
    fn named(self, name: String) -> proto::Subscription {
        proto::Subscription {
            name,
            topic: self.topic,
            ack_deadline_seconds: self.ack_deadline_seconds,
            enable_message_ordering: self.enable_message_ordering,
            enable_exactly_once_delivery: self.enable_exactly_once_delivery,
            filter: self.filter,
            labels: self.labels,
            ..Default::default()
        }
    }
}

fn topic_json(topic: &proto::Topic) -> Value {
    json!({ "name": topic.name, "labels": topic.labels })
}

fn subscription_json(subscription: &proto::Subscription) -> Value {
    json!({
        "name": subscription.name,
        "topic": subscription.topic,
        "ackDeadlineSeconds": subscription.ack_deadline_seconds,
        "enableMessageOrdering": subscription.enable_message_ordering,
        "enableExactlyOnceDelivery": subscription.enable_exactly_once_delivery,
        "filter": subscription.filter,
        "labels": subscription.labels,
        "state": "ACTIVE",
    })
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Status> {
    let malformed = |error| Status::invalid_argument(format!("the request's JSON: {error}"));
    serde_json::from_slice(body).map_err(malformed)
}

fn json_response(status: StatusCode, value: &Value) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (status, headers, value.to_string()).into_response()
}

/// The HTTP status that Google's APIs give a code (google/rpc/code.proto).
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Cancelled | Code::Unknown | Code::Internal | Code::DataLoss => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

/// A `%` that does not begin a well-formed escape is kept as it is.
fn percent_decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let escape = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let decoded = escape.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (first, decoded) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            _ => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_in_paths_are_undone() {
        assert_eq!(percent_decoded("topics/a%2Eb%7e"), "topics/a.b~");
        assert_eq!(percent_decoded("50%"), "50%");
        assert_eq!(percent_decoded("%zz%2"), "%zz%2");
    }

    #[test]
    fn a_field_that_would_be_ignored_is_refused() {
        let error = decode::<Subscription>(br#"{"topic":"t","deadLetterPolicy":{}}"#).err();
        assert!(error.unwrap().message().contains("deadLetterPolicy"));
    }
}
