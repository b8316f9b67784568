//! The definition of an outbox, which `walrelay init` records. Every other command reads the record, so
//! none can forget a table or name those of another outbox.

use std::fmt;

use serde_json::{Map, Value};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};
use walrelay_core::{AttributeColumns, ColumnAliases, ColumnNames, Field};
use walrelay_pg_client::{QualifiedName, quote_literal, sql, table_literals};
use walrelay_pg_replication::read_system_identifier;

use crate::outbox::Outbox;
use crate::shard::Shard;
use crate::store_error::StoreError;

/// The name of the columns that become attributes, beside those of the fields.
const ATTRIBUTES: &str = "attributes";

/// The outbox of one relay, which all its shards share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// The slot, without the number of a shard.
    pub slot: String,
    /// The publication, without the number of a shard.
    pub publication: String,
    /// The tables that producers insert into, by their names of today.
    pub tables: Vec<QualifiedName>,
    pub columns: ColumnNames,
    /// The names on record of renamed tables that another table has now. Producers may write to either.
    pub taken_names: Vec<String>,
}

impl Definition {
    /// Returns the definition of an outbox, or of one of its shards.
    #[must_use]
    pub fn of(outbox: &Outbox, columns: &ColumnNames) -> Self {
        let whole = outbox.of_shard(Shard::WHOLE);
        Self {
            slot: whole.slot,
            publication: whole.publication,
            tables: whole.tables,
            columns: columns.clone(),
            taken_names: Vec::new(),
        }
    }

    /// Describes a table on record that was renamed and whose name another table has. None if each
    /// table is certain.
    #[must_use]
    pub fn ambiguity(&self) -> Option<String> {
        let name = self.taken_names.first()?;
        Some(format!("table {name} was renamed, and another table has its name"))
    }

    /// Describes the first difference from the definition on record. None if there is no difference.
    #[must_use]
    pub fn difference_from(&self, recorded: &Self) -> Option<String> {
        if let Some(ambiguity) = recorded.ambiguity() {
            return Some(ambiguity);
        }
        let mut named = (self.tables.clone(), recorded.tables.clone());
        named.0.sort();
        named.1.sort();
        let difference = |what, here: &dyn fmt::Display, there: &dyn fmt::Display| {
            Some(format!("{what} {here} here, and {there} on record"))
        };
        if self.publication != recorded.publication {
            return difference("the publication is", &self.publication, &recorded.publication);
        }
        if named.0 != named.1 {
            return difference("the tables are", &names(&self.tables), &names(&recorded.tables));
        }
        let changed = Field::ALL.into_iter().find_map(|field| {
            let (here, there) = (self.columns.of(field), recorded.columns.of(field));
            (here != there).then(|| (field, text_of(here), text_of(there)))
        });
        if let Some((field, here, there)) = changed {
            return difference(&*format!("the column of the {field} is"), &here, &there);
        }
        let columns = [self, recorded].map(|it| it.columns.attributes.to_string());
        let [here, there] =
            columns.map(|text| if text.is_empty() { "none".to_owned() } else { text });
        (here != there)
            .then(|| format!("the columns of attributes are {here} here, and {there} on record"))
    }

    /// SQL that records the definition, as one statement that is safe to run again. It refuses a slot
    /// that exists and has no definition in this schema, because that may be another outbox's.
    #[must_use]
    pub fn record_sql(&self) -> String {
        let literal = quote_literal;
        let columns = literal(&columns_json(&self.columns).to_string());
        // spliced: the names of the definition, in a script that takes no parameters.
        sql!("definition.sql", "record")
            .replace("$slot", &literal(&self.slot))
            .replace("$publication", &literal(&self.publication))
            .replace("$tables", &table_literals(&self.tables))
            .replace("$columns", &columns)
    }
}

fn text_of(names: Option<&ColumnAliases>) -> String {
    names.map_or_else(|| "none".to_owned(), ToString::to_string)
}

