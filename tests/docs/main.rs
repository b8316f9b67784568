//! Checks that the documentation works: every block of SQL, shell, Python and TypeScript either
//! runs or gives a reason why it cannot.

mod blocks;
mod feed;
mod recipes;
mod web;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::background_server::Background;
use walrelay_testkit::postgres::{TestClient, installation_or_skip};
use walrelay_testkit::relay::binary;
use walrelay_testkit::{skip, wait_until};
use walrelay_tests::{DEADLINE, PROJECT, PubSub};

use blocks::{Block, Language, runnable};
use feed::Feed;
use recipes::{program, text_of};

/// The state that a page assumes, created before its first block.
const SETUPS: &[(&str, &str)] = &[
    ("docs/operations.md", OPERATIONS),
    ("docs/emulator.md", EVENT),
    ("migrations/README.md", "CREATE ROLE app"),
];

/// A row for the relay to publish.
const EVENT: &str = "
    INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
    VALUES ('order', 'A-17', 'order.created', 1, '{\"total\": 42}')";

/// A dead row, and a row of the same key behind it, for statements that act on them.
const OPERATIONS: &str = "
    INSERT INTO app_outbox_dispatch
           (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status)
    VALUES ('walrelay', 'ID', '0/1', 0, 'projects/P/topics/T', 'k', '\\x0a0178', 'dead'),
           ('walrelay', 'behind', '0/1', 1, 'projects/P/topics/T', 'k', '\\x0a0178', 'retrying')";

/// Pages whose first block needs an empty database, without `walrelay init`.
const EMPTY: &[&str] = &[
    "docs/consumer-operations.md",
    "docs/how-to/move-from-a-polling-outbox.md",
    "migrations/README.md",
];

/// The page whose grants need the consumer's tables.
const INBOX: &str = "migrations/README.md";

/// The README, whose steps run in a separate test because they leave two programs running.
const README: &str = "README.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns every page for users and contributors, with its path from the repository root.
fn pages() -> Vec<(String, String)> {
    let in_folder = |folder: &str| {
        let dir = fs::read_dir(root().join(folder)).expect("a folder of pages");
        let names = dir.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names
            .filter(|name| name.ends_with(".md"))
            .map(|name| format!("{folder}{name}"))
            .collect::<Vec<_>>()
    };
    let mut paths: Vec<String> =
        ["", "docs/", "docs/how-to/", "migrations/"].into_iter().flat_map(in_folder).collect();
    paths.sort_unstable();
    let text = |path: &String| fs::read_to_string(root().join(path)).expect("a readable page");
    paths
        .into_iter()
        .map(|path| {
            let text = text(&path);
            (path, text)
        })
        .collect()
}

/// Returns the consumer's migrations in order.
fn inbox_migrations() -> Vec<String> {
    let dir = fs::read_dir(root().join("migrations/inbox")).expect("the inbox's migrations");
    let mut paths: Vec<PathBuf> = dir.flatten().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    paths.iter().map(|path| fs::read_to_string(path).expect("a readable migration")).collect()
}

fn blocks_of(path: &str, text: &str) -> Vec<Block> {
    runnable(text).unwrap_or_else(|mark| panic!("{path}: {mark}"))
}

#[tokio::test]
async fn every_block_of_the_pages_runs_unchanged() {
    let Some(binary) = binary() else { return skip_unbuilt() };
    let mut ran = 0;
    for (path, text) in pages().iter().filter(|(path, _)| path != README) {
        let blocks = blocks_of(path, text);
        if blocks.is_empty() {
            continue;
        }
        let Some(page) = Page::open(path, &binary).await else { return };
        for block in &blocks {
            page.run(block).await;
            ran += 1;
        }
        page.assert_what_it_promised().await;
    }
    assert!(ran >= 8, "only {ran} blocks ran: the pages had more");
}

fn skip_unbuilt() {
    let _: Option<()> = skip("the binary is not built");
}

/// A page with its own server, because slots and roles in its blocks are global to a server.
struct Page {
    path: String,
    server: PrivatePostgres,
    pubsub: PubSub,
    control: Background,
    client: TestClient,
    feed: Feed,
    binary: PathBuf,
}

