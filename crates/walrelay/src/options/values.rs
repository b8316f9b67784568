//! Parsers of option values. An error states the allowed values and never repeats the value,
//! because the caller shows the value unless it may be a secret.

use std::any::TypeId;
use std::fmt::Display;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use clap::Arg;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use pgoutput_parser::{Lsn, Position};
use tracing_subscriber::filter::Targets;
use walrelay_core::limits::is_topic_name;
use walrelay_core::{AttributeColumns, ColumnAliases, Template, WalBudgetLimit};
use walrelay_outbox_admin::archive::{ArchiveLocation, LocationError};
use walrelay_pg_client::Secret;
use walrelay_pubsub::Endpoint;
use walrelay_pubsub::parse_rfc3339;

use super::units::{parse_duration, parse_size};

pub(crate) type Parsed<T> = Result<T, String>;

/// Longest Postgres identifier in bytes (NAMEDATALEN - 1). Postgres silently truncates longer ones.
const IDENTIFIER_BYTES_MAX: usize = 63;

/// Longest consumer name. A longer name is a mistake, and may not fit into an index.
const CONSUMER_BYTES_MAX: usize = 200;

/// Longest accepted age. No WAL and no recorded time is older.
const AGE_MAX: Duration = Duration::from_hours(24 * 3650);

/// Smallest WAL budget in bytes. A smaller budget would spill rows at every short delay, because a
/// WAL segment has 16 MiB.
const WAL_BUDGET_MIN: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub usize);

/// A duration, or none for `never`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OrNever(pub Option<Duration>);

/// An address to listen on, or none for `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OrOff(pub Option<SocketAddr>);

/// The names of a column that a table may lack. None for an empty text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OptionalColumn(pub Option<ColumnAliases>);

/// The name of a consumer, and the URL of its database.
#[derive(Debug, Clone)]
pub(crate) struct NamedDatabase {
    pub consumer: String,
    pub url: Secret,
}

/// A SQL function, or the URL of a service, which may hold a password.
#[derive(Debug, Clone)]
pub(crate) struct HandlerName(pub String);

/// Returns whether values of an argument may contain a password, so that even a refused one is
/// never shown.
pub(crate) fn may_hold_secret(argument: &Arg) -> bool {
    let parser = argument.get_value_parser().type_id();
    let types = [
        TypeId::of::<Secret>(),
        TypeId::of::<NamedDatabase>(),
        TypeId::of::<Endpoint>(),
        TypeId::of::<ArchiveLocation>(),
        TypeId::of::<HandlerName>(),
    ];
    types.into_iter().any(|secret| parser == secret)
}

/// Returns whether a text may contain a password, whichever option it was given to by mistake.
pub(crate) fn looks_secret(text: &str) -> bool {
    let has_user = || text.split_once('@').is_some_and(|(user, _)| user.contains(':'));
    let words = ["://", "password", "whsec_"];
    words.iter().any(|word| text.to_ascii_lowercase().contains(word)) || has_user()
}

/// Returns a parser of one of a few words.
pub(crate) fn word<T: Copy + Send + Sync + 'static>(
    words: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let find = |text: String| words.iter().find(|(word, _)| *word == text);
    PossibleValuesParser::new(words.iter().map(|(word, _)| *word))
        .map(move |text| find(text).expect("clap has compared the word").1)
}

/// Returns a parser of a duration in a range.
pub(crate) fn duration(
    low: &'static str,
    high: &'static str,
) -> impl Fn(&str) -> Parsed<Duration> + Clone + Send + Sync + 'static {
    let limit = |text| parse_duration(text).expect("a limit is a duration");
    let range = limit(low)..=limit(high);
    move |text| {
        parse_duration(text).filter(|duration| range.contains(duration)).ok_or_else(|| {
            format!("a duration in ms, s, m, h or d, such as 30s, from {low} to {high}")
        })
    }
}

pub(crate) fn region(text: &str) -> Parsed<String> {
    let text = text.trim();
    let is_known_form = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    match text.contains('-') && text.chars().all(is_known_form) {
        true => Ok(text.to_owned()),
        false => Err("a region, such as europe-west1".to_owned()),
    }
}

/// Returns a parser of a duration in a range, or of `never`, which an empty text also means.
pub(crate) fn duration_or_never(
    low: &'static str,
    high: &'static str,
) -> impl Fn(&str) -> Parsed<OrNever> + Clone + Send + Sync + 'static {
    let some = duration(low, high);
    move |text| match text.trim() {
        "never" | "" => Ok(OrNever(None)),
        text => match some(text) {
            Ok(duration) => Ok(OrNever(Some(duration))),
            Err(allowed) => Err(format!("{allowed}, or never")),
        },
    }
}

