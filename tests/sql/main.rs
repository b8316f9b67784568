//! Every named statement of an `.sql` file is prepared on each installed version of Postgres.
//!
//! Parts are spliced into statements, so the tests of their modules run them.

use std::fs;
use std::path::Path;

use walrelay_inbox::migrate_inbox;
use walrelay_outbox_store::migrate;
use walrelay_pg_client::{Schema, own_table, set_schema};
use walrelay_testkit::postgres::TestDatabase;

/// The text below one heading.
struct NamedText {
    /// `name`, `part` or `script`.
    kind: String,
    /// The file, with the name.
    place: String,
    text: String,
}

/// Reads the `.sql` files under a folder.
fn read_folder(folder: &Path, found: &mut Vec<NamedText>) {
    for entry in fs::read_dir(folder).expect("a readable folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_folder(&path, found);
        } else if path.extension().is_some_and(|end| end == "sql") {
            read_file(&path, found);
        }
    }
}

fn read_file(path: &Path, found: &mut Vec<NamedText>) {
    let before = found.len();
    for line in fs::read_to_string(path).expect("a readable file").lines() {
        let heading = line.strip_prefix("-- ").and_then(|rest| rest.split_once(": "));
        match heading.filter(|(kind, _)| ["name", "part", "script"].contains(kind)) {
            Some((kind, name)) => found.push(NamedText {
                kind: kind.to_owned(),
                place: format!("{}, {name}", path.display()),
                text: String::new(),
            }),
            None => {
                let open = found[before..].last_mut().expect("a heading above the first statement");
                open.text.push_str(line);
                open.text.push('\n');
            }
        }
    }
}

/// Returns the statements and the scripts of all crates.
fn statements_and_scripts() -> (Vec<NamedText>, Vec<NamedText>) {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut found = Vec::new();
    for entry in fs::read_dir(crates).expect("the crates").flatten() {
        let source = entry.path().join("src");
        if source.is_dir() {
            read_folder(&source, &mut found);
        }
    }
    found.retain(|it| it.kind != "part");
    found.into_iter().partition(|it| it.kind == "name")
}

/// Returns the server's reason if it refuses a text.
fn refusal(it: &NamedText, done: Result<(), tokio_postgres::Error>) -> Option<String> {
    let error = done.err()?;
    let answer = error.as_db_error();
    let reason = answer.map_or_else(|| error.to_string(), ToString::to_string);
    Some(format!("{}: {reason}", it.place))
}

/// Returns the refusals of all statements. The tables are in the schema of
/// this process.
async fn refusals(schema: &Schema) -> Vec<String> {
    let (statements, scripts) = statements_and_scripts();
    assert!(statements.len() > 100 && !scripts.is_empty(), "{} statements", statements.len());
    let mut refused = Vec::new();
    let Some(database) = TestDatabase::create_or_skip().await else { return Vec::new() };
    let session = database.connect().await;
    migrate(&session, &[own_table("app_outbox")]).await.expect("an outbox");
    migrate_inbox(&session).await.expect("an inbox");
    // A script may change the settings of its session. Some create tables that statements use.
    for script in &scripts {
        let own = database.connect().await;
        let done = own.batch_execute(&schema.qualify(&script.text)).await;
        refused.extend(refusal(script, done));
    }
    for statement in &statements {
        let prepared = session.prepare(&schema.qualify(&statement.text)).await.map(drop);
        refused.extend(refusal(statement, prepared));
    }
    eprintln!("{} statements, schema {schema}", statements.len());
    refused
}

#[tokio::test]
async fn every_named_statement_is_prepared_also_in_another_schema() {
    let mut refused = refusals(&Schema::PUBLIC).await;
    // From here on `public` has no object of ours, so a name without its schema is refused.
    let other: Schema = "My-Events".parse().expect("a schema");
    set_schema(other.clone()).expect("no other schema was set");
    refused.extend(refusals(&other).await);
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}
