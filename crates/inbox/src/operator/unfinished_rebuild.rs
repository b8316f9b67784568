//! A rebuild that has begun and is not finished. The consumer's row records it, so that every
//! command finds it.

use tokio_postgres::Row;

/// A rebuild that is not finished.
#[derive(Debug, Clone, PartialEq)]
pub struct UnfinishedRebuild {
    /// The generation that the rebuild fills.
    pub generation: i32,
    /// The schema with the tables that the rebuild fills. `None`: it fills the live tables.
    pub schema: Option<String>,
    /// The age of the rebuild in seconds.
    pub seconds: f64,
}

impl UnfinishedRebuild {
    /// Reads a row whose columns from `first` on are the rebuild's generation, schema and age.
    pub(crate) fn of_row(row: &Row, first: usize) -> Option<Self> {
        Some(Self {
            generation: row.get::<_, Option<i32>>(first)?,
            schema: row.get(first + 1),
            seconds: row.get::<_, Option<f64>>(first + 2).unwrap_or_default().max(0.0),
        })
    }

    /// Returns whether the rebuild fills the live tables, which hold only a part of the events
    /// meanwhile.
    #[must_use]
    pub const fn is_in_place(&self) -> bool {
        self.schema.is_none()
    }

    /// Returns the state of the rebuild and the next step, for a person.
    #[must_use]
    pub fn report(&self) -> String {
        let Self { generation, schema, seconds } = self;
        let minutes = (seconds / 60.0).floor();
        let finish = "run the same rebuild again to finish it";
        match schema {
            None => format!(
                "a rebuild began {minutes} min ago and is not finished: the read model has a part of generation {generation}, \
                 and new events are not read; {finish}"
            ),
            Some(schema) => format!(
                "a side-by-side rebuild began {minutes} min ago and is not finished: schema {schema} has a part of \
                 generation {generation}, and the live read model is untouched; {finish}, or cancel it"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_the_tables_in_use_and_the_next_step() {
        let mut rebuild = UnfinishedRebuild { generation: 3, schema: None, seconds: 125.0 };
        let text = rebuild.report();
        assert!(text.contains("2 min ago") && text.contains("a part of generation 3"), "{text}");
        assert!(text.contains("run the same rebuild") && !text.contains("cancel"), "{text}");
        rebuild.schema = Some("fresh".into());
        let side_by_side = rebuild.report();
        assert!(side_by_side.contains("schema fresh"), "{side_by_side}");
        assert!(side_by_side.contains("untouched"), "{side_by_side}");
        assert!(side_by_side.ends_with("or cancel it"), "{side_by_side}");
    }
}