pub(crate) fn size(
    low: &'static str,
    high: &'static str,
) -> impl Fn(&str) -> Parsed<Bytes> + Clone + Send + Sync + 'static {
    let limit = |text| parse_size(text).expect("a limit is a size");
    let range = limit(low)..=limit(high);
    move |text| {
        let size = parse_size(text).filter(|size| range.contains(size));
        size.map(|size| Bytes(usize::try_from(size).unwrap_or(usize::MAX))).ok_or_else(|| {
            let form = "a size in B, kB, KiB, MB, MiB, GB or GiB, such as 64MiB";
            format!("{form}, from {low} to {high}")
        })
    }
}

pub(crate) fn count<N>(
    low: N,
    high: N,
) -> impl Fn(&str) -> Parsed<N> + Clone + Send + Sync + 'static
where
    N: FromStr + PartialOrd + Copy + Display + Send + Sync + 'static,
{
    move |text| {
        let number = text.trim().parse().ok().filter(|number| (low..=high).contains(number));
        number.ok_or_else(|| format!("a number from {low} to {high}"))
    }
}

pub(crate) fn shard_count(text: &str) -> Parsed<u32> {
    let count = text.trim().parse().ok();
    let count = count.filter(|count| walrelay_outbox_store::Shard::is_count(*count));
    count.ok_or_else(|| "a power of two, from 1 to 64".to_owned())
}

/// Wraps text that may contain a password.
pub(crate) fn secret(text: &str) -> Parsed<Secret> {
    Ok(Secret::new(text))
}

pub(crate) fn handler_name(text: &str) -> Parsed<HandlerName> {
    Ok(HandlerName(text.to_owned()))
}

pub(crate) fn named_database(text: &str) -> Parsed<NamedDatabase> {
    // Without a name, the first `=` is that of a parameter of the URL.
    match text.split_once('=').filter(|(name, _)| !name.is_empty() && !name.contains("://")) {
        Some((consumer, url)) => {
            Ok(NamedDatabase { consumer: consumer.to_owned(), url: Secret::new(url) })
        }
        None => {
            Err("a consumer and its database, NAME=postgresql://user@host:port/database".into())
        }
    }
}

pub(crate) fn archive_location(text: &str) -> Parsed<ArchiveLocation> {
    text.parse().map_err(|error: LocationError| error.to_string())
}

pub(crate) fn regional_endpoint(text: &str) -> Parsed<Endpoint> {
    Endpoint::regional(text).map_err(|error| error.to_string())
}

/// Parses anything that has a text form, after removing spaces around it.
pub(crate) fn text_form<T>(text: &str) -> Parsed<T>
where
    T: FromStr<Err: Display>,
{
    text.trim().parse().map_err(|error: T::Err| error.to_string())
}

/// Checks JSON and returns it unchanged, because a parsed number could lose digits. The database
/// decides which numbers and which depth it stores.
pub(crate) fn json(text: &str) -> Parsed<String> {
    let parsed: Result<serde::de::IgnoredAny, _> = serde_json::from_str(text);
    parsed.map(|_| text.to_owned()).map_err(|error| format!("a JSON value; {error}"))
}

/// Parses a log filter: a level, or a list of `target=level`.
pub(crate) fn log_filter(text: &str) -> Parsed<String> {
    let allowed = "error, warn, info, debug, trace, or target=level pairs with commas";
    checked(text, is_filter, allowed)
}

fn is_filter(text: &str) -> bool {
    // The parser takes an unknown level for a target, and would then log only that target.
    let is_every_part_one = text.trim().is_empty() || text.split(',').all(ends_in_a_level);
    is_every_part_one && text.trim().parse::<Targets>().is_ok()
}

/// Returns whether a directive is a level, or ends in one after the path of a module and an equals sign.
fn ends_in_a_level(directive: &str) -> bool {
    let (module, level) = directive.rsplit_once('=').unwrap_or(("", directive));
    let is_path = module.chars().all(|letter| letter.is_alphanumeric() || "_-: ".contains(letter));
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    is_path && levels.iter().any(|known| known.eq_ignore_ascii_case(level.trim()))
}

pub(crate) fn slot_name(text: &str) -> Parsed<String> {
    checked(text, is_slot_name, "1 to 63 lower-case letters, digits and underscores")
}

/// Parses the name of an anchor, which is a part of a slot's name.
pub(crate) fn anchor_name(text: &str) -> Parsed<String> {
    checked(text, is_slot_name, "lower-case letters, digits and underscores")
}

/// Parses the name of a publication, taken verbatim.
pub(crate) fn identifier(text: &str) -> Parsed<String> {
    checked(text, is_identifier, "1 to 63 bytes")
}

