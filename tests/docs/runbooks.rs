//! Runs the commands of every runbook against one server that has what the pages assume: a relay's
//! tables, a consumer, a dead row, a dead event and an anchor.

use std::path::{Path, PathBuf};
use std::process::Command;

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::postgres::{TestClient, installation_or_skip};
use walrelay_testkit::relay::binary;
use walrelay_testkit::skip;
use walrelay_tests::PubSub;

use crate::blocks::{Language, runnable};

/// Run once, before the first page.
const SETUP: &str = "
    walrelay init --create-topics=order.events
    psql \"$READ_URL\" --quiet --command='CREATE TABLE orders
      (id text PRIMARY KEY, version bigint NOT NULL, status text NOT NULL, total numeric NOT NULL)'
    walrelay consumer init billing --database-url \"$READ_URL\" --subscription billing \\
      --create --topic order.events
    walrelay consumer scaffold orders --database-url \"$READ_URL\" | psql \"$READ_URL\" --quiet";

/// Run before each page, because a page may drop the anchor.
const ANCHOR: &str = "walrelay anchor create before_release || true";

/// A dead row and a dead event, both with the id that the pages use as a placeholder.
const DEAD: &str = "
    INSERT INTO app_outbox_dispatch
           (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status)
    VALUES ('walrelay', 'ID', '0/1', 0, 'projects/local/topics/order.events', 'k', '\\x0a0178', 'dead')
        ON CONFLICT DO NOTHING;
    INSERT INTO app_inbox
           (consumer, generation, event_id, ordering_key, status, next_attempt_at, message)
    VALUES ('billing', 1, 'ID', 'k', 'dead', 'infinity',
            convert_to('{\"event_id\": \"ID\", \"ordering_key\": \"k\", \"data\": \"e30=\"}', 'UTF8'))
        ON CONFLICT DO NOTHING";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A server, a Pub/Sub and the binary, for the commands of the runbooks.
struct Incident {
    server: PrivatePostgres,
    pubsub: PubSub,
    binary: PathBuf,
}

impl Incident {
    async fn shell(&self, script: &str, place: &str) {
        let url = self.server.url("postgres");
        let folder = self.binary.parent().expect("the binary lies in a folder");
        let prelude =
            format!("set -euo pipefail\nexport PATH=\"{}:$PATH\"\n", folder.to_string_lossy());
        let mut command = Command::new("bash");
        command
            .args(["-c", &format!("{prelude}{script}")])
            .current_dir(root())
            .env("DATABASE_URL", &url)
            .env("READ_URL", &url)
            .env("PUBSUB_EMULATOR_HOST", self.pubsub.address())
            .env("PUBSUB_PROJECT_ID", "local")
            .env("WALRELAY_QUIET_FOR", "300ms");
        // The runtime serves the Pub/Sub that the command uses, so a blocking thread waits.
        let ended = tokio::task::spawn_blocking(move || command.output()).await;
        let output = ended.expect("the command is waited for").expect("bash starts");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(output.status.success(), "{place}: {}\n{script}\n{text}", output.status);
    }
}

#[tokio::test]
async fn every_command_of_the_runbooks_runs() {
    let Some(binary) = binary() else {
        let _: Option<()> = skip("the binary is not built");
        return;
    };
    let Some(installation) = installation_or_skip() else { return };
    let server = PrivatePostgres::start(&installation, &[]).expect("a server starts");
    let incident = Incident { server, pubsub: PubSub::start(), binary };
    incident.shell(SETUP, "setup").await;
    let client = TestClient::connect(&incident.server.url("postgres")).await;

    let folder = std::fs::read_dir(root().join("docs/runbooks")).expect("the runbooks");
    let mut ran = 0;
    for path in folder.flatten().map(|entry| entry.path()) {
        let text = std::fs::read_to_string(&path).expect("a readable page");
        let blocks = runnable(&text).unwrap_or_else(|mark| panic!("{}: {mark}", path.display()));
        client.batch_execute(DEAD).await.expect("a dead row and a dead event");
        incident.shell(ANCHOR, "the anchor").await;
        for block in blocks {
            assert_eq!(block.language, Language::Shell, "{}", path.display());
            incident.shell(&block.text, &format!("{}:{}", path.display(), block.line)).await;
            ran += 1;
        }
    }
    assert!(ran >= 20, "only {ran} blocks ran: the runbooks had more");
}
