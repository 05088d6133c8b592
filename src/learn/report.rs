//! The evaluation as a plain-text table with one row per ranking.

use super::judge::KS;
use crate::domain::learned::{HeldOut, RankerScore};
use std::fmt::Write;

/// The numbers of tried candidates (K) that the table shows.
const SHOWN: [u32; 4] = [1, 8, 10, 16];

/// In per cent: the share of the best performance (geometric mean) and the share of matrices within 85 % of it; then
/// the regret of the first choice.
pub fn table(held_out: &HeldOut) -> String {
    let mut text = format!(
        "{} groups in {} folds, each evaluated with models trained on the others. For the best of the first K: share of the best\n\
        performance (geometric mean, %), and share of groups that reach 85 % of it (%). Regret of the first choice in %: median,\n\
        90th percentile, maximum.\n\n",
        held_out.groups, held_out.folds
    );
    let ks: String = SHOWN.iter().map(|k| format!("  {:>13}", format!("K = {k}"))).collect();
    let halves: String = SHOWN.iter().map(|_| "   share within".to_owned()).collect();
    let _ = writeln!(text, "{:<11}{ks}  {:>23}  {:>7}", "", "regret", "NDCG");
    let _ =
        writeln!(text, "{:<11}{halves}  {:>7} {:>7} {:>7}  {:>7}", "", "p50", "p90", "max", "@10");
    for ranker in &held_out.rankers {
        let _ = writeln!(text, "{}", row(ranker));
    }
    text
}

fn row(ranker: &RankerScore) -> String {
    let percent =
        |value: Option<f64>| value.map_or("-".to_owned(), |x| format!("{:.1}", 100.0 * x));
    let mut row = format!("{:<11}", ranker.name);
    for k in SHOWN {
        let at = ranker.at.iter().find(|at| at.k == k);
        let (share, within) = (at.map(|at| at.share), at.map(|at| at.within_85));
        let _ = write!(row, "  {:>6} {:>6}", percent(share), percent(within));
    }
    let regret = ranker.regret.map(|regret| percent(Some(regret)));
    let ndcg = ranker.ndcg10.map_or("-".to_owned(), |ndcg| format!("{ndcg:.4}"));
    let _ = write!(row, "  {:>7} {:>7} {:>7}  {ndcg:>7}", regret[0], regret[1], regret[2]);
    row
}

const _: () =
    assert!(KS[0] == SHOWN[0] && KS[3] == SHOWN[1] && KS[4] == SHOWN[2] && KS[5] == SHOWN[3]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::learned::AtK;

    #[test]
    fn one_row_per_ranker_and_aligned_columns() {
        let at = KS.map(|k| AtK { k, share: 0.5 + f64::from(k) / 100.0, within_85: 0.25 }).to_vec();
        let learned = RankerScore {
            name: "lambdamart".to_owned(),
            ndcg10: Some(0.98765),
            at,
            regret: [0.011, 0.5, 99.0],
        };
        let random =
            RankerScore { name: "random".to_owned(), ndcg10: None, at: vec![], ..learned.clone() };
        let text = table(&HeldOut { folds: 5, groups: 12, rankers: vec![learned, random] });
        assert!(text.starts_with("12 groups in 5 folds"));
        let rows: Vec<&str> = text.lines().skip(4).collect();
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{text}");
        let words = |row: &str| row.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let expected = "lambdamart 51.0 25.0 58.0 25.0 60.0 25.0 66.0 25.0 1.1 50.0 9900.0 0.9877";
        assert_eq!(words(rows[2]).join(" "), expected);
        assert_eq!(words(rows[3])[..2], ["random", "-"]);
    }
}
