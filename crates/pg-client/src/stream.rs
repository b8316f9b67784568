//! One type for TCP, TLS and Unix sockets, which checks what a server sends before the session begins.

use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::auth_methods::{AuthMethods, StartupGate};
use crate::tls::channel_binding;

/// A connected socket, encrypted or not.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Debug + Send + Unpin> Transport for T {}

/// A connected stream to a server.
#[derive(Debug)]
pub struct Stream {
    transport: Box<dyn Transport>,
    is_encrypted: bool,
    end_point: Option<Vec<u8>>,
    /// Until the session begins.
    gate: Option<StartupGate>,
}

impl Stream {
    /// Creates a stream in plain text.
    pub(crate) fn plain(transport: impl Transport + 'static) -> Self {
        let transport = Box::new(transport);
        Self { transport, is_encrypted: false, end_point: None, gate: None }
    }

    pub(crate) fn encrypted(transport: TlsStream<TcpStream>) -> Self {
        let certificates = transport.get_ref().1.peer_certificates();
        let certificate = certificates.and_then(|chain| chain.first());
        let end_point = certificate.and_then(|it| channel_binding::server_end_point(it));
        Self { is_encrypted: true, end_point, ..Self::plain(transport) }
    }

    /// Checks what the server sends before the session begins, and allows only these methods of authentication.
    pub(crate) fn with_methods(self, methods: Option<&AuthMethods>) -> Self {
        Self { gate: Some(StartupGate::new(methods.cloned())), ..self }
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Returns the data that binds an authentication to this TLS connection: `tls-server-end-point`, RFC
    /// 5929. None without TLS, and for a certificate whose signature has no hash of its own.
    #[must_use]
    pub fn server_end_point(&self) -> Option<&[u8]> {
        self.end_point.as_deref()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.transport).poll_read(cx, buf))?;
        if let Some(gate) = &mut this.gate
            && gate.take(&buf.filled()[before..])?
        {
            this.gate = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().transport).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_shutdown(cx)
    }
}
