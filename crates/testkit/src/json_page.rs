//! Compares the structs of `-o json` with the page docs/reference/json.md.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/reference/json.md");

/// Asserts that the page's section of a command has a table, and an example if any, with exactly the
/// fields of the struct. In `sample` every optional field has a value, and every list has an
/// element.
pub fn assert_documented(command: &str, sample: &impl Serialize) {
    let section = section(command).unwrap_or_else(|| panic!("json.md: no ## {command}"));
    let fields = fields(&serde_json::to_value(sample).expect("the struct is JSON"));
    let example = section.split("```json\n").nth(1).and_then(|text| text.split("```").next());
    if let Some(example) = example {
        let example: Value = serde_json::from_str(example)
            .unwrap_or_else(|error| panic!("json.md, {command}: the example is not JSON: {error}"));
        assert_eq!(self::fields(&example), fields, "json.md, {command}: fields of the example");
    }
    let table: BTreeSet<String> = section.lines().filter_map(field_of_row).collect();
    assert_eq!(table, fields, "json.md, {command}: fields of the table");
}

fn section(command: &str) -> Option<&'static str> {
    PAGE.split("\n## ").skip(1).find(|section| section.lines().next() == Some(command))
}

/// Returns the field of a row of a table, as in "| `slot` | text | The slot. |".
fn field_of_row(line: &str) -> Option<String> {
    line.strip_prefix("| `")?.split_once('`').map(|(field, _)| field.to_owned())
}

/// Returns the paths of all fields: `slot`, `tables[].rows`.
fn fields(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    add_fields("", value, &mut found);
    found
}

fn add_fields(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, inner) in object {
                let field = format!("{path}.{name}").trim_start_matches('.').to_owned();
                add_fields(&field, inner, found);
                found.insert(field);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                add_fields(&format!("{path}[]"), element, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_section_of_the_page_is_compared_with_a_struct() {
        let mut sources = String::new();
        let shell = Path::new(env!("CARGO_MANIFEST_DIR")).join("../walrelay/src");
        read_sources(&shell, &mut sources);
        for heading in PAGE.split("\n## ").skip(1).filter_map(|section| section.lines().next()) {
            let call = format!("assert_documented(\"{heading}\"");
            assert!(sources.contains(&call), "json.md: no test calls {call}, …)");
        }
    }

    fn read_sources(folder: &Path, sources: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read_sources(&path, sources);
            } else if path.extension().is_some_and(|it| it == "rs") {
                sources.push_str(&fs::read_to_string(&path).unwrap());
            }
        }
    }

    #[test]
    fn paths_name_the_fields_of_lists_and_of_nested_objects() {
        let value = serde_json::json!({ "slot": null, "tables": [{ "rows": 1 }], "a": { "b": 2 } });
        let expected = ["a", "a.b", "slot", "tables", "tables[].rows"];
        assert_eq!(fields(&value), expected.map(str::to_owned).into());
        let list = serde_json::json!([{ "slot": "a" }]);
        assert_eq!(fields(&list), ["[].slot".to_owned()].into());
    }
}