impl Page {
    async fn open(path: &str, binary: &Path) -> Option<Self> {
        let installation = installation_or_skip()?;
        let server = PrivatePostgres::start(&installation, &[]).expect("a server starts");
        // Databases that a page creates are copies of this template.
        let template = TestClient::connect(&server.url("template1")).await;
        template.batch_execute(web::ROLES).await.expect("the roles of Supabase");
        template.batch_execute(web::DEFAULT_PRIVILEGES).await.expect("its default privileges");
        drop(template);
        let client = TestClient::connect(&server.url("postgres")).await;
        client.batch_execute(web::DEFAULT_PRIVILEGES).await.expect("its default privileges");
        let pubsub = PubSub::start();
        let feed = Feed::open(&pubsub).await;
        let (path_of_page, binary) = (path.to_owned(), binary.to_owned());
        let control = pubsub.control();
        let page = Self { path: path_of_page, server, pubsub, control, client, feed, binary };
        if !EMPTY.contains(&path) {
            page.shell("walrelay init", "setup").await;
        }
        if path == INBOX {
            for sql in inbox_migrations() {
                page.client.batch_execute(&sql).await.expect("the inbox's tables");
            }
        }
        for (_, sql) in SETUPS.iter().filter(|(of, _)| *of == path) {
            page.client.batch_execute(sql).await.expect("the page's setup");
        }
        Some(page)
    }

    async fn run(&self, block: &Block) {
        let place = format!("{}:{}", self.path, block.line);
        match block.language {
            Language::Shell => drop(self.shell(&block.text, &place).await),
            Language::Python | Language::TypeScript => self.program(block, &place).await,
            // A statement with parameters belongs into a program. The server only checks its syntax
            // and types.
            Language::Sql if block.text.contains("$1") => {
                let prepared = self.client.prepare(&block.text).await;
                prepared.unwrap_or_else(|error| panic!("{place}: {error:?}\n{}", block.text));
            }
            Language::Sql => {
                let done = self.client.batch_execute(&block.text).await;
                done.unwrap_or_else(|error| panic!("{place}: {error:?}\n{}", block.text));
            }
        }
    }

    async fn shell(&self, script: &str, place: &str) -> String {
        let mut command = shell(script, &self.binary);
        self.environment(&mut command);
        let done = output(command).await;
        let text = text_of(&done);
        assert!(done.status.success(), "{place}: {}\n{script}\n{text}", done.status);
        text
    }

    fn environment(&self, command: &mut Command) {
        command
            .env("DATABASE_URL", self.server.url("postgres"))
            .env("PUBSUB_EMULATOR_HOST", self.pubsub.address())
            .env("CONTROL", self.control.address())
            .env("PUBSUB_PROJECT_ID", "local");
    }

    async fn program(&self, block: &Block, place: &str) {
        let Some(mut program) = program(block.language, &block.text, place) else { return };
        self.environment(&mut program.command);
        program
            .command
            .env("GOOGLE_CLOUD_PROJECT", PROJECT)
            .env("SUBSCRIPTION", feed::SUBSCRIPTION);
        let Some(until) = &block.until else {
            let done = output(program.command).await;
            assert!(done.status.success(), "{place}: {}", text_of(&done));
            return;
        };
        let before = self.feed.publish_a_failing_one().await;
        let mut running = Running(program.command.spawn().expect("the program starts"));
        self.feed.wait_for_the_failure(&before, place).await;
        self.feed.publish().await;
        wait_until(DEADLINE, &format!("{place} to do its work"), async || {
            let ended = running.0.try_wait().expect("the program can be asked");
            assert!(ended.is_none(), "{place}: the program has ended: {ended:?}");
            let row = self.client.query_one(until, &[]).await;
            row.unwrap_or_else(|error| panic!("{place}: {error:?}")).get::<_, bool>(0).then_some(())
        })
        .await;
    }

    async fn assert_what_it_promised(&self) {
        let other = TestClient::connect(&self.server.url("postgres")).await;
        let found = other.query(web::DATABASES, &[]).await.expect("the databases");
        for row in &found {
            let database: String = row.get(0);
            let there = TestClient::connect(&self.server.url(&database)).await;
            let open: String =
                there.query_one(web::OPEN_OBJECTS, &[]).await.expect("the rights").get(0);
            let meant = web::INTENDED_GRANTS.iter().find(|(path, _)| *path == self.path);
            let meant = meant.map_or("", |(_, rights)| rights);
            assert_eq!(open, meant, "{}: open to the internet in {database}", self.path);
        }
        match self.path.as_str() {
            "docs/operations.md" => self.assert_dispatch_is_operated().await,
            "docs/emulator.md" => self.assert_the_event_is_shown().await,
            "docs/producing.md" => self.assert_events_are_written().await,
            "docs/consuming.md" => self.assert_events_are_applied_once().await,
            "docs/consumer-operations.md" => self.assert_the_read_model_has_the_order().await,
            _ => {}
        }
    }

