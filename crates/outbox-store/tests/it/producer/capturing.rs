//! `app_outbox_capture` writes one event for each change of a row, and no other event.

use tokio_postgres::error::SqlState;
use walrelay_testkit::postgres::TestClient;

use super::world::{ProducerDatabase, refused, world};

async fn with_orders(world: &ProducerDatabase, capture: &str) {
    world
        .run(&format!(
            "CREATE TABLE orders (id text PRIMARY KEY, status text, total numeric, secret text);
             {capture}"
        ))
        .await;
}

const CHOSEN: &str = "SELECT app_outbox_capture('orders', 'order', 'id', ARRAY['status', 'total'])";

#[tokio::test]
async fn each_change_of_a_row_is_an_event_with_the_chosen_columns() {
    let Some(world) = world().await else { return };
    with_orders(&world, CHOSEN).await;
    world
        .run(
            "INSERT INTO orders VALUES ('1', 'new', 3.50, 'x'), ('2', 'new', 1, 'y');
             UPDATE orders SET status = 'paid' WHERE id = '1';
             INSERT INTO orders VALUES ('1', 'sent') ON CONFLICT (id) DO UPDATE SET status = excluded.status;
             DELETE FROM orders WHERE id = '1'",
        )
        .await;

    assert_eq!(
        world.outbox().await,
        [
            r#"order 1 inserted 1 {"id": "1", "total": 3.50, "status": "new"}"#,
            r#"order 2 inserted 1 {"id": "2", "total": 1, "status": "new"}"#,
            r#"order 1 updated 2 {"id": "1", "total": 3.50, "status": "paid"}"#,
            r#"order 1 updated 3 {"id": "1", "total": 3.50, "status": "sent"}"#,
            r#"order 1 deleted 4 {"id": "1", "total": 3.50, "status": "sent"}"#,
        ]
    );
}

