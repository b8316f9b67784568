//! Draws a bar chart as SVG.

use std::fmt::Write as _;

use crate::statistics::number;

const WIDTH: f64 = 760.0;
const LABEL_WIDTH: f64 = 240.0;
const VALUE_WIDTH: f64 = 90.0;
const ROW_HEIGHT: usize = 28;
const HEAD_HEIGHT: usize = 44;

/// One bar.
#[derive(Debug, Clone)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
}

/// Returns the chart. The longest bar fills the width. The first bar is highlighted.
pub(crate) fn svg(title: &str, bars: &[Bar]) -> String {
    let height = HEAD_HEIGHT + ROW_HEIGHT * bars.len() + 12;
    let longest = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"14\" role=\"img\">\n\
         <title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"12\" y=\"26\" font-size=\"16\" font-weight=\"bold\" fill=\"#1f2937\">{title}</text>\n",
        title = escaped(title)
    );
    for (index, bar) in bars.iter().enumerate() {
        let top = HEAD_HEIGHT + ROW_HEIGHT * index;
        let length = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) * bar.value / longest;
        let color = if index == 0 { "#2563eb" } else { "#9ca3af" };
        let row = writeln!(
            text,
            "<text x=\"12\" y=\"{base}\" fill=\"#1f2937\">{label}</text>\
             <rect x=\"{LABEL_WIDTH}\" y=\"{top}\" width=\"{length:.1}\" height=\"20\" fill=\"{color}\"/>\
             <text x=\"{end:.1}\" y=\"{base}\" fill=\"#1f2937\">{value}</text>",
            base = top + 15,
            label = escaped(&bar.label),
            end = LABEL_WIDTH + length + 8.0,
            value = number(bar.value),
        );
        row.expect("a String accepts every write");
    }
    text + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_fills_the_width_and_text_is_escaped() {
        let bars =
            [Bar { label: "a & b".into(), value: 100.0 }, Bar { label: "c".into(), value: 50.0 }];
        let text = svg("rows < second", &bars);
        assert!(text.contains("width=\"430.0\"") && text.contains("width=\"215.0\""), "{text}");
        assert!(text.contains("a &amp; b") && text.contains("rows &lt; second"), "{text}");
    }
}
