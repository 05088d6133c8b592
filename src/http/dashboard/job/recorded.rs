//! Reads a job's trials for its page: the counts of all, but only as many trials as are drawn.

use crate::domain::{Job, Trial, TrialCount};
use crate::http::behalf::Served;
use crate::http::dashboard::format;
use crate::http::dashboard::pictures::heat_map;
use crate::http::error::Problem;

/// Maximum number of tried trials on the page, the first ones. Their points make up most of a page, which should be smaller
/// than 150 kB.
pub const MOST_TRIED: u32 = 4000;
/// Maximum number of pruned candidates of a family that are drawn; beyond it, a sample.
const MOST_PRUNED: u32 = 2000;

/// The records of a job that its page needs.
#[derive(Default)]
pub struct Recorded {
    pub counts: Vec<TrialCount>,
    /// The first tried trials, without raw samples.
    pub tried: Vec<Trial>,
    /// The families whose space can be drawn, and the number of candidates of each.
    pub families: Vec<(String, u64)>,
    /// The selected family.
    pub family: Option<String>,
    /// Its pruned candidates.
    pub pruned: Vec<Trial>,
}

impl Recorded {
    pub async fn read(app: &Served, job: &Job, asked: Option<&str>) -> Result<Self, Problem> {
        let counts = app.service.trial_counts(&job.id).await?;
        let tried = app.service.tried(&job.id, MOST_TRIED).await?;
        let families = heat_map::families(&counts);
        let mut recorded = Self { counts, tried, families, ..Self::default() };
        let best = job.best.as_ref().map(|best| best.candidate.family.as_str());
        let families = recorded.families.clone();
        // Usually the first family has a map; if the last one has none either, there is no map.
        for family in heat_map::preferred(&families, asked, best) {
            recorded.pruned = app.service.pruned_of(&job.id, family, MOST_PRUNED).await?;
            recorded.family = Some(family.to_owned());
            if asked == Some(family) || recorded.has_map(family) {
                break;
            }
        }
        Ok(recorded)
    }

    fn has_map(&self, family: &str) -> bool {
        let own = self.tried.iter().chain(&self.pruned);
        let own: Vec<&Trial> = own.filter(|trial| trial.candidate.family == family).collect();
        heat_map::has_map(&own)
    }

    /// The number of trials, drawn or not.
    pub fn all_tried(&self) -> u64 {
        let tried = self.counts.iter().filter(|count| count.pruned_by.is_none());
        // Trials that were added between the two queries are only in the list.
        tried.map(|count| count.count).sum::<u64>().max(self.tried.len() as u64)
    }

    pub fn measured(&self) -> u64 {
        self.counts.iter().filter(|c| c.state == "measured").map(|c| c.count).sum()
    }

    /// A note if trials are omitted from charts and tables.
    pub fn cut(&self) -> Option<String> {
        let all = self.all_tried();
        (all > self.tried.len() as u64).then(|| {
            let first = format::count(self.tried.len() as u64);
            format!(
                "The first {first} of {} trials are drawn; the API has all.",
                format::count(all)
            )
        })
    }

    /// A note if the map shows a sample of the pruned candidates.
    pub fn sampled(&self) -> Option<String> {
        let own = self.counts.iter().filter(|c| c.pruned_by.is_some());
        let own = own.filter(|c| Some(&c.family) == self.family.as_ref());
        let all: u64 = own.map(|c| c.count).sum();
        (all > u64::from(MOST_PRUNED)).then(|| {
            let drawn = format::count(self.pruned.len() as u64);
            format!(
                "Of its {} pruned candidates an even sample of {drawn} is drawn.",
                format::count(all)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_said() {
        let count = |state: &str, by: Option<&str>, count| TrialCount {
            family: "f".to_owned(),
            state: state.to_owned(),
            pruned_by: by.map(str::to_owned),
            count,
        };
        let counts = vec![count("measured", None, 3), count("crashed", None, 2)];
        let mut recorded = Recorded { counts, ..Recorded::default() };
        assert_eq!((recorded.all_tried(), recorded.measured()), (5, 3));
        let cut = recorded.cut().unwrap();
        assert!(cut.starts_with("The first 0 of 5 trials"), "{cut}");
        assert_eq!(recorded.sampled(), None);
        recorded.counts =
            vec![count("pruned", Some("rank"), 1500), count("pruned", Some("own"), 501)];
        assert_eq!((recorded.cut(), recorded.sampled()), (None, None), "of no family drawn");
        recorded.family = Some("f".to_owned());
        assert!(recorded.sampled().unwrap().starts_with("Of its 2,001"));
    }
}
