//! The control port over plain HTTP/1.1.

use std::net::SocketAddr;

use super::support::{Server, TOPIC, message, request, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

/// Sends one request. Returns the status line and the body of the answer.
async fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> (String, String) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: emulator\r\nconnection: close\r\ncontent-length: {}\r\n\r\n\
         {body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within(socket.read_to_string(&mut answer)).await.unwrap();
    let (head, content) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), content.to_owned())
}

#[tokio::test]
async fn faults_are_set_listed_and_cleared_while_it_runs() {
    let server = Server::with_topic().await;
    let mut client = server.publisher().await;
    let text = "key=A-17,first=5,reject=UNAVAILABLE";

    let (status, made) = http(server.control, "POST", "/faults", text).await;
    assert_eq!((status.as_str(), made.trim()), ("HTTP/1.1 200 OK", r#"{"id":1}"#));
    let refused = client.publish(request(vec![message("a", "A-17")])).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    let (_, listed) = http(server.control, "GET", "/faults", "").await;
    assert_eq!(listed.trim(), format!(r#"[{{"fault":"{text}","hits":1,"id":1}}]"#));

    let (cleared, _) = http(server.control, "DELETE", "/faults/1", "").await;
    assert_eq!(cleared, "HTTP/1.1 204 No Content");
    client.publish(request(vec![message("a", "A-17")])).await.unwrap();
    let (missing, _) = http(server.control, "DELETE", "/faults/1", "").await;
    assert_eq!(missing, "HTTP/1.1 404 Not Found");
    let (bad, why) = http(server.control, "POST", "/faults", "reject=NOPE,x=1").await;
    assert_eq!(bad, "HTTP/1.1 400 Bad Request");
    assert!(why.contains("NOPE") && why.contains("\"x\""), "{why}");
}

#[tokio::test]
async fn what_was_published_and_counted_can_be_read() {
    let server = Server::with_topic().await;
    let mut client = server.publisher().await;
    client.publish(request(vec![message("a", "k"), message("b", "k")])).await.unwrap();

    let path = format!("/published?topic={TOPIC}&after=1");
    let (_, published) = http(server.control, "GET", &path, "").await;
    for part in [
        r#""id":"2""#,
        r#""ordering_key":"k""#,
        r#""data":"b""#,
        r#""data_hex":"62""#,
        r#""attributes":{"event_type":"OrderPaid"}"#,
    ] {
        assert!(published.contains(part), "{part} in {published}");
    }
    assert!(!published.contains(r#""data_hex":"61""#), "{published}");

    let (_, stats) = http(server.control, "GET", "/stats", "").await;
    assert!(stats.contains(r#""publish_replies":{"OK":1}"#), "{stats}");
    assert!(stats.contains(r#""request_messages_max":2"#), "{stats}");
}

#[tokio::test]
async fn held_requests_are_released_over_http() {
    let server = Server::with_topic().await;
    let mut client = server.publisher().await;
    http(server.control, "POST", "/faults", "hold").await;
    let mut waiting = tokio::task::JoinSet::new();
    waiting.spawn(async move { client.publish(request(vec![message("a", "k")])).await });
    within(server.emulator.wait_until(|emulator| emulator.stats().held == 1)).await;

    http(server.control, "POST", "/release", "").await;

    within(waiting.join_next()).await.unwrap().unwrap().unwrap();
}