pub(crate) fn consumer_name(text: &str) -> Parsed<String> {
    let fits = |name: &str| {
        (1..=CONSUMER_BYTES_MAX).contains(&name.len())
            && !name.contains(char::is_control)
            && !name.contains("://")
    };
    checked(text, fits, &format!("1 to {CONSUMER_BYTES_MAX} bytes of text, and no URL"))
}

/// Parses a project id. Empty means none.
pub(crate) fn project(text: &str) -> Parsed<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    checked(text, |text| text.chars().all(fits), "a project id, such as my-project")
}

/// Parses the source of CloudEvents. Empty means none.
pub(crate) fn cloudevents_source(text: &str) -> Parsed<String> {
    // Pub/Sub's limit for an attribute's value is 1,024 bytes.
    let fits = |uri: &str| uri.len() <= 1024 && !uri.contains(char::is_whitespace);
    checked(text, fits, "a URI reference of at most 1024 bytes")
}

/// Parses an ordering key, which must not be empty.
pub(crate) fn ordering_key(text: &str) -> Parsed<String> {
    let allowed = "an ordering key; events without one have no order to be rebuilt in";
    checked(text, |text| !text.is_empty(), allowed)
}

pub(crate) fn reason(text: &str) -> Parsed<String> {
    checked(
        text.trim(),
        |text| !text.is_empty(),
        "give a reason, for the next operator who finds the row",
    )
}

pub(crate) fn replay_id(text: &str) -> Parsed<String> {
    let is_id = |id: &str| id.len() == 8 && id.bytes().all(|b| b.is_ascii_hexdigit());
    checked(text, is_id, "the id that the replay printed, eight hex digits")
}

/// Parses the template of an ordering key.
pub(crate) fn template(text: &str) -> Parsed<Template> {
    Template::parse(text).map_err(|error| error.to_string())
}

pub(crate) fn topic_template(text: &str) -> Parsed<Template> {
    if text.trim().is_empty() {
        return Err("a topic, columns in braces".to_owned());
    }
    let parsed = template(text)?;
    if parsed.columns().next().is_none() {
        topic_name(text)?;
    }
    Ok(parsed)
}

/// Parses the name of a topic, either full or only its last part.
pub(crate) fn topic_name(text: &str) -> Parsed<String> {
    let in_some_project = format!("projects/p/topics/{text}");
    let full = if text.starts_with("projects/") { text } else { &in_some_project };
    let allowed = "3 to 255 letters, digits and -_.~+%, beginning with a letter and not with goog";
    checked(text, |_| is_topic_name(full), allowed)
}

/// Parses a topic to create, or `true` or `false`, as the bare flag means.
pub(crate) fn topic_to_create(text: &str) -> Parsed<String> {
    match text.trim() {
        switch @ ("true" | "false") => Ok(switch.to_owned()),
        name => topic_name(name),
    }
}

/// Parses the names of a column that every table has.
pub(crate) fn column(text: &str) -> Parsed<ColumnAliases> {
    let names = ColumnAliases::parse(text);
    match names.iter().next().is_some() && names.iter().all(is_identifier) {
        true => Ok(names),
        false => Err("the name of a column, 1 to 63 bytes, or several with commas".to_owned()),
    }
}

/// Parses the names of a column that a table may lack. Empty means that it has no such column.
pub(crate) fn optional_column(text: &str) -> Parsed<OptionalColumn> {
    match text {
        "" => Ok(OptionalColumn(None)),
        text => column(text).map(|names| OptionalColumn(Some(names))),
    }
}

/// Parses the columns that become attributes.
pub(crate) fn attribute_columns(text: &str) -> Parsed<AttributeColumns> {
    let columns = AttributeColumns::parse(text).map_err(|error| error.to_string())?;
    let fits = columns.iter().all(|(column, _)| is_identifier(column));
    match fits {
        true => Ok(columns),
        false => Err("names of columns of 1 to 63 bytes".to_owned()),
    }
}

pub(crate) fn wal_budget(text: &str) -> Parsed<WalBudgetLimit> {
    match text.trim() {
        "auto" => Ok(WalBudgetLimit::Auto),
        "off" => Ok(WalBudgetLimit::Off),
        size => parse_size(size)
            .filter(|bytes| *bytes >= WAL_BUDGET_MIN)
            .map(WalBudgetLimit::Bytes)
            .ok_or_else(|| "`auto`, `off`, or a size from 1MiB, as in 2GiB".to_owned()),
    }
}

pub(crate) fn listen_or_off(text: &str) -> Parsed<OrOff> {
    match text.trim() {
        "off" => Ok(OrOff(None)),
        text => match listen(text) {
            Ok(address) => Ok(OrOff(Some(address))),
            Err(_) => Err("an address and a port, such as 0.0.0.0:8080, or off".to_owned()),
        },
    }
}

