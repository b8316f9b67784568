//! Messages for the tests, as a subscriber would pass them, written as SQL.

use std::fmt::Write as _;

/// One message. Its position and its default id follow from its number.
#[derive(Clone)]
pub(crate) struct Message {
    id: String,
    key: String,
    version: Option<i64>,
    position: Option<(u64, u32)>,
    system: Option<&'static str>,
    occurred_at: &'static str,
    attributes: String,
    data: Vec<u8>,
}

/// Creates event `e{number}` of this key, from the transaction that committed at `number`. The
/// number is also the amount that the summing handlers add.
pub(crate) fn event(number: u32, key: &str) -> Message {
    Message {
        id: format!("e{number}"),
        key: key.to_owned(),
        version: Some(number.into()),
        position: Some((number.into(), 0)),
        system: None,
        occurred_at: "2026-11-21T10:00:00Z",
        attributes: format!(r#"{{"event_id": "e{number}", "colour": "red"}}"#),
        data: format!(r#"{{"amount": {number}}}"#).into_bytes(),
    }
}

impl Message {
    pub(crate) fn id(self, id: &str) -> Self {
        Self { id: id.to_owned(), ..self }
    }

    pub(crate) fn version(self, version: impl Into<Option<i64>>) -> Self {
        Self { version: version.into(), ..self }
    }

    pub(crate) fn at(self, commit_lsn: u64, tx_index: u32) -> Self {
        Self { position: Some((commit_lsn, tx_index)), ..self }
    }

    /// Removes the position, as for another publisher than walrelay.
    pub(crate) fn without_position(self) -> Self {
        Self { position: None, ..self }
    }

    pub(crate) fn of_system(self, system: &'static str) -> Self {
        Self { system: Some(system), ..self }
    }

    /// Sets a time in any form that Postgres reads, such as `tomorrow`.
    pub(crate) fn occurred_at(self, occurred_at: &'static str) -> Self {
        Self { occurred_at, ..self }
    }

    pub(crate) fn attributes(self, attributes: &str) -> Self {
        Self { attributes: attributes.to_owned(), ..self }
    }

    pub(crate) fn data(self, data: impl Into<Vec<u8>>) -> Self {
        Self { data: data.into(), ..self }
    }

    /// Sets data on which the handlers of [`super::world`] fail with this SQLSTATE.
    pub(crate) fn failing(self, sqlstate: &str) -> Self {
        self.data(format!(r#"{{"fails": "{sqlstate}"}}"#))
    }

    fn sql(&self) -> String {
        let number = |value: Option<i64>| value.map_or("NULL".to_owned(), |v| v.to_string());
        let (lsn, index) =
            self.position.map_or(("NULL".to_owned(), "NULL".to_owned()), |(l, i)| {
                (format!("'{:X}/{:X}'::pg_lsn", l >> 32, l & 0xFFFF_FFFF), i.to_string())
            });
        let system = self.system.map_or("NULL".to_owned(), |s| format!("'{s}'"));
        let mut data = String::new();
        for byte in &self.data {
            // Writing to a String cannot fail.
            let _ok = write!(data, "{byte:02x}");
        }
        format!(
            "ROW('{id}', 'placed', 'order', '{key}', '{key}', {version}, 1, '{occurred_at}', {lsn}, \
             {index}, {system}, 'm-{id}', '2026-11-21T10:00:01Z', '{attributes}', '\\x{data}')\
             ::app_inbox_message",
            id = self.id,
            key = self.key,
            occurred_at = self.occurred_at,
            version = number(self.version),
            attributes = self.attributes,
        )
    }
}

pub(crate) fn array(messages: &[Message]) -> String {
    let rows: Vec<String> = messages.iter().map(Message::sql).collect();
    format!("ARRAY[{}]::app_inbox_message[]", rows.join(", "))
}
