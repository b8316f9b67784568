//! Administration as JSON over HTTP/1.1, on the same port as gRPC.
//!
//! Some official clients, among them the Rust client, publish and pull over gRPC but manage topics
//! and subscriptions over JSON. Paths and field names follow the Pub/Sub REST reference (v1).

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
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tonic::{Code, Status};

use crate::calls::{snapshots, subscriptions, topics};
use crate::emulator::Emulator;
use crate::serve::json::{self, decode};
use crate::store::broker::Broker;
use crate::wire::codes::name_of;

/// Connections that do not speak HTTP/2.
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
            // No more connections will arrive. The caller ends the server.
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
    let unimplemented = || {
        Status::unimplemented(format!(
            "the emulator does not implement {method} {path} as JSON; use gRPC"
        ))
    };
    match parts.as_slice() {
        ["projects", project, "topics" | "subscriptions" | "snapshots"] => {
            list(&mut broker, method, &format!("projects/{project}"), parts[2], paging)
        }
        ["projects", _, "topics", _, "subscriptions" | "snapshots"] => {
            list_of_topic(&broker, method, &parts[..4].join("/"), parts[4], paging)
        }
        ["projects", _, "topics", _] => topic(&mut broker, method, name.clone(), body),
        ["projects", _, "subscriptions", _] => {
            subscription(&mut broker, method, name.clone(), body)
        }
        ["projects", _, "snapshots", _] => snapshot(&mut broker, method, name.clone(), body),
        _ => None,
    }
    .unwrap_or_else(|| Err(unimplemented()))
}

/// The answer to a known request, or `None` for an unknown one.
type Answer = Option<Result<Value, Status>>;

fn topic(broker: &mut Broker, method: &Method, name: String, body: &[u8]) -> Answer {
    let shown = |topic: proto::Topic| json!(json::Topic::from(topic));
    Some(match *method {
        Method::PUT => decode::<json::Topic>(body).and_then(|topic| {
            topics::create_topic(broker, proto::Topic { name, ..topic.into() }).map(shown)
        }),
        Method::PATCH => decode::<json::Update>(body)
            .and_then(|update| topics::update_topic(broker, update.topic(name)).map(shown)),
        Method::GET => broker.topic(&name).map(|topic| shown(topic.config.clone())),
        Method::DELETE => broker.remove_topic(&name).map(|()| json!({})),
        _ => return None,
    })
}

fn subscription(broker: &mut Broker, method: &Method, name: String, body: &[u8]) -> Answer {
    let shown = |its: proto::Subscription| json!(json::Subscription::from(its));
    Some(match *method {
        Method::POST => {
            let (name, verb) = name.rsplit_once(':')?;
            let name = name.to_owned();
            match verb {
                "seek" => decode::<json::Seek>(body)
                    .and_then(|seek| snapshots::seek(broker, &seek.of(name)))
                    .map(|_| json!({})),
                "modifyPushConfig" => decode::<json::ModifyPushConfig>(body)
                    .and_then(|push| subscriptions::modify_push_config(broker, &push.of(name)))
                    .map(|()| json!({})),
                _ => return None,
            }
        }
        Method::PUT => decode::<json::Subscription>(body).and_then(|its| {
            let config = proto::Subscription { name, ..its.into() };
            subscriptions::create_subscription(broker, config).map(shown)
        }),
        Method::PATCH => decode::<json::Update>(body).and_then(|update| {
            subscriptions::update_subscription(broker, update.subscription(name)).map(shown)
        }),
        Method::GET => broker.described_subscription(&name).map(shown),
        Method::DELETE => broker.remove_subscription(&name).map(|()| json!({})),
        _ => return None,
    })
}

fn snapshot(broker: &mut Broker, method: &Method, name: String, body: &[u8]) -> Answer {
    let shown = |snapshot: proto::Snapshot| json!(json::Snapshot::from(snapshot));
    Some(match *method {
        Method::PUT => decode::<json::CreateSnapshot>(body)
            .and_then(|made| snapshots::create_snapshot(broker, made.named(name)).map(shown)),
        Method::PATCH => decode::<json::Update>(body).and_then(|update| {
            snapshots::update_snapshot(broker, update.snapshot(name)).map(shown)
        }),
        Method::GET => snapshots::get_snapshot(broker, &name).map(shown),
        Method::DELETE => snapshots::delete_snapshot(broker, &name).map(|()| json!({})),
        _ => return None,
    })
}

fn list(broker: &mut Broker, method: &Method, project: &str, what: &str, paging: Paging) -> Answer {
    let Paging { page_size, page_token } = paging;
    let project = project.to_owned();
    let page = match what {
        "topics" => {
            let request = proto::ListTopicsRequest { project, page_size, page_token };
            topics::list_topics(broker, &request).map(|page| {
                let topics: Vec<_> = page.topics.into_iter().map(json::Topic::from).collect();
                json!({ "topics": topics, "nextPageToken": page.next_page_token })
            })
        }
        "subscriptions" => {
            let request = proto::ListSubscriptionsRequest { project, page_size, page_token };
            subscriptions::list_subscriptions(broker, &request).map(|page| {
                let subscriptions = page.subscriptions.into_iter().map(json::Subscription::from);
                let subscriptions: Vec<_> = subscriptions.collect();
                json!({ "subscriptions": subscriptions, "nextPageToken": page.next_page_token })
            })
        }
        _ => {
            let request = proto::ListSnapshotsRequest { project, page_size, page_token };
            snapshots::list_snapshots(broker, &request).map(|page| {
                let snapshots = page.snapshots.into_iter().map(json::Snapshot::from);
                let snapshots: Vec<_> = snapshots.collect();
                json!({ "snapshots": snapshots, "nextPageToken": page.next_page_token })
            })
        }
    };
    (*method == Method::GET).then_some(page)
}

/// Answers with a page of the names of a topic's resources.
fn list_of_topic(
    broker: &Broker,
    method: &Method,
    topic: &str,
    what: &str,
    paging: Paging,
) -> Answer {
    let Paging { page_size, page_token } = paging;
    let topic = topic.to_owned();
    let page = if what == "subscriptions" {
        let request = proto::ListTopicSubscriptionsRequest { topic, page_size, page_token };
        topics::list_topic_subscriptions(broker, &request).map(|page| {
            json!({ "subscriptions": page.subscriptions, "nextPageToken": page.next_page_token })
        })
    } else {
        let request = proto::ListTopicSnapshotsRequest { topic, page_size, page_token };
        topics::list_topic_snapshots(broker, &request).map(
            |page| json!({ "snapshots": page.snapshots, "nextPageToken": page.next_page_token }),
        )
    };
    (*method == Method::GET).then_some(page)
}

fn json_response(status: StatusCode, value: &Value) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (status, headers, value.to_string()).into_response()
}

/// Returns the HTTP status of a code in Google's APIs (google/rpc/code.proto).
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

/// Decodes percent escapes. A `%` without a well-formed escape remains.
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
}
