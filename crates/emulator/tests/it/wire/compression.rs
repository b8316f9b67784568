//! Compressed requests, as the official clients send them when compression is on.

use std::io::Write as _;

use bytes::{BufMut as _, Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::support::{Server, message, request, stored, within};

/// Sends a Publish request whose only frame has this flag and body. Returns the gRPC status.
async fn publish(server: &Server, encoding: &str, body: &[u8]) -> String {
    let socket = TcpStream::connect(server.address).await.unwrap();
    let (client, connection) = h2::client::handshake(socket).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let mut client = client.ready().await.unwrap();
    let sent = http::Request::post(format!("{}/google.pubsub.v1.Publisher/Publish", server.url()))
        .header("content-type", "application/grpc")
        .header("grpc-encoding", encoding)
        .body(())
        .unwrap();
    let (response, mut sending) = client.send_request(sent, false).unwrap();
    let mut frame = BytesMut::new();
    frame.put_u8(1);
    frame.put_u32(u32::try_from(body.len()).unwrap());
    frame.put_slice(body);
    sending.send_data(Bytes::from(frame), true).unwrap();
    let (head, mut replied) = within(response).await.unwrap().into_parts();
    while let Some(data) = within(replied.data()).await {
        data.unwrap();
    }
    let trailers = within(replied.trailers()).await.unwrap().unwrap_or_default();
    let status = trailers.get("grpc-status").or_else(|| head.headers.get("grpc-status"));
    status.unwrap().to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_gzip_request_is_published() {
    let server = Server::with_topic().await;
    let text = "the same again ".repeat(1_000);
    let bytes = request(vec![message(&text, "k")]).encode_to_vec();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&bytes).unwrap();
    let compressed = encoder.finish().unwrap();
    assert!(compressed.len() < bytes.len() / 10);

    assert_eq!(publish(&server, "gzip", &compressed).await, "0");
    assert_eq!(stored(&server.emulator), [text]);
    assert_eq!(publish(&server, "zstd", &compressed).await, "12", "UNIMPLEMENTED");
    assert_eq!(stored(&server.emulator).len(), 1);
}