pub(crate) fn listen(text: &str) -> Parsed<SocketAddr> {
    let address = text.trim().replacen("localhost:", "127.0.0.1:", 1).parse();
    address.map_err(|_| "an address and a port, such as 127.0.0.1:8080".to_owned())
}

/// Parses the LSN of a transaction. An index of a row is refused rather than ignored.
pub(crate) fn lsn(text: &str) -> Parsed<Lsn> {
    text.parse().map_err(|_| match text.parse::<Position>() {
        // Log messages and `dispatch list` show positions of rows.
        Ok(Position { commit_lsn, .. }) => {
            format!("{commit_lsn}, without the row's index: a transaction is taken whole")
        }
        Err(_) => "a position such as 16/B374D848".to_owned(),
    })
}

/// Parses the LSN of a transaction, or the position of a row in it.
pub(crate) fn transaction(text: &str) -> Parsed<Lsn> {
    // Log messages, `dispatch list` and the demo show row positions, which contain the commit
    // position.
    let position = text.parse::<Position>().map(|position| position.commit_lsn);
    text.parse()
        .or(position)
        .map_err(|_| "a position such as 16/B374D848 or 16/B374D848#3".to_owned())
}

/// Parses a position. A commit LSN alone means the position after all rows of its transaction.
pub(crate) fn behind(text: &str) -> Parsed<Position> {
    let whole = |commit_lsn: Lsn| Position { commit_lsn, tx_index: i32::MAX.unsigned_abs() };
    text.parse()
        .or_else(|_| text.parse().map(whole))
        .map_err(|_| "a position such as 16/B374D848#3, or 16/B374D848".to_owned())
}

/// Parses a time, or how long ago it was.
pub(crate) fn time(text: &str) -> Parsed<SystemTime> {
    let ago = parse_duration(text).filter(|ago| *ago <= AGE_MAX);
    let time = match ago {
        Some(ago) => SystemTime::now().checked_sub(ago),
        None => parse_rfc3339(text),
    };
    time.ok_or_else(|| {
        "a time such as 2026-01-31T12:00:00Z, or how long ago, such as 6h".to_owned()
    })
}

/// Parses an event id. The position in it may be written in either form.
pub(crate) fn event_id(text: &str) -> Parsed<String> {
    Ok(match text.rsplit_once('@') {
        Some((event, position))
            if position.contains('#') && position.parse::<Position>().is_ok() =>
        {
            format!("{event}@{}", position.replace('#', "/"))
        }
        Some(_) | None => text.to_owned(),
    })
}

pub(crate) fn is_slot_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    (1..=IDENTIFIER_BYTES_MAX).contains(&text.len()) && text.bytes().all(fits)
}

/// Returns whether this can name a publication or a column, taken verbatim.
pub(crate) fn is_identifier(text: &str) -> bool {
    (1..=IDENTIFIER_BYTES_MAX).contains(&text.len()) && !text.contains('\0')
}

fn checked(text: &str, fits: impl FnOnce(&str) -> bool, allowed: &str) -> Parsed<String> {
    if fits(text) { Ok(text.to_owned()) } else { Err(allowed.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_every_digit_of_its_numbers() {
        let payload = r#"{"total": 12.50, "id": 12345678901234567890123}"#;
        assert_eq!(json(payload).unwrap(), payload);
        assert!(json("{").is_err());
    }

    #[test]
    fn an_id_with_a_position_is_found_in_either_spelling() {
        assert_eq!(event_id("e-1@16/B374D848#3").unwrap(), "e-1@16/B374D848/3");
        for id in ["e-1", "", "e-1@16/B374D848/3", "a@b#3", "e-1@REPLAY"] {
            assert_eq!(event_id(id).unwrap(), id);
        }
    }

    #[test]
    fn a_transaction_alone_is_a_place_behind_all_its_rows() {
        let place = |text| behind(text).map(|place| (place.commit_lsn.as_u64(), place.tx_index));
        assert_eq!(place("0/10#3"), Ok((16, 3)));
        assert_eq!(place("0/10/3"), Ok((16, 3)));
        assert_eq!(place("0/10"), Ok((16, 0x7FFF_FFFF)));
        assert!(place("latest").is_err());
    }

    #[test]
    fn slot_names_are_lower_case_letters_digits_and_underscores() {
        assert!(slot_name("walrelay_2").is_ok());
        for wrong in ["Walrelay", "wal-relay", "", &"x".repeat(64)] {
            assert!(slot_name(wrong).is_err(), "{wrong}");
        }
    }
}
