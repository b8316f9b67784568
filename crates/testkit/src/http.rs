//! A minimal HTTP client, to query a relay or an emulator.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Gets `path` from `address` (`127.0.0.1:8080`). Returns the status code and the body.
pub async fn http_get(address: &str, path: &str) -> io::Result<(u16, String)> {
    let mut socket = TcpStream::connect(address).await?;
    // An HTTP/1.0 response is not chunked and ends with the connection.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await?;

    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let code = head.split_whitespace().nth(1).and_then(|code| code.parse().ok());
    Ok((code.ok_or(io::ErrorKind::InvalidData)?, body.to_owned()))
}
