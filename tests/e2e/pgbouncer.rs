//! Behind PgBouncer: recognised by how it behaves, with the fix, and `check` looks on.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use walrelay_testkit::{skip, wait_until};
use walrelay_tests::{DEADLINE, World};

/// A PgBouncer of a test's own in front of the test's server.
pub(crate) struct PgBouncer {
    child: Child,
    folder: PathBuf,
    port: u16,
}

impl PgBouncer {
    /// The connection string of the world's database behind it.
    pub(crate) fn url(&self, world: &World) -> String {
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

/// It refuses to run as root, so root lends it another user.
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

pub(crate) async fn start(world: &World, mode: &str, ignored: &str) -> Option<PgBouncer> {
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
    // `any` logs everybody in as the user that is named with the database.
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
    let bouncer = PgBouncer { child, folder, port };
    wait_until(DEADLINE, "pgbouncer to listen", async || {
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()
    })
    .await;
    Some(bouncer)
}

#[tokio::test]
async fn a_pooler_is_recognised_in_every_mode_and_the_rest_is_checked() {
    let Some(world) = World::create().await else { return };
    let few = "extra_float_digits";
    let many = "replication,options,extra_float_digits";
    let modes = [("transaction", few), ("transaction", many), ("session", few), ("session", many)];
    for (mode, ignored) in modes {
        let Some(bouncer) = start(&world, mode, ignored).await else { return };
        let url = bouncer.url(&world);
        for command in ["run", "check"] {
            let done = world.run([command, "--database-url", &url]).await;
            let text = &done.text;
            assert_eq!(done.code, Some(3), "{mode} {ignored} {command}: {text}");
            assert!(text.contains("connection pooler"), "{mode} {ignored} {command}: {text}");
            assert!(text.contains("connect to the database itself"), "{text}");
            let goes_on = text.contains("wal_level") && text.contains("Pub/Sub: answers");
            assert!(goes_on || command == "run", "{mode} {ignored}: {text}");
        }
    }
}
