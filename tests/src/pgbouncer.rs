//! A private PgBouncer in front of a test's server.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use walrelay_testkit::{skip, wait_until};

use crate::world::{DEADLINE, InboxDatabase};

/// A running PgBouncer. Dropping the value ends the process.
#[derive(Debug)]
pub struct PgBouncer {
    child: Child,
    folder: PathBuf,
    port: u16,
}

impl PgBouncer {
    /// Starts PgBouncer in this pool mode, with these start-up parameters ignored. Returns `None`
    /// where PgBouncer is not installed.
    ///
    /// # Panics
    ///
    /// PgBouncer does not start.
    pub async fn start(world: &InboxDatabase, mode: &str, ignored: &str) -> Option<Self> {
        let is_there = Command::new("pgbouncer").arg("--version").stdout(Stdio::null()).status();
        if !is_there.is_ok_and(|status| status.success()) {
            return skip("pgbouncer is not installed");
        }
        let row = world
            .client()
            .query_one("SELECT current_setting('port')::int4", &[])
            .await
            .expect("the port is told");
        let server: i32 = row.get(0);
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .expect("a free port")
            .local_addr()
            .expect("its address")
            .port();
        let folder = std::env::temp_dir().join(format!("walrelay-pgbouncer-{}", world.name()));
        std::fs::create_dir_all(&folder).expect("a folder");
        // With `auth_type = any`, every client becomes the user in the database entry.
        let ini = format!(
            "[databases]\n* = host=127.0.0.1 port={server} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n\
         ignore_startup_parameters = {ignored}\n"
        );
        std::fs::write(folder.join("pgbouncer.ini"), ini).expect("its configuration is written");
        let child = command(&folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("pgbouncer starts");
        let bouncer = Self { child, folder, port };
        wait_until(DEADLINE, "pgbouncer to listen", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()
        })
        .await;
        Some(bouncer)
    }

    /// Returns the connection string of the test's database through PgBouncer.
    #[must_use]
    pub fn url(&self, world: &InboxDatabase) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{}", self.port, world.name())
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// PgBouncer refuses to run as root, so root switches to another user.
fn command(folder: &Path) -> Command {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| {
        use std::os::unix::fs::MetadataExt as _;
        own.uid() == 0
    });
    let ini = folder.join("pgbouncer.ini");
    if !is_root {
        let mut command = Command::new("pgbouncer");
        command.arg(ini);
        return command;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "pgbouncer"]).arg(ini);
    command
}
