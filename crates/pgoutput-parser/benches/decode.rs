//! Measures how many inserts per second the decoder turns into columns, on one core.
//!
//! `cargo bench -p pgoutput-parser` measures. `cargo test` runs the same code over a tiny input, so
//! that the benchmark keeps compiling and working. The hash covers every value and position: two
//! runs with different hashes did not do the same work.

#![expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use pgoutput_parser::{
    Begin, Change, Column, Commit, DecodeError, Decoder, Frame, Lsn, PgTimestamp, RelationColumn,
    ReplicaIdentity, XLogData, encode,
};

const RELATION: u32 = 16_385;
const ROWS_PER_TRANSACTION: u64 = 10;
/// Few enough rows to stay in the CPU cache, like bytes just read from a socket.
const ROWS: u64 = 1_000;
/// The fastest of these rounds counts. On a shared machine, other processes slow the rest down.
const ROUNDS: u32 = 7;

fn main() -> Result<(), DecodeError> {
    let has = |wanted: &str| std::env::args().any(|argument| argument == wanted);
    // A test runner lists the tests before it runs any.
    if has("--list") {
        if !has("--ignored") {
            println!("decodes_a_tiny_input: test");
        }
        return Ok(());
    }
    let measuring = has("--bench");
    let passes = if measuring { 500 } else { 1 };
    let stream = outbox_stream(ROWS);
    let bytes: usize = stream.iter().map(Vec::len).sum();
    println!("{ROWS} outbox rows in {bytes} bytes, {ROWS_PER_TRANSACTION} per transaction");

    for (name, read) in [
        ("frame + decode", decode_only as fn(&[Vec<u8>]) -> Result<u64, DecodeError>),
        ("frame + decode + hash of every column", decode_and_read),
    ] {
        let mut fastest = Duration::MAX;
        let mut hash = 0;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for _ in 0..passes {
                hash = read(black_box(&stream))?;
            }
            fastest = fastest.min(start.elapsed());
        }
        let per_second = u128::from(ROWS * passes) * 1_000_000_000 / fastest.as_nanos().max(1);
        println!("{name}: {per_second} rows/s, {fastest:?}, hash {hash:016x}");
    }
    Ok(())
}

fn decode_only(stream: &[Vec<u8>]) -> Result<u64, DecodeError> {
    let mut decoder = Decoder::new();
    let mut hash = FNV_START;
    for copy_data in stream {
        let Frame::XLogData(frame) = Frame::parse(copy_data)? else { continue };
        if let Change::Insert(insert) = decoder.decode(frame.data)? {
            hash = mix(hash, u64::from(insert.position.tx_index));
            black_box(insert.tuple);
        }
    }
    Ok(hash)
}

fn decode_and_read(stream: &[Vec<u8>]) -> Result<u64, DecodeError> {
    let mut decoder = Decoder::new();
    let mut hash = FNV_START;
    for copy_data in stream {
        let Frame::XLogData(frame) = Frame::parse(copy_data)? else { continue };
        if let Change::Insert(insert) = decoder.decode(frame.data)? {
            hash = mix(hash, insert.position.commit_lsn.as_u64());
            hash = insert.tuple.columns().fold(hash, mix_column);
        }
    }
    Ok(hash)
}

/// Hashes only the length and both ends of a value. Hashing all bytes would measure the hash
/// itself.
fn mix_column(hash: u64, column: Column<'_>) -> u64 {
    let value = match column {
        Column::Null => return mix(hash, 1),
        Column::UnchangedToast => return mix(hash, 2),
        Column::TooLarge { .. } => return mix(hash, 3),
        Column::Text(value) | Column::Binary(value) => value,
    };
    let ends = value.first().zip(value.last());
    let (first, last) = ends.map_or((0, 0), |(first, last)| (*first, *last));
    let len = u64::try_from(value.len()).unwrap_or(u64::MAX);
    mix(mix(hash, len), u64::from(first) << 8 | u64::from(last))
}

const FNV_START: u64 = 0xCBF2_9CE4_8422_2325;

fn mix(hash: u64, value: u64) -> u64 {
    (hash ^ value).wrapping_mul(0x0100_0000_01B3)
}

/// Builds the bytes that a walsender sends for rows of the outbox table, about 390 bytes each.
fn outbox_stream(rows: u64) -> Vec<Vec<u8>> {
    let at = PgTimestamp::from_micros(843_000_000_000_000);
    let mut stream = Vec::new();
    let mut frame = |lsn: u64, data: Vec<u8>| {
        let (wal_start, wal_end) = (Lsn::new(lsn), Lsn::new(lsn));
        stream.push(encode::xlog_data(&XLogData { wal_start, wal_end, sent_at: at, data: &data }));
    };
    let columns = columns();
    let payload = format!("{{\"name\": \"{}\"}}", "x".repeat(220));
    for row in 0..rows {
        let transaction = row / ROWS_PER_TRANSACTION + 1;
        let (commit_lsn, end_lsn) = (transaction * 10_000, transaction * 10_000 + 48);
        if row % ROWS_PER_TRANSACTION == 0 {
            let final_lsn = Lsn::new(commit_lsn);
            frame(commit_lsn, encode::begin(&Begin { final_lsn, commit_timestamp: at, xid: 7 }));
        }
        if row == 0 {
            let identity = ReplicaIdentity::Default;
            let data = encode::relation(RELATION, "public", "app_outbox", identity, &columns);
            frame(0, data);
        }
        let id = format!("{row:08x}-8a3f-4c1d-9b2e-0123456789ab");
        let aggregate = format!("video-{}", row % 1_000);
        let version = row.to_string();
        let values = [
            Column::Text(id.as_bytes()),
            Column::Text(b"video"),
            Column::Text(aggregate.as_bytes()),
            Column::Text(b"video.published"),
            Column::Text(version.as_bytes()),
            Column::Text(b"1"),
            Column::Text(payload.as_bytes()),
            Column::Null,
            Column::Text(b"2026-09-18 10:21:35.123456+00"),
        ];
        frame(commit_lsn - 100, encode::insert(RELATION, &values));
        if (row + 1) % ROWS_PER_TRANSACTION == 0 || row + 1 == rows {
            let (commit_lsn, end_lsn) = (Lsn::new(commit_lsn), Lsn::new(end_lsn));
            let commit = Commit { commit_lsn, end_lsn, commit_timestamp: at };
            frame(end_lsn.as_u64(), encode::commit(&commit));
        }
    }
    stream
}

fn columns() -> Vec<RelationColumn> {
    let named = [
        ("id", 2950),
        ("aggregatetype", 25),
        ("aggregateid", 25),
        ("event_type", 25),
        ("version", 20),
        ("schema_version", 23),
        ("payload", 3802),
        ("headers", 3802),
        ("occurred_at", 1184),
    ];
    let column = |(name, type_oid): (&str, u32)| RelationColumn {
        name: name.to_owned(),
        type_oid,
        type_modifier: -1,
        is_key: name == "id",
    };
    named.into_iter().map(column).collect()
}