fn names(tables: &[QualifiedName]) -> String {
    tables.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn columns_json(columns: &ColumnNames) -> Value {
    let pair = |field: Field| {
        let names = columns.of(field).map_or(Value::Null, |names| names.to_string().into());
        (field.option().to_owned(), names)
    };
    let attributes = (ATTRIBUTES.to_owned(), columns.attributes.to_string().into());
    Field::ALL.into_iter().map(pair).chain([attributes]).collect::<Map<_, _>>().into()
}

fn columns_of_json(json: &Value) -> ColumnNames {
    let attributes = json.get(ATTRIBUTES).and_then(Value::as_str).unwrap_or_default();
    ColumnNames::named(
        |field| json.get(field.option())?.as_str().map(ColumnAliases::parse),
        AttributeColumns::parse(attributes).unwrap_or_default(),
    )
}

/// Reads the definition of the relay with this slot, given without the number of a shard. None if there
/// is none in the schema.
///
/// A table that was renamed has its name of today. In another database, such as a restored copy, the
/// object ids on record mean nothing, and tables are found by name.
pub async fn read_definition(
    client: &Client,
    slot: &str,
) -> Result<Option<Definition>, StoreError> {
    Ok(read_definitions(client).await?.into_iter().find(|found| found.slot == slot))
}

/// Reads the definitions of all relays of the schema, in the order of their slots.
pub async fn read_definitions(client: &Client) -> Result<Vec<Definition>, StoreError> {
    let failed = || StoreError::sql("read app_outbox_definition");
    let is_there = client.query_typed_one(sql!("definition.sql", "is_there"), &[]).await;
    if !is_there.map_err(failed())?.get::<_, bool>("is_there") {
        return Ok(Vec::new());
    }
    let system = read_system_identifier(client).await?;
    let rows = client
        .query_typed(sql!("definition.sql", "read"), &[(&system, Type::TEXT)])
        .await
        .map_err(failed())?;
    Ok(rows.iter().map(definition).collect())
}

/// Returns the slot of a new outbox whose slot is not named: `walrelay`, or `walrelay_DATABASE` if a slot
/// of another database has that name. Names of slots are those of the whole server.
pub async fn free_slot(client: &Client) -> Result<String, StoreError> {
    let row = client.query_typed_one(sql!("definition.sql", "free_slot"), &[]).await;
    Ok(row.map_err(StoreError::sql("read the names of the slots"))?.get("slot"))
}

fn definition(row: &Row) -> Definition {
    let (schemas, names): (Vec<String>, Vec<String>) = (row.get("schemas"), row.get("names"));
    let tables = schemas.into_iter().zip(names);
    Definition {
        slot: row.get("slot"),
        publication: row.get("publication"),
        tables: tables.map(|(schema, name)| QualifiedName::new(schema, name)).collect(),
        taken_names: row.get("taken_names"),
        columns: columns_of_json(&serde_json::from_str(row.get("columns")).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_tables(names: &[&str]) -> Definition {
        Definition {
            slot: "walrelay".to_owned(),
            publication: "walrelay".to_owned(),
            tables: names.iter().map(|name| QualifiedName::new("public", *name)).collect(),
            columns: ColumnNames::default(),
            taken_names: Vec::new(),
        }
    }

    #[test]
    fn columns_have_the_same_names_after_they_were_recorded() {
        let columns = ColumnNames {
            version: None,
            payload: ColumnAliases::parse("payload,body"),
            attributes: AttributeColumns::parse("tenant_id,region:geo").unwrap(),
            ..ColumnNames::default()
        };
        assert_eq!(columns_of_json(&columns_json(&columns)), columns);
    }

    #[test]
    fn definitions_differ_by_publication_tables_and_columns_but_not_by_order() {
        let recorded = of_tables(&["a", "b"]);
        assert_eq!(of_tables(&["b", "a"]).difference_from(&recorded), None);
        let fewer = of_tables(&["a"]).difference_from(&recorded).unwrap();
        assert!(fewer.contains("public.b on record"), "{fewer}");
        let publication = Definition { publication: "p".to_owned(), ..recorded.clone() };
        assert!(publication.difference_from(&recorded).unwrap().contains("publication"));
        let taken_names = vec!["public.a".to_owned()];
        let replaced = Definition { taken_names, ..recorded.clone() };
        assert!(recorded.difference_from(&replaced).unwrap().contains("public.a was renamed"));
        let columns = ColumnNames { version: None, ..ColumnNames::default() };
        let columns = Definition { columns, ..recorded.clone() };
        let text = columns.difference_from(&recorded).unwrap();
        assert_eq!(text, "the column of the version is none here, and version on record");
    }

    #[test]
    fn definitions_differ_by_the_columns_of_attributes() {
        let recorded = of_tables(&["a"]);
        let attributes = AttributeColumns::parse("tenant_id,region:geo").unwrap();
        let columns = ColumnNames { attributes, ..ColumnNames::default() };
        let text = recorded.difference_from(&Definition { columns, ..recorded.clone() }).unwrap();
        assert_eq!(
            text,
            "the columns of attributes are none here, and tenant_id:tenant_id,region:geo on record"
        );
    }
}