    /// Checks that each program that could run has placed and paid one order, and that the role
    /// `anon` cannot.
    async fn assert_events_are_written(&self) {
        for order in
            ["SELECT place_order('E-1', 1)", "INSERT INTO orders VALUES ('E-1', 'placed', 1)"]
        {
            let anybody = format!("SET ROLE anon; {order}");
            let refused =
                self.client.batch_execute(&anybody).await.expect_err("it is not for anon");
            assert_eq!(refused.code().map_or("", |it| it.code()), "42501", "{order}: {refused:?}");
        }
        self.client.batch_execute("RESET ROLE").await.expect("the role is set back");
        let sql = "SELECT aggregateid || ': ' || string_agg(event_type, ', ' ORDER BY version)
                     FROM app_outbox WHERE aggregateid LIKE '_-1' GROUP BY aggregateid";
        for row in self.client.query(sql, &[]).await.expect("the outbox") {
            let events: String = row.get(0);
            assert!(
                events.starts_with("D-1") || events.ends_with(": OrderPlaced, OrderPaid"),
                "{events}"
            );
        }
    }

    /// Checks that every published event is recorded once, although each was published twice, and
    /// that none is pending.
    async fn assert_events_are_applied_once(&self) {
        let sql = "SELECT count(*) FILTER (WHERE status = 'done'), count(*)
                     FROM app_inbox WHERE ordering_key = 'tested'";
        let row = self.client.query_one(sql, &[]).await.expect("the inbox");
        let (done, all): (i64, i64) = (row.get(0), row.get(1));
        assert_eq!(done, all, "not everything was applied in order");
        assert_eq!(all, self.feed.events_published());
    }

    /// Checks that the event is in the place that the page names.
    async fn assert_the_event_is_shown(&self) {
        let look =
            "curl -sf \"http://$CONTROL/published?topic=projects/local/topics/order.events\"";
        let shown = self.shell(look, "the last line of the page's recipe").await;
        assert!(shown.contains("\"data\":\"{\\\"total\\\": 42}\""), "{shown}");
    }

    /// Checks the whole page: from an empty database to a row that the page's unedited handler
    /// wrote.
    async fn assert_the_read_model_has_the_order(&self) {
        let client = TestClient::connect(&self.server.url("readmodel")).await;
        let sql = "SELECT concat_ws(' ', id, version, status, total) FROM orders";
        let row = client.query_one(sql, &[]).await.expect("one order");
        assert_eq!(row.get::<_, String>(0), "B-1 1 placed 12.50");
    }

    async fn assert_dispatch_is_operated(&self) {
        let sql = "SELECT status, last_error FROM app_outbox_dispatch WHERE event_id = 'ID'";
        let row = self.client.query_one(sql, &[]).await.expect("the row is there");
        assert_eq!(row.get::<_, String>("status"), "discarded");
        let history: String = row.get("last_error");
        for entry in ["retry asked for", "edited at", "discarded at"] {
            assert!(history.contains(entry), "`{entry}` is missing in {history}");
        }
        let due = "SELECT next_attempt_at IS NOT NULL FROM app_outbox_dispatch
                    WHERE event_id = 'behind'";
        let is_due: bool = self.client.query_one(due, &[]).await.expect("the row behind").get(0);
        assert!(is_due, "the row behind a discarded head is not due");
    }
}

