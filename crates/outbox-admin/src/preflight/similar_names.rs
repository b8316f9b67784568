//! Suggests an existing name for a misspelled one.

/// Names that differ in more than a third of their letters do not match.
const DISTANCE_SHARE: usize = 3;

/// Number of letters that are compared. No name on the server is longer.
const NAME_CHARS_MAX: usize = 64;

/// Returns the message about a name that does not exist, with a similar name that does.
pub(super) fn missing(name: &str, names: &[String]) -> String {
    match resembling(name, names.iter().map(String::as_str)) {
        Some(meant) => format!("does not exist, but {meant} does"),
        None => "does not exist".to_owned(),
    }
}

/// Returns the most similar candidate, if any is similar.
fn resembling<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = name.chars().count().min(NAME_CHARS_MAX);
    let limit = (length / DISTANCE_SHARE).max(1);
    let near = candidates.into_iter().map(|candidate| (distance(name, candidate), candidate));
    near.filter(|(distance, _)| *distance <= limit).min().map(|(_, candidate)| candidate)
}

/// Counts letters to insert, remove or replace, and neighbours to swap, ignoring case.
fn distance(one: &str, other: &str) -> usize {
    let letters = |text: &str| -> Vec<char> {
        text.chars().take(NAME_CHARS_MAX).flat_map(char::to_lowercase).collect()
    };
    let (one, other) = (letters(one), letters(other));
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for (i, letter) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, opposite) in other.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(letter != opposite);
            let mut best = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            let is_swapped = i > 0 && j > 0 && one[i - 1] == *opposite && *letter == other[j - 1];
            if is_swapped {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_seen_through_and_other_names_are_not() {
        let there = ["walrelay", "orders_pub", "billing"];
        for (typed, meant) in [
            ("walrealy", Some("walrelay")),
            ("walrela", Some("walrelay")),
            ("Walrelay", Some("walrelay")),
            ("order_pub", Some("orders_pub")),
            ("shipping", None),
            ("", None),
        ] {
            assert_eq!(resembling(typed, there), meant, "{typed}");
        }
    }
}