#[tokio::test]
async fn a_change_of_nothing_that_is_published_is_no_event() {
    let Some(world) = world().await else { return };
    with_orders(&world, CHOSEN).await;
    world.run("INSERT INTO orders VALUES ('1', 'new', 3, 'x')").await;
    world
        .run(
            "UPDATE orders SET secret = 'z';
             UPDATE orders SET status = status;
             UPDATE orders SET status = 'lost' WHERE false;
             BEGIN; UPDATE orders SET status = 'undone'; ROLLBACK",
        )
        .await;
    assert_eq!(world.outbox().await.len(), 1);
    world.run("UPDATE orders SET status = NULL").await;
    let last = world.outbox().await.pop();
    assert_eq!(last.unwrap(), r#"order 1 updated 2 {"id": "1", "total": 3, "status": null}"#);
}

#[tokio::test]
async fn a_changed_key_is_a_delete_and_an_insert() {
    let Some(world) = world().await else { return };
    with_orders(&world, CHOSEN).await;
    world.run("INSERT INTO orders VALUES ('b', 'new')").await;
    for id in ["c", "a"] {
        world.run(&format!("UPDATE orders SET id = '{id}', status = 'moved'")).await;
    }
    let events: Vec<String> =
        world.outbox().await.iter().map(|e| e.split(" {").next().unwrap().to_owned()).collect();
    // One statement locks its aggregates in sorted order.
    assert_eq!(
        events,
        [
            "order b inserted 1",
            "order b deleted 2",
            "order c inserted 1",
            "order a inserted 1",
            "order c deleted 2"
        ]
    );
}

#[tokio::test]
async fn truncate_is_refused() {
    let Some(world) = world().await else { return };
    with_orders(&world, CHOSEN).await;
    let error = world.refused("TRUNCATE orders").await;
    assert_eq!(error.code(), &SqlState::RESTRICT_VIOLATION);
    assert_eq!(
        error.message(),
        "TRUNCATE of public.orders is refused: its rows are captured one by one"
    );
}

#[tokio::test]
async fn truncate_of_one_partition_is_refused_and_inheritance_children_are() {
    let Some(world) = world().await else { return };
    world
        .run(
            "CREATE TABLE orders (id text PRIMARY KEY) PARTITION BY LIST (id);
             CREATE TABLE orders_a PARTITION OF orders FOR VALUES IN ('a') PARTITION BY LIST (id);
             CREATE TABLE orders_a_a PARTITION OF orders_a FOR VALUES IN ('a');
             CREATE TABLE orders_b PARTITION OF orders FOR VALUES IN ('b');
             SELECT app_outbox_capture('orders', 'order', 'id');
             INSERT INTO orders VALUES ('a'), ('b');
             CREATE TABLE orders_c PARTITION OF orders FOR VALUES IN ('c');
             SELECT app_outbox_capture('orders', 'order', 'id');
             INSERT INTO orders VALUES ('c')",
        )
        .await;
    for table in ["orders", "orders_a", "orders_a_a", "orders_b", "orders_c"] {
        let error = world.refused(&format!("TRUNCATE {table}")).await;
        assert_eq!(error.code(), &SqlState::RESTRICT_VIOLATION, "{table}");
    }
    assert_eq!(world.outbox().await.len(), 3);

    world
        .run("CREATE TABLE parents (id text PRIMARY KEY); CREATE TABLE child () INHERITS (parents)")
        .await;
    let error = world.refused("SELECT app_outbox_capture('parents', 'parent', 'id')").await;
    assert_eq!(error.code(), &SqlState::WRONG_OBJECT_TYPE);
}

#[tokio::test]
async fn a_captured_row_has_the_same_text_in_every_session() {
    let Some(world) = world().await else { return };
    world
        .run(
            "CREATE TABLE samples (id text PRIMARY KEY, f float8, f4 float4, b bytea, i interval, at timestamptz, r daterange);
             SELECT app_outbox_capture('samples', 'sample', 'id')",
        )
        .await;
    let values = "0.1::float8 + 0.2, 0.1::float4 + 0.2::float4, '\\xff00', '1 year 2 days', '2026-01-02 03:04:05+00',
        '[2026-01-02,2026-02-03)'";
    world.run(&format!("INSERT INTO samples VALUES ('s', {values})")).await;
    let insert = format!("INSERT INTO samples VALUES ('s', {values})");
    world
        .run(&format!(
            "DELETE FROM samples; SET extra_float_digits = -3; SET intervalstyle = 'sql_standard';
             SET bytea_output = 'escape'; SET timezone = 'Asia/Kathmandu'; {insert};
             SET datestyle = 'German'; UPDATE samples SET id = 's'; DELETE FROM samples"
        ))
        .await;
    let events = world.outbox().await;
    let payload = |event: &str| event.split_once('{').map(|(_, payload)| payload.to_owned());
    let first = payload(&events[0]).expect("a payload");
    assert!(first.contains("0.30000000000000004") && first.contains("+00:00"), "{first}");
    for event in &events {
        assert_eq!(payload(event).as_ref(), Some(&first), "{event}");
    }
}

#[tokio::test]
async fn without_chosen_columns_the_whole_row_is_published() {
    let Some(world) = world().await else { return };
    with_orders(&world, "SELECT app_outbox_capture('orders', 'order', 'id')").await;
    world
        .run(
            "ALTER TABLE orders ADD COLUMN later int DEFAULT 7;
             INSERT INTO orders VALUES ('1', 'new', 2, 'x')",
        )
        .await;
    assert_eq!(
        world.outbox().await,
        [
            r#"order 1 inserted 1 {"id": "1", "later": 7, "total": 2, "secret": "x", "status": "new"}"#
        ]
    );
    // A second call with columns replaces the triggers.
    world.run(CHOSEN).await;
    world.run("UPDATE orders SET secret = 'y'").await;
    assert_eq!(world.outbox().await.len(), 1);
}

#[tokio::test]
async fn a_column_that_is_gone_is_an_error_and_not_a_null() {
    let Some(world) = world().await else { return };
    with_orders(&world, CHOSEN).await;
    world.run("ALTER TABLE orders RENAME total TO amount").await;
    let error = world.refused("INSERT INTO orders VALUES ('1', 'new')").await;
    assert_eq!(error.code(), &SqlState::UNDEFINED_COLUMN);
    assert!(error.message().contains("publishes column total"), "{error}");
    for call in [
        "SELECT app_outbox_capture('orders', 'order', 'number')",
        "SELECT app_outbox_capture('orders', 'order', 'id', ARRAY['total'])",
    ] {
        assert_eq!(world.refused(call).await.code(), &SqlState::UNDEFINED_COLUMN);
    }
}

#[tokio::test]
async fn what_cannot_be_a_message_fails_the_business_transaction() {
    let Some(world) = world().await else { return };
    with_orders(&world, CHOSEN).await;
    for (values, code) in [
        ("'1', repeat('x', 9900000)", SqlState::PROGRAM_LIMIT_EXCEEDED),
        ("'', 'new'", SqlState::INVALID_PARAMETER_VALUE),
    ] {
        let error = world.refused(&format!("INSERT INTO orders VALUES ({values})")).await;
        assert_eq!(error.code(), &code);
    }
    assert_eq!(world.text("SELECT count(*)::text FROM orders").await, "0");
}

#[tokio::test]
async fn a_trigger_made_by_hand_wrongly_says_how_it_is_made() {
    let Some(world) = world().await else { return };
    for trigger in [
        "BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION app_outbox_capture('order', 'id')",
        "AFTER INSERT ON orders FOR EACH STATEMENT EXECUTE FUNCTION app_outbox_capture('order', 'id')",
        "AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION app_outbox_capture('order')",
    ] {
        with_orders(&world, &format!("CREATE TRIGGER capture {trigger}")).await;
        let error = world.refused("INSERT INTO orders VALUES ('1', 'new')").await;
        assert_eq!(error.code(), &SqlState::E_R_I_E_TRIGGER_PROTOCOL_VIOLATED, "{error}");
        assert!(error.hint().unwrap().contains("SELECT app_outbox_capture("));
        world.run("DROP TABLE orders").await;
    }
}

#[tokio::test]
async fn whoever_may_change_the_table_needs_no_right_on_the_outbox() {
    let Some(world) = world().await else { return };
    with_orders(&world, CHOSEN).await;
    world
        .run(
            "DO $$ BEGIN
               PERFORM pg_advisory_xact_lock(4711);
               IF to_regrole('outbox_browser') IS NULL THEN CREATE ROLE outbox_browser LOGIN; END IF;
             END $$;
             GRANT INSERT ON orders TO outbox_browser",
        )
        .await;
    let browser = TestClient::as_role(&world.database, "outbox_browser").await;
    browser.run("INSERT INTO orders VALUES ('1', 'new')").await;
    assert_eq!(world.outbox().await.len(), 1);
    // The role cannot write an event directly.
    for sql in [
        "SELECT app_outbox_emit('order', '1', 'forged', '{}')",
        "CREATE TEMPORARY TABLE mine (id text);
         CREATE TRIGGER t AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION app_outbox_capture('order', 'id')",
    ] {
        assert_eq!(refused(&browser, sql).await.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    }
    world.run("DROP OWNED BY outbox_browser").await;
}
