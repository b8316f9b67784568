//! A rebuild that was begun and is not finished: its note is in the consumer's row, where everybody finds it.

use tokio_postgres::Row;

/// Its columns, of the consumer's row `c`. By their names in JSON, because inboxes of an earlier version lack them.
pub(crate) const COLUMNS: &str = "(to_jsonb(c) ->> 'rebuilding')::int4, to_jsonb(c) ->> 'rebuilding_in', \
     extract(epoch FROM now() - (to_jsonb(c) ->> 'rebuilding_since')::timestamptz)::float8";

/// The assignments that take the note away.
pub(crate) const NONE: &str =
    "rebuilding = NULL, rebuilding_in = NULL, rebuilding_since = NULL, updated_at = now()";

/// A rebuild that is not finished.
#[derive(Debug, Clone, PartialEq)]
pub struct UnfinishedRebuild {
    /// The generation that it fills.
    pub generation: i32,
    /// The schema that it fills beside the tables of the handler; `None`: it fills those tables.
    pub schema: Option<String>,
    /// How long ago it began.
    pub seconds: f64,
}

impl UnfinishedRebuild {
    /// From [`COLUMNS`], the first of which is this one.
    pub(crate) fn of_row(row: &Row, first: usize) -> Option<Self> {
        Some(Self {
            generation: row.get::<_, Option<i32>>(first)?,
            schema: row.get(first + 1),
            seconds: row.get::<_, Option<f64>>(first + 2).unwrap_or_default().max(0.0),
        })
    }

    /// Whether the handler's own tables hold only a part meanwhile.
    #[must_use]
    pub const fn is_in_place(&self) -> bool {
        self.schema.is_none()
    }

    /// What it is, and the next step.
    #[must_use]
    pub fn report(&self, consumer: &str) -> String {
        let Self { generation, schema, seconds } = self;
        let minutes = (seconds / 60.0).floor();
        let finish = "run the same `walrelay consumer rebuild` again to finish it";
        match schema {
            None => format!(
                "a rebuild began {minutes} min ago and is not finished: the read model has a part of generation {generation}, \
                 and new events are not read; {finish}"
            ),
            Some(schema) => format!(
                "a rebuild beside began {minutes} min ago and is not finished: schema {schema} has a part of generation \
                 {generation}, and the read model in use is untouched; {finish}, or `walrelay consumer rebuild {consumer} \
                 --abandon` to give it up"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_is_in_use_and_which_command_is_next() {
        let mut rebuild = UnfinishedRebuild { generation: 3, schema: None, seconds: 125.0 };
        let text = rebuild.report("billing");
        assert!(text.contains("2 min ago") && text.contains("a part of generation 3"), "{text}");
        assert!(
            text.contains("walrelay consumer rebuild") && !text.contains("--abandon"),
            "{text}"
        );
        rebuild.schema = Some("fresh".into());
        let beside = rebuild.report("billing");
        assert!(beside.contains("schema fresh") && beside.contains("untouched"), "{beside}");
        assert!(beside.contains("walrelay consumer rebuild billing --abandon"), "{beside}");
    }
}
