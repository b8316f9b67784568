//! Decides when a server is ready: it must reply to a real connection, because an open port is not
//! enough.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::storage::random_number;

/// A port range below the systems' range for outgoing connections. No outgoing connection takes the
/// port while the server restarts.
const PORT_FIRST: u64 = 15_000;
const PORT_COUNT: u64 = 15_000;

const PROTOCOL_VERSION_3: i32 = 0x0003_0000;
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

pub(crate) fn free_port() -> Option<u16> {
    (0..100)
        .filter_map(|_| u16::try_from(PORT_FIRST + random_number() % PORT_COUNT).ok())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
}

/// Reports whether the server accepts a connection as `postgres`. A server that starts up or shuts
/// down replies with an error.
///
/// Connects over the Unix socket, which certainly belongs to this server. Another process could
/// listen on the port. The server opens the socket after the port.
pub(crate) fn accepts_connections(socket_dir: &Path, port: u16) -> bool {
    let socket = socket_dir.join(format!(".s.PGSQL.{port}"));
    matches!(first_reply(&socket), Ok(b'R'))
}

fn first_reply(path: &Path) -> io::Result<u8> {
    let mut socket = UnixStream::connect(path)?;
    socket.set_read_timeout(Some(CONNECTION_TIMEOUT))?;
    socket.set_write_timeout(Some(CONNECTION_TIMEOUT))?;

    let parameters = b"user\0postgres\0database\0postgres\0\0";
    let length = i32::try_from(4 + 4 + parameters.len()).map_err(io::Error::other)?;
    let mut startup = length.to_be_bytes().to_vec();
    startup.extend(PROTOCOL_VERSION_3.to_be_bytes());
    startup.extend(parameters);
    socket.write_all(&startup)?;

    let mut reply = [0];
    socket.read_exact(&mut reply)?;
    // The Terminate message. Without it, the server logs an unexpected end of the connection.
    socket.write_all(&[b'X', 0, 0, 0, 4])?;
    Ok(reply[0])
}

/// Polls until `condition` is true. Returns false when it is still false at the deadline.
#[expect(clippy::disallowed_methods, reason = "this crate is synchronous: there is no runtime")]
pub(crate) fn poll_until(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if started.elapsed() >= deadline {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
