//! Histogram of row lengths.

use super::dots::{self, Dot, Dots};
use crate::charts::{Label, Scale, thinned};
use crate::domain::profile::LengthBin;
use crate::http::dashboard::format;

/// Up to this length every length has its own bin; beyond it there are eight bins per doubling, as in `LengthBin`.
const SINGLE: u64 = 16;
/// Base line of the dots: this picture is as high as the two level profiles together.
const BOTTOM: f64 = 336.0;
/// The width is divided into at least this many bins, which limits the width of a dot.
const FEWEST: f64 = 16.0;
/// Dots wider than this have a gap between them.
const GAP_FROM: f64 = 5.0;

/// Number of rows by row length; `None` if there are no rows. `longest` is exact, whereas the last bin may end beyond it.
pub fn of(bins: &[LengthBin], longest: u64) -> Option<Dots> {
    let (first, last) = (bins.first()?, bins.last()?);
    // The axis starts at zero if there are short rows, so that most matrices have the same axis.
    let from = if first.most <= SINGLE { -1.0 } else { place(first.most) - 1.0 };
    let to = place(last.most).max(from + FEWEST);
    let across = Scale::linear(from, to, dots::LEFT, dots::RIGHT);
    let most = bins.iter().map(|bin| bin.rows).max().unwrap_or(1);
    let up = dots::counts(most, BOTTOM);
    let dot = |bin: &LengthBin| {
        let (left, right) = (across.at(place(bin.most) - 1.0), across.at(place(bin.most)));
        let gap = if right - left > GAP_FROM { 1.0 } else { 0.0 };
        let y = up.at(bin.rows as f64);
        Dot { x: left, width: right - left - gap, y, soft_y: y, title: title(bin) }
    };
    let ticks = lengths().take_while(|length| place(*length) <= to);
    let x_labels = ticks
        .filter(|length| place(*length) > from)
        .map(|length| Label { at: across.at(place(length) - 0.5), text: format::count(length) });
    Some(Dots {
        summary: format!("Rows by length. {}", summary(bins, longest)),
        bottom: BOTTOM,
        x_name: "entries per row",
        y_name: "rows (log)",
        x_labels: thinned(x_labels),
        y_labels: dots::count_labels(&up),
        dots: bins.iter().map(dot).collect(),
    })
}

/// `median 7, longest 1,383 entries`; if the median is in a wide bin, the bin's range is given.
pub fn summary(bins: &[LengthBin], longest: u64) -> String {
    let rows: u64 = bins.iter().map(|bin| bin.rows).sum();
    let mut before = 0;
    let median = bins.iter().find(|bin| {
        before += bin.rows;
        2 * before >= rows
    });
    let median = median.map_or_else(|| "–".to_owned(), range);
    format!("median {median}, longest {} entries", format::count(longest))
}

/// The right edge of a bin that ends at `length`, in bins.
fn place(length: u64) -> f64 {
    if length <= SINGLE {
        return length as f64;
    }
    let power = 63 - (length - 1).leading_zeros();
    let base = (1u64 << power) as f64;
    let doublings = f64::from(power) - (SINGLE as f64).log2();
    SINGLE as f64 + 8.0 * (doublings + (length as f64 - base) / base)
}

/// Lengths that may label the axis.
fn lengths() -> impl Iterator<Item = u64> {
    [0, 1, 2, 4, 6, 8, 10, 12, 14].into_iter().chain((4..63).map(|power| 1 << power))
}

fn range(bin: &LengthBin) -> String {
    if bin.least == bin.most {
        format::count(bin.least)
    } else {
        format!("{}–{}", format::count(bin.least), format::count(bin.most))
    }
}

fn title(bin: &LengthBin) -> String {
    let rows = if bin.rows == 1 { "row has" } else { "rows have" };
    let entries = if bin.most == 1 { "entry" } else { "entries" };
    format!("{} {rows} {} {entries}", format::count(bin.rows), range(bin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bin(least: u64, most: u64, rows: u64) -> LengthBin {
        LengthBin { least, most, rows }
    }

    #[test]
    fn all_bins_are_equally_wide() {
        let edges = [16, 18, 20, 32, 36, 64, 72].map(place);
        assert_eq!(edges, [16.0, 17.0, 18.0, 24.0, 25.0, 32.0, 33.0]);
    }

    #[test]
    fn dots_lie_in_the_frame_and_have_titles() {
        let bins = [bin(0, 0, 1), bin(7, 7, 1000), bin(1281, 1408, 3)];
        let picture = of(&bins, 1383).unwrap();
        for dot in &picture.dots {
            assert!(dot.x >= dots::LEFT && dot.x + dot.width <= dots::RIGHT + 0.01, "{dot:?}");
            assert!(dot.y >= dots::TOP && dot.y < BOTTOM, "{dot:?}");
        }
        assert!(picture.dots[1].y < picture.dots[2].y, "more rows, a higher dot");
        assert_eq!(picture.dots[0].title, "1 row has 0 entries");
        assert_eq!(picture.dots[2].title, "3 rows have 1,281–1,408 entries");
        assert_eq!(picture.summary, "Rows by length. median 7, longest 1,383 entries");
    }

    #[test]
    fn no_picture_without_rows() {
        assert_eq!(of(&[], 0), None);
        assert_eq!(summary(&[bin(17, 18, 2)], 18), "median 17–18, longest 18 entries");
    }
}
