//! A rebuild that has begun and is not finished. The consumer's row records it, so that every
//! command finds it.

use tokio_postgres::Row;

/// A rebuild that is not finished.
#[derive(Debug, Clone, PartialEq)]
pub struct UnfinishedRebuild {
    /// The generation that the rebuild fills.
    pub generation: i32,
    /// The schema with the tables that the rebuild fills.
    pub schema: String,
    /// The age of the rebuild in seconds.
    pub seconds: f64,
}

impl UnfinishedRebuild {
    /// Reads a row whose columns from `first` on are the rebuild's generation, schema and age.
    #[must_use]
    pub fn of_row(row: &Row, first: usize) -> Option<Self> {
        Some(Self {
            generation: row.get::<_, Option<i32>>(first)?,
            schema: row.get::<_, Option<String>>(first + 1)?,
            seconds: row.get::<_, Option<f64>>(first + 2).unwrap_or_default().max(0.0),
        })
    }

    /// The next step of a person.
    pub const NEXT_STEP: &str = "run the same rebuild again to finish it, or cancel it";

    /// Returns the state of the rebuild.
    #[must_use]
    pub fn state(&self) -> String {
        let Self { generation, schema, seconds } = self;
        let minutes = (seconds / 60.0).floor();
        format!(
            "a rebuild began {minutes} min ago and is not finished: schema {schema} has a part of generation {generation}, \
             and the live read model is untouched"
        )
    }

    /// Returns the state of the rebuild and the next step.
    #[must_use]
    pub fn report(&self) -> String {
        format!("{}; {}", self.state(), Self::NEXT_STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_the_tables_in_use_and_the_next_step() {
        let schema = "fresh".to_owned();
        let text = UnfinishedRebuild { generation: 3, schema, seconds: 125.0 }.report();
        assert!(text.contains("2 min ago") && text.contains("a part of generation 3"), "{text}");
        assert!(text.contains("schema fresh"), "{text}");
        assert!(text.contains("untouched"), "{text}");
        assert!(text.contains("run the same rebuild"), "{text}");
        assert!(text.ends_with("or cancel it"), "{text}");
    }
}
