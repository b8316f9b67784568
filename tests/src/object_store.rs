//! A local object store of each kind, from packages of PyPI.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use walrelay_testkit::relay::RelayCommand;
use walrelay_testkit::{skip, wait_until};

use crate::world::DEADLINE;

/// The variable with the folder of the programs. Without it, the folder of
/// `scripts/install-servers.sh` is used.
const PROGRAMS_VARIABLE: &str = "WALRELAY_TEST_OBJECT_STORES";

/// The bucket of a test. The server of a store belongs to one test alone.
const BUCKET: &str = "walrelay-test";

/// The kinds of object stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectStoreKind {
    /// S3, served by Moto.
    S3,
    /// Google Cloud Storage, served by gcp-storage-emulator.
    CloudStorage,
}

/// A port for an object store, and its server once that is started. Dropping the value ends the
/// server.
#[derive(Debug)]
pub struct ObjectStore {
    kind: ObjectStoreKind,
    programs: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl ObjectStore {
    /// Chooses a port on which no server answers yet. Returns `None`, and reports the test as
    /// skipped, where the packages are not installed.
    ///
    /// # Panics
    ///
    /// There is no free port.
    #[must_use]
    pub fn new(kind: ObjectStoreKind) -> Option<Self> {
        let programs = programs();
        if !programs.join("python").exists() {
            return skip("no object stores; scripts/install-servers.sh gets them");
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        Some(Self { kind, programs, port, child: None })
    }

    /// Starts the server, with a bucket.
    ///
    /// # Panics
    ///
    /// The server does not start.
    pub async fn start(&mut self) {
        let child = self.script("serve").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.expect("the object store starts"));
        wait_until(DEADLINE, "the object store to listen", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.ok()
        })
        .await;
        self.finish(&mut self.script("create"));
    }

    /// From now on, the store refuses keys that it did not create.
    ///
    /// # Panics
    ///
    /// The store is another kind than S3.
    pub fn require_permissions(&self) {
        assert_eq!(self.kind, ObjectStoreKind::S3, "only Moto checks permissions");
        self.finish(&mut self.script("require-permissions"));
    }

    /// Copies all objects into a directory, with a client of the store that is not ours.
    ///
    /// # Panics
    ///
    /// The objects cannot be read.
    pub fn download(&self, directory: &str) {
        self.finish(self.script("download").arg(directory));
    }

    /// Returns the URL of an archive in the bucket.
    #[must_use]
    pub fn location(&self) -> String {
        let scheme = match self.kind {
            ObjectStoreKind::S3 => "s3",
            ObjectStoreKind::CloudStorage => "gs",
        };
        format!("{scheme}://{BUCKET}/old/rows")
    }

    /// Sets the variables with which a command finds the store.
    #[must_use]
    pub fn configure(&self, command: RelayCommand) -> RelayCommand {
        match self.kind {
            ObjectStoreKind::S3 => command
                .env("AWS_ENDPOINT_URL", &self.endpoint())
                .env("AWS_ALLOW_HTTP", "true")
                .env("AWS_REGION", "us-east-1")
                .env("AWS_ACCESS_KEY_ID", "test")
                .env("AWS_SECRET_ACCESS_KEY", "hunter2")
                .env("AWS_SESSION_TOKEN", "session-hunter2"),
            ObjectStoreKind::CloudStorage => command.env("STORAGE_EMULATOR_HOST", &self.endpoint()),
        }
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn script(&self, action: &str) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/object_store.py");
        let kind = match self.kind {
            ObjectStoreKind::S3 => "s3",
            ObjectStoreKind::CloudStorage => "gs",
        };
        let mut command = Command::new(self.programs.join("python"));
        command.arg(script).args([action, kind, &self.port.to_string(), BUCKET]);
        command
    }

    fn finish(&self, command: &mut Command) {
        let done = command.output().expect("Python starts");
        let text = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{:?}: {text}", self.kind);
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

fn programs() -> PathBuf {
    let installed =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../.servers/clients/object-stores/bin");
    std::env::var_os(PROGRAMS_VARIABLE).map_or(installed, PathBuf::from)
}
