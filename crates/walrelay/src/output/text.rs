//! Bytes, ages and words as people read them.

use pgoutput_parser::Lsn;

/// Escapes control characters, because those of a key must not move the reader's cursor.
pub(crate) fn visible(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_debug().collect() } else { vec![c] })
        .collect()
}

/// Cuts a text to this many characters, and marks the cut.
pub(crate) fn shortened(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    let kept: String = text.chars().take(characters.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// Formats bytes for people: `0 B`, `1.5 KiB`, `312 MiB`.
pub(crate) fn human_bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut tenths = u128::from(bytes) * 10;
    let mut shown = None;
    for unit in units {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1024;
        shown = Some(unit);
    }
    match shown {
        None => format!("{bytes} B"),
        Some(unit) if tenths < 100 => format!("{}.{} {unit}", tenths / 10, tenths % 10),
        Some(unit) => format!("{} {unit}", tenths / 10),
    }
}

/// Formats an age in its two largest units: `30 s`, `2 h 5 min`, `1 d 2 h`.
pub(crate) fn human_age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, ..) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// Formats an age with a fraction of a second, which is left out.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an age in seconds")]
pub(crate) fn whole_age(seconds: f64) -> String {
    human_age(seconds.max(0.0) as u64)
}

/// Quotes a text as one word of a shell.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Returns a position, or a dash.
pub(crate) fn lsn_or_dash(lsn: Option<Lsn>) -> String {
    lsn.map_or_else(|| "–".to_owned(), |lsn| lsn.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_unit_in_which_they_can_be_compared() {
        let cases: [(u64, &str); 7] = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (312 << 20, "312 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "15 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human_bytes(bytes), text);
        }
    }

    #[test]
    fn what_is_cut_is_marked() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöüß", 3), "äö…");
    }

    #[test]
    fn an_id_is_one_word_of_the_command() {
        assert_eq!(quoted("7b0c-1"), "7b0c-1");
        assert_eq!(quoted("it's; x"), "'it'\\''s; x'");
    }
}
