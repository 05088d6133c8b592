//! A table of a study, as Markdown and as CSV.

/// A table with its sentence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Names the CSV file.
    pub name: String,
    /// What it shows, in a sentence or two.
    pub says: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Too long for a document: only in the CSV file.
    pub long: bool,
}

impl Table {
    pub fn new(name: &str, says: &str, head: &[&str]) -> Self {
        let head = head.iter().map(|&head| head.to_owned()).collect();
        Self { name: name.to_owned(), says: says.to_owned(), head, ..Self::default() }
    }

    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule: Vec<&str> = self
            .head
            .iter()
            .enumerate()
            .map(|(at, _)| if at == 0 { "---" } else { "---:" })
            .collect();
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}\n\n{}|{}|\n{rows}", self.says, line(&self.head), rule.join("|"))
    }

    pub fn csv(&self) -> String {
        let cell = |text: &String| match text.contains([',', '"', '\n']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text.clone(),
        };
        let line = |cells: &Vec<String>| {
            format!("{}\n", cells.iter().map(cell).collect::<Vec<_>>().join(","))
        };
        std::iter::once(&self.head).chain(&self.rows).map(line).collect()
    }
}

/// The geometric mean; `None` of nothing.
pub fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (sum, count) =
        values.into_iter().fold((0.0, 0u32), |(sum, count), value| (sum + value.ln(), count + 1));
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

/// `97.3 %`, or a dash.
pub fn percent(share: Option<f64>) -> String {
    share.map_or_else(dash, |share| format!("{:.1} %", 100.0 * share))
}

/// `1.34x`, or a dash.
pub fn times(factor: Option<f64>) -> String {
    factor.map_or_else(dash, |factor| match factor {
        factor if factor >= 100.0 => format!("{factor:.0}x"),
        factor if factor >= 10.0 => format!("{factor:.1}x"),
        _ => format!("{factor:.2}x"),
    })
}

/// With three digits, or a dash.
pub fn number(value: Option<f64>) -> String {
    value.map_or_else(dash, |value| match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    })
}

fn dash() -> String {
    "–".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_escaped_in_both_forms() {
        let mut table = Table::new("t", "Says.", &["a", "b"]);
        table.rows.push(vec!["x|y".to_owned(), "1,\"2\"".to_owned()]);
        assert_eq!(table.markdown(), "Says.\n\n| a | b |\n|---|---:|\n| x\\|y | 1,\"2\" |\n");
        assert_eq!(table.csv(), "a,b\nx|y,\"1,\"\"2\"\"\"\n");
        assert_eq!((mean([2.0, 8.0]), mean([])), (Some(4.0), None));
        assert_eq!([times(Some(281.0)), times(Some(1.336)), times(None)], ["281x", "1.34x", "–"]);
        assert_eq!([percent(Some(0.5)), number(Some(12.34))], ["50.0 %", "12.3"]);
    }
}