#[tokio::test]
async fn an_event_that_is_given_up_by_hand_lets_its_key_go_on_without_gaps() {
    const PATH: &str = "docs/consuming.md";
    let Some(binary) = binary() else { return skip_unbuilt() };
    let Some(page) = Page::open(PATH, &binary).await else { return };
    for sql in inbox_migrations() {
        page.client.batch_execute(&sql).await.expect("the inbox's tables");
    }
    let (_, text) = pages().into_iter().find(|(path, _)| path == PATH).expect("the page");
    let blocks = blocks_of(PATH, &text);
    let with = |part: &str| blocks.iter().find(|block| block.text.contains(part)).expect("a block");
    for part in ["INSERT INTO app_inbox_consumer", "CREATE FUNCTION apply_orders"] {
        page.run(with(part)).await;
    }
    // One event per batch, because the page's handler reads only the newest event of a batch.
    for (n, data, result) in [
        (1, r#"{"status": "paid", "total": 1}"#, "done"),
        (2, "{}", "dead"),
        (3, r#"{"status": "paid", "total": 3}"#, "retrying"),
    ] {
        let batch = format!(
            "SELECT result FROM app_inbox_apply('balances', 1, 'apply_orders(app_inbox_event[])',
               ARRAY[jsonb_populate_record(NULL::app_inbox_message, jsonb_build_object(
                 'event_id', 'g{n}', 'event_type', 'OrderPaid', 'ordering_key', 'G-1', 'aggregate_id', 'G-1',
                 'version', {n}, 'commit_lsn', '0/{n}', 'tx_index', 0, 'attributes', '{{}}',
                 'data', '{data}'))], max_attempts => 1, on_gap => 'hold')"
        );
        let row = page.client.query_one(&batch, &[]).await.expect("a batch");
        assert_eq!(row.get::<_, String>(0), result, "version {n}");
    }
    let give_up = with("Give it up").text.replace("'e1'", "'g2'").replace("'A-17'", "'G-1'");
    page.client.batch_execute(&give_up).await.expect("the block of the page");
    let again = "SELECT string_agg(event_id || ' ' || result, ', ')
        FROM app_inbox_redeliver('balances', 1, 'apply_orders(app_inbox_event[])', on_gap => 'hold')";
    let row = page.client.query_one(again, &[]).await.expect("what waited");
    assert_eq!(row.get::<_, Option<String>>(0).as_deref(), Some("g3 done"));
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // An error is ignored: the program may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Returns `bash` in the root of the checkout, with the binary on its PATH and without other
/// configuration.
fn shell(script: &str, binary: &Path) -> Command {
    let dir = binary.parent().expect("the binary lies in a folder").to_string_lossy().into_owned();
    let mut command = Command::new("bash");
    let prelude = format!("set -euo pipefail\nexport PATH=\"{dir}:$PATH\"\n");
    command.args(["-c", &format!("{prelude}{script}")]).current_dir(root());
    command
}

/// Waits on a blocking thread, because the runtime serves the Pub/Sub that the command uses.
async fn output(mut command: Command) -> Output {
    let ended = tokio::task::spawn_blocking(move || command.output()).await;
    ended.expect("the command is waited for").expect("bash starts")
}

#[tokio::test]
async fn the_readmes_five_minutes_end_with_the_event_in_pubsub() {
    let Some(binary) = binary() else { return skip_unbuilt() };
    let Some(installation) = installation_or_skip() else { return };
    let server = PrivatePostgres::start(&installation, &[]).expect("a server starts");
    let (_, text) = pages().into_iter().find(|(path, _)| path == README).expect("the README");
    let start =
        blocks_of(README, &text).into_iter().find(|block| block.text.contains("walrelay run"));
    let start = start.expect("the README's start").text;

    // A reader has a finished build, a server at the usual address and free ports. This test
    // replaces them.
    let build = "make build && export PATH=\"$PWD/target/release:$PATH\"";
    let url = "postgresql://postgres:postgres@127.0.0.1:5432/postgres";
    let (grpc, control) = (free_port(), free_port());
    let replacements = [
        (build, "true"),
        (url, &server.url("postgres")),
        ("127.0.0.1:8085", &format!("127.0.0.1:{grpc}")),
        (
            "walrelay emulator --control-listen 127.0.0.1:8086",
            &format!(
                "walrelay emulator --listen 127.0.0.1:{grpc} --control-listen 127.0.0.1:{control}"
            ),
        ),
        ("127.0.0.1:8086", &format!("127.0.0.1:{control}")),
    ];
    let replaced = replacements.iter().fold(start, |steps, (this, that)| {
        assert!(steps.contains(this), "the README's start has no `{this}` any more");
        steps.replace(this, that)
    });
    let (steps, look) = replaced.split_once("# 5.").expect("step 5 of the README's start");
    let (_, look) = look.split_once('\n').expect("the command of step 5");

    // The programs that the block leaves running end when this test closes the pipe.
    let waits = format!("{steps}\necho READY >&2\ncat >/dev/null || true\nkill $(jobs -p)\nwait\n");
    let mut running = shell(&waits, &binary)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("bash starts");
    wait_until(DEADLINE, "the event of step 4 to be shown by step 5", async || {
        assert!(running.try_wait().expect("bash can be asked").is_none(), "a step failed");
        let shown = output(shell(look, &binary)).await;
        String::from_utf8_lossy(&shown.stdout).contains("\"A-1\"").then_some(())
    })
    .await;
    drop(running.stdin.take());
    let ended = async || running.try_wait().expect("bash can be asked");
    wait_until(DEADLINE, "the programs to end", ended).await;
}

/// Returns a port that is currently free, for a program that needs a port setting.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}
