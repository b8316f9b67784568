//! Tests that the binary needs almost nothing from its file system: itself, the public certificate
//! authorities, and its shared libraries if it is not static. It needs no shell, no time zones, no
//! `/tmp` and no `/proc`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use walrelay_testkit::process::clean_command;
use walrelay_testkit::relay;
use walrelay_tests::InboxDatabase;

use crate::skipped;

/// The only other file in the image.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A folder that contains only the binary and serves as the root directory of test processes.
struct EmptyRoot(PathBuf);

impl EmptyRoot {
    fn with(binary: &Path) -> Self {
        let root = std::env::temp_dir().join(format!("walrelay-root-{}", std::process::id()));
        fs::create_dir_all(&root).expect("a new folder");
        fs::copy(binary, root.join("walrelay")).expect("a copy of the binary");
        let linked = Command::new("ldd").arg(binary).output().expect("ldd is there");
        for library in String::from_utf8_lossy(&linked.stdout).split_whitespace() {
            if !library.starts_with('/') {
                continue;
            }
            let copy = root.join(library.trim_start_matches('/'));
            fs::create_dir_all(copy.parent().expect("a folder")).expect("a new folder");
            fs::copy(library, copy).expect("a copy of a library");
        }
        // As in the image: Google's administration client does not start without certificate
        // authorities.
        let authorities = Path::new(AUTHORITIES);
        if authorities.exists() {
            let copy = root.join(AUTHORITIES.trim_start_matches('/'));
            fs::create_dir_all(copy.parent().expect("a folder")).expect("a new folder");
            fs::copy(authorities, copy).expect("a copy of the authorities");
        }
        Self(root)
    }

    /// Returns a command in this root. As root, the command uses `chroot` and an unprivileged user.
    /// Otherwise it uses its own namespace.
    fn command(&self, arguments: &[&str]) -> Command {
        let root = self.0.display();
        let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
        let mut command = if is_root {
            let mut command = clean_command("chroot");
            command.args(["--userspec=65532:65532", &root.to_string()]);
            command
        } else {
            let mut command = clean_command("unshare");
            command.arg("--map-root-user").arg(format!("--root={root}"));
            command
        };
        command.arg("/walrelay").args(arguments);
        command
    }
}

impl Drop for EmptyRoot {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

async fn run(mut command: Command) -> Output {
    let ended = tokio::task::spawn_blocking(move || command.output()).await;
    ended.expect("the command is waited for").expect("the command starts")
}

#[tokio::test]
async fn the_binary_runs_in_an_empty_root_and_as_nobody() {
    let Some(binary) = relay::binary() else {
        return skipped("the binary is not built");
    };
    let root = EmptyRoot::with(&binary);
    let version = run(root.command(&["--version"])).await;
    let told = String::from_utf8_lossy(&version.stderr).into_owned();
    if !version.status.success() && told.contains("not permitted") {
        return skipped("neither root nor namespaces");
    }
    assert!(version.status.success(), "{told}");

    let Some(world) = InboxDatabase::create_empty().await else { return };
    let settings = [
        ("DATABASE_URL", world.url()),
        ("PUBSUB_EMULATOR_HOST", world.pubsub.address()),
        ("PUBSUB_PROJECT_ID", "test"),
        ("WALRELAY_SLOT", world.name()),
        ("WALRELAY_PUBLICATION", world.name()),
    ];
    let insert = "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
                  VALUES ('video', 'v-1', 'test.inserted', 1, '{}')";
    for arguments in [&["init"][..], &["check"], &["run", "--until-caught-up"], &["status"]] {
        if arguments[0] == "run" {
            world.execute(insert).await;
        }
        let mut command = root.command(arguments);
        command.envs(settings);
        let done = run(command).await;
        let output = [done.stdout, done.stderr].concat();
        let text = String::from_utf8_lossy(&output);
        assert!(done.status.success(), "{arguments:?}: {}\n{text}", done.status);
    }
    assert_eq!(world.pubsub.stored_count(), 1);

    // An image without certificate authorities causes a clear error and no crash.
    fs::remove_dir_all(root.0.join("etc")).expect("the authorities are there");
    let mut command = root.command(&["check"]);
    command.envs(settings).env_remove("PUBSUB_EMULATOR_HOST");
    let done = run(command).await;
    let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert_eq!(done.status.code(), Some(4), "{text}");
    assert!(text.contains("no certificate authorities") && !text.contains("invariant"), "{text}");
}
