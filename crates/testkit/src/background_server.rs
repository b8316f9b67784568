//! Runs a test's server on its own thread, so that a blocking test does not stop the server.

use std::thread::{self, JoinHandle};

use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::oneshot;

/// A server on a random port of this machine. Dropping the value stops the server.
#[derive(Debug)]
pub struct Background {
    what: &'static str,
    address: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts a server. `serve` receives the listener and runs until it ends or this value is
    /// dropped.
    pub fn start<F: Future<Output = ()>>(
        what: &'static str,
        serve: impl FnOnce(TcpListener) -> F + Send + 'static,
    ) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address").to_string();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                listener.set_nonblocking(true).expect("a socket that does not block");
                let listening = TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    _ = stopped => {}
                    () = serve(listening) => {}
                }
            });
        });
        Self { what, address, stop: Some(stop), thread: Some(thread) }
    }

    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("{} panicked", self.what);
        }
    }
}
