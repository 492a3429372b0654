//! Rows of JSON as comma-separated values.

use serde_json::{Map, Value};
use std::collections::HashSet;

/// Writes the rows, which are objects, with a header. The fields of nested objects are columns
/// `OUTER.INNER`; arrays are JSON. Columns are in the order of first appearance.
///
/// Source: RFC 4180.
pub(super) fn write(rows: &[Value], out: &mut Vec<u8>) {
    let rows: Vec<Vec<(String, &Value)>> = rows.iter().map(flatten).collect();
    let mut known = HashSet::new();
    let mut columns: Vec<&str> = Vec::new();
    for (name, _) in rows.iter().flatten() {
        if known.insert(name.as_str()) {
            columns.push(name);
        }
    }
    // An object that is null in some rows has its fields only in the others.
    let outer: HashSet<&str> =
        columns.iter().filter_map(|name| name.rsplit_once('.')).map(|(o, _)| o).collect();
    columns.retain(|name| !outer.contains(name));
    line(columns.iter().map(|name| (*name).to_owned()), out);
    for row in &rows {
        let cell = |column: &&str| {
            let found = row.iter().find(|(name, _)| name == column);
            found.map_or_else(String::new, |(_, value)| text(value))
        };
        line(columns.iter().map(cell), out);
    }
}

/// Writes an object whose values are not rows of one table: a line `table,name,field,value` for each
/// value. The elements of an array of objects are the rows of a table: `table` is the field of the
/// array, and `name` is the element's name, or its number where it has none. All other values have
/// neither. Empty arrays have no line.
pub(super) fn write_document(document: &Value, out: &mut Vec<u8>) {
    line(["table", "name", "field", "value"].map(str::to_owned).into_iter(), out);
    let mut values = |table: &str, name: &str, row: &Value| {
        for (field, value) in flatten(row) {
            if !is_table(value) && !is_empty(value) && (table.is_empty() || field != "name") {
                let cells = [table.to_owned(), name.to_owned(), field, text(value)];
                line(cells.into_iter(), out);
            }
        }
    };
    values("", "", document);
    for (table, rows) in flatten(document).iter().filter(|(_, value)| is_table(value)) {
        for (number, row) in rows.as_array().into_iter().flatten().enumerate() {
            let name = row.get("name").map_or_else(|| number.to_string(), text);
            values(table, &name, row);
        }
    }
}

/// Whether a value is an array of objects.
fn is_table(value: &Value) -> bool {
    value.as_array().is_some_and(|rows| rows.iter().any(Value::is_object))
}

/// Whether a value is an array without elements, which may be a table without rows.
fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

fn flatten(row: &Value) -> Vec<(String, &Value)> {
    let mut cells = Vec::new();
    if let Value::Object(fields) = row {
        add(fields, "", &mut cells);
    }
    cells
}

fn add<'a>(fields: &'a Map<String, Value>, prefix: &str, cells: &mut Vec<(String, &'a Value)>) {
    for (name, value) in fields {
        match value {
            Value::Object(inner) => add(inner, &format!("{prefix}{name}."), cells),
            _ => cells.push((format!("{prefix}{name}"), value)),
        }
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn line(cells: impl Iterator<Item = String>, out: &mut Vec<u8>) {
    for (number, cell) in cells.enumerate() {
        if number > 0 {
            out.push(b',');
        }
        if cell.contains([',', '"', '\n', '\r']) {
            out.push(b'"');
            out.extend_from_slice(cell.replace('"', "\"\"").as_bytes());
            out.push(b'"');
        } else {
            out.extend_from_slice(cell.as_bytes());
        }
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn fields_and_quotes() {
        let rows = [
            json!({"a": 1, "b": {"c": "x,\"y\"\n", "d": null}}),
            json!({"a": 2.5, "b": null, "e": [1, 2]}),
            json!({}),
        ];
        let mut out = Vec::new();
        super::write(&rows, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "a,b.c,b.d,e\r\n1,\"x,\"\"y\"\"\n\",,\r\n2.5,,,\"[1,2]\"\r\n,,,\r\n");
    }

    #[test]
    fn tables_of_a_document() {
        let document = json!({
            "events": 3,
            "time": {"first": 1},
            "kinds": [{"name": "a,b", "times": {"p50": 7}}, {"times": null}],
            "losses": ["x"],
            "tasks": [],
        });
        let mut out = Vec::new();
        super::write_document(&document, &mut out);
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let expected = [
            "table,name,field,value",
            ",,events,3",
            ",,losses,\"[\"\"x\"\"]\"",
            ",,time.first,1",
            "kinds,\"a,b\",times.p50,7",
            "kinds,1,times,",
        ];
        assert_eq!(lines, expected);
    }
}
