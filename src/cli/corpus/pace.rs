//! How far a corpus is, and how long it will take: a forecast before, a bar on standard error meanwhile.

use super::CorpusArgs;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// What a matrix takes beside its search: it is generated, sent, and deleted.
const BESIDE: Duration = Duration::from_secs(1);

pub(super) struct Pace {
    bar: ProgressBar,
    begun: Instant,
    count: u64,
    /// Most that a search may take.
    each: Duration,
    limit: Option<Duration>,
}

impl Pace {
    pub fn begin(args: &CorpusArgs, limit: Option<Duration>) -> Self {
        let bar = ProgressBar::with_draw_target(Some(args.count), ProgressDrawTarget::stderr());
        if let Ok(style) =
            ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed:>4} {wide_msg}")
        {
            bar.set_style(style);
        }
        let each = Duration::try_from_secs_f64(args.seconds).unwrap_or(Duration::MAX);
        Self { bar, begun: Instant::now(), count: args.count, each, limit }
    }

    /// What is to come, in a sentence.
    pub fn forecast(&self) -> String {
        let count = u32::try_from(self.count).unwrap_or(u32::MAX);
        let most = self.each.saturating_add(BESIDE).saturating_mul(count);
        let searched = format!(
            "{} matrices, each searched for at most {} s",
            self.count,
            self.each.as_secs_f64()
        );
        match self.limit.filter(|limit| *limit < most) {
            Some(limit) => format!("{searched}; none is begun after {}", lasting(limit)),
            None => format!("{searched}: {} at most", lasting(most)),
        }
    }

    /// Prints above the bar.
    pub fn above<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// This many have been tried.
    pub fn done(&self, tried: u64) {
        self.bar.set_position(tried);
        self.bar.set_message(match self.left(tried, self.begun.elapsed()) {
            Some(left) => format!("about {} left", lasting(left)),
            None => String::new(),
        });
    }

    /// At the pace of those before, but no more than until the time limit.
    fn left(&self, tried: u64, elapsed: Duration) -> Option<Duration> {
        let tried = u32::try_from(tried).ok().filter(|tried| *tried > 0)?;
        let more = u32::try_from(self.count).unwrap_or(u32::MAX).saturating_sub(tried);
        let left = (elapsed / tried).saturating_mul(more);
        Some(self.limit.map_or(left, |limit| left.min(limit.saturating_sub(elapsed))))
    }

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// `40 s`, `25 min`, `2.5 h`.
fn lasting(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forecast_is_of_what_ends_it_first() {
        let pace = |limit: Option<u64>| Pace {
            bar: ProgressBar::hidden(),
            begun: Instant::now(),
            count: 400,
            each: Duration::from_secs(20),
            limit: limit.map(Duration::from_secs),
        };
        let told = "400 matrices, each searched for at most 20 s";
        assert_eq!(pace(None).forecast(), format!("{told}: 2.3 h at most"));
        assert_eq!(pace(Some(1800)).forecast(), format!("{told}; none is begun after 30 min"));
        let left = |limit, tried| pace(limit).left(tried, Duration::from_secs(100));
        assert_eq!(left(None, 0), None);
        assert_eq!(left(None, 50), Some(Duration::from_secs(700)));
        assert_eq!(left(Some(300), 50), Some(Duration::from_secs(200)));
        assert_eq!(left(Some(60), 50), Some(Duration::ZERO));
    }
}
