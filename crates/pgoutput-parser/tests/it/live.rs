//! Decodes the stream of each Postgres on this machine and compares it with the rows written.

use pgoutput_parser::{Change, Column, Decoder, Position};
use walrelay_testkit::postgres::{TestDatabase, installation_or_skip};

/// Values that are awkward in one layer or another, as SQL.
const VALUES: &[&str] = &[
    "''",
    "NULL",
    "'plain'",
    "E'quote '' backslash \\\\ newline \\n tab \\t'",
    "'grüße, 世界, \u{1F980}'",
    "repeat('long ', 20000)",
    "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 500) n)",
];

#[tokio::test]
async fn every_server_version_is_decoded_to_what_was_written() {
    if installation_or_skip().is_none() {
        return;
    }
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    write_rows(&database).await;
    compare(&database).await;
}

async fn write_rows(database: &TestDatabase) {
    let client = database.client();
    // A slot cannot be created in a transaction that has written, so it gets one of its own.
    let table =
        "CREATE TABLE live (n bigserial PRIMARY KEY, tx bigint DEFAULT txid_current(), value text);
                 CREATE PUBLICATION live FOR TABLE live WITH (publish = 'insert')";
    client.batch_execute(table).await.expect("create table and publication");
    let name = database.name();
    let slot = format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')");
    client.batch_execute(&slot).await.expect("create the slot");
    for value in VALUES {
        // One transaction has several rows and one that is rolled back. The other has one row.
        let several = format!(
            "BEGIN;
             INSERT INTO live (value) VALUES ({value}), ({value});
             SAVEPOINT before; INSERT INTO live (value) VALUES ('taken back'); ROLLBACK TO before;
             INSERT INTO live (value) VALUES ({value});
             UPDATE live SET value = value;
             COMMIT"
        );
        client.batch_execute(&several).await.expect("insert several rows");
        let one = format!("INSERT INTO live (value) VALUES ({value})");
        client.batch_execute(&one).await.expect("insert one row");
    }
}

async fn compare(database: &TestDatabase) {
    let written = "SELECT n::text, tx, value FROM live ORDER BY live.n";
    let written = database.client().query(written, &[]).await.expect("read the table");
    let peek = format!(
        "SELECT data FROM pg_logical_slot_peek_binary_changes('{}', NULL, NULL,
         'proto_version', '1', 'publication_names', 'live')",
        database.name()
    );
    let sent = database.client().query(&peek, &[]).await.expect("read the slot");
    let sent: Vec<Vec<u8>> = sent.iter().map(|row| row.get(0)).collect();

    let mut written = written.iter();
    let mut decoder = Decoder::new();
    let (mut last, mut last_tx, mut commits) = (None::<Position>, None::<i64>, 0);
    for data in &sent {
        match decoder.decode(data).expect("decode what the server sent") {
            Change::Insert(insert) => {
                let row = written.next().expect("no more rows than were committed");
                let (n, tx, value): (&str, i64, Option<&str>) =
                    (row.get(0), row.get(1), row.get(2));
                let [decoded_n, decoded_value] = insert.tuple.pick(&[0, usize::MAX, 1]);
                assert_eq!(decoded_n, Some(Column::Text(n.as_bytes())));
                let value = value.map_or(Column::Null, |value| Column::Text(value.as_bytes()));
                assert!(decoded_value == Some(value), "row {n} has another value");

                let expected_index = match last {
                    Some(last) if last_tx == Some(tx) => last.tx_index + 1,
                    Some(_) | None => 0,
                };
                assert_eq!(insert.position.tx_index, expected_index, "row {n}");
                assert!(last < Some(insert.position), "row {n} is not behind {last:?}");
                (last, last_tx) = (Some(insert.position), Some(tx));
            }
            Change::Commit(commit) => {
                assert!(commit.end_lsn > commit.commit_lsn);
                commits += 1;
            }
            Change::Begin(_) => {}
            Change::Relation(relation) => assert_eq!(relation.name, "live"),
            Change::Type(_)
            | Change::Origin(_)
            | Change::Update(_)
            | Change::Delete(_)
            | Change::Truncate(_)
            | Change::Message(_) => panic!("not published: {data:?}"),
        }
    }
    assert!(written.next().is_none(), "every committed row was sent");
    assert_eq!(commits, 2 * VALUES.len());
}

#[tokio::test]
async fn a_column_of_a_domain_has_the_type_below_it() {
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    let (client, name) = (database.client(), database.name());
    let table = "CREATE DOMAIN bytes AS bytea; CREATE DOMAIN upper AS bytes; CREATE TYPE kind AS ENUM ('a');
        CREATE TABLE live (a upper, b timestamptz, c kind, d bytes); CREATE PUBLICATION live FOR TABLE live";
    client.batch_execute(table).await.expect("create table and publication");
    let slot = format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')");
    client.batch_execute(&slot).await.expect("create the slot");
    client.batch_execute("INSERT INTO live (c) VALUES ('a')").await.expect("insert a row");
    let peek = format!(
        "SELECT data, 'kind'::regtype::oid FROM pg_logical_slot_peek_binary_changes('{name}', NULL, NULL,
         'proto_version', '1', 'publication_names', 'live')"
    );
    let sent = client.query(&peek, &[]).await.expect("read the slot");
    let mut decoder = Decoder::new();
    let mut types = Vec::new();
    for row in &sent {
        let data: Vec<u8> = row.get(0);
        if let Change::Relation(relation) =
            decoder.decode(&data).expect("decode what the server sent")
        {
            types = relation.columns.iter().map(|column| column.type_oid).collect();
        }
    }
    let kind: u32 = sent[0].get(1);
    assert_eq!(types, [17, 1184, kind, 17]);
}
