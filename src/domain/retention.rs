//! Rules for what is kept of matrices, jobs, trials and plans, and what has to go by them.

use super::{Digest, Namespace, Timestamp};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Limits of one kind of thing; an absent one removes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Milliseconds after which a thing goes.
    pub age_ms: Option<i64>,
    /// Most things.
    pub count: Option<u64>,
    /// Most bytes of all of them.
    pub bytes: Option<u64>,
}

impl Rule {
    /// Whether the rule removes nothing.
    pub const fn is_empty(&self) -> bool {
        matches!(self, Self { age_ms: None, count: None, bytes: None })
    }
}

/// The rules of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    pub matrices: Rule,
    /// Jobs that ended, with their trials and events.
    pub jobs: Rule,
    /// Trials of jobs that ended.
    pub trials: Rule,
    pub plans: Rule,
}

impl Rules {
    /// Whether the rules remove nothing.
    pub const fn is_empty(&self) -> bool {
        let Self { matrices, jobs, trials, plans } = self;
        matrices.is_empty() && jobs.is_empty() && trials.is_empty() && plans.is_empty()
    }
}

/// A thing as a rule sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    pub of: Namespace,
    /// When it was made, or last used.
    pub at: i64,
    /// How many it counts for.
    pub count: u64,
    /// Bytes of its own.
    pub bytes: u64,
    /// Files that others may name as well, each with its bytes.
    pub files: Vec<(Digest, u64)>,
    /// Whether another has taken its place, so that it goes before those that have none.
    pub superseded: bool,
    /// Whether it stays in any case: it is pinned, or needed. It counts, too.
    pub stays: bool,
}

/// What goes by a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excess {
    /// Positions of the items, in the order in which they go.
    pub items: Vec<usize>,
    /// Bytes that this frees: a file that an item names which stays is not freed.
    pub bytes: u64,
}

/// What is kept, by everybody or in one namespace.
#[derive(Debug, Default)]
struct Kept {
    count: u64,
    bytes: u64,
    /// How many items name a file, and its bytes.
    files: HashMap<Digest, (u64, u64)>,
}

impl Kept {
    fn add(&mut self, item: &Item) {
        self.count += item.count;
        self.bytes = self.bytes.saturating_add(item.bytes);
        for (file, bytes) in &item.files {
            let (names, known) = self.files.entry(*file).or_default();
            if *names == 0 {
                (*known, self.bytes) = (*bytes, self.bytes.saturating_add(*bytes));
            }
            *names += 1;
        }
    }

    fn remove(&mut self, item: &Item) {
        self.count -= item.count;
        self.bytes -= item.bytes;
        for (file, _) in &item.files {
            if let Some((names, length)) = self.files.get_mut(file) {
                *names -= 1;
                if *names == 0 {
                    self.bytes -= *length;
                }
            }
        }
    }

    /// How far it is above the limits, divided by `parts`: above 1 it is.
    fn over(&self, rule: &Rule, parts: u64) -> f64 {
        let of = |limit: Option<u64>, value: u64| {
            limit.map_or(0.0, |limit| match (limit / parts, value) {
                (0, 0) => 0.0,
                (0, value) => 1.0 + value as f64,
                (limit, value) => value as f64 / limit as f64,
            })
        };
        of(rule.count, self.count).max(of(rule.bytes, self.bytes))
    }
}

/// The items that are too old; then, until count and bytes are within the rule, those of the namespace that is furthest above an equal
/// share of it: first what has been superseded, then all, each oldest first. So nothing goes of who keeps less than their share, however
/// much others keep or have pinned. Items that stay count.
pub fn excess(items: &[Item], rule: &Rule, now: Timestamp) -> Excess {
    let mut all = Kept::default();
    let mut namespaces: BTreeMap<&Namespace, (Kept, VecDeque<usize>)> = BTreeMap::new();
    for item in items {
        all.add(item);
        namespaces.entry(&item.of).or_default().0.add(item);
    }
    let before = all.bytes;
    let oldest = rule.age_ms.map(|age| now.plus_millis(age.saturating_neg()).0);
    let is_old = |item: &Item| oldest.is_some_and(|oldest| item.at < oldest);
    let mut order: Vec<usize> = (0..items.len()).filter(|at| !items[*at].stays).collect();
    order.sort_by_key(|at| {
        let item = &items[*at];
        (!is_old(item), !item.superseded, item.at)
    });
    let mut going = Vec::new();
    for at in order {
        let item = &items[at];
        let Some((kept, rest)) = namespaces.get_mut(&item.of) else { continue };
        if is_old(item) {
            all.remove(item);
            kept.remove(item);
            going.push(at);
        } else {
            rest.push_back(at);
        }
    }
    let parts = namespaces.values().filter(|(kept, _)| kept.count > 0).count().max(1) as u64;
    while all.over(rule, 1) > 1.0 {
        let most = namespaces
            .values_mut()
            .filter(|(_, rest)| !rest.is_empty())
            .map(|one| (one.0.over(rule, parts), one))
            .filter(|(over, _)| *over > 1.0)
            .reduce(|a, b| if b.0 > a.0 { b } else { a });
        let Some((_, (kept, rest))) = most else { break };
        let Some(at) = rest.pop_front() else { break };
        all.remove(&items[at]);
        kept.remove(&items[at]);
        going.push(at);
    }
    Excess { items: going, bytes: before - all.bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(at: i64) -> Item {
        Item { at, count: 1, bytes: 10, ..Item::default() }
    }

    fn going(items: &[Item], rule: Rule) -> (Vec<usize>, u64) {
        let Excess { items, bytes } = excess(items, &rule, Timestamp(100));
        (items, bytes)
    }

    #[test]
    fn age_count_and_bytes_take_the_oldest() {
        let items = [item(50), item(10), item(90), item(30)];
        assert_eq!(going(&items, Rule::default()), (vec![], 0));
        let age = Rule { age_ms: Some(60), ..Rule::default() };
        assert_eq!(going(&items, age), (vec![1, 3], 20));
        let count = Rule { count: Some(1), ..Rule::default() };
        assert_eq!(going(&items, count), (vec![1, 3, 0], 30));
        let bytes = Rule { bytes: Some(39), ..Rule::default() };
        assert_eq!(going(&items, bytes), (vec![1], 10));
        let both = Rule { bytes: Some(0), ..age };
        assert_eq!(going(&items, both).0, [1, 3, 0, 2]);
        // A clock that was set back makes nothing old.
        let forever = Rule { age_ms: Some(i64::MAX), ..Rule::default() };
        assert_eq!(going(&items, forever), (vec![], 0));
    }

    #[test]
    fn what_stays_counts_and_what_is_superseded_goes_first() {
        let mut items = [item(10), item(20), item(30)];
        items[0].stays = true;
        items[2].superseded = true;
        let count = |most| Rule { count: Some(most), ..Rule::default() };
        assert_eq!(going(&items, count(2)).0, [2]);
        assert_eq!(going(&items, count(1)).0, [2, 1]);
        assert_eq!(going(&items, count(0)).0, [2, 1], "all but what stays");
        // Age comes before that.
        let rule = Rule { age_ms: Some(75), count: Some(2), ..Rule::default() };
        assert_eq!(going(&items, rule).0, [1]);
    }

    #[test]
    fn a_file_is_freed_with_the_last_that_names_it() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let with = |at, files: &[(Digest, u64)]| Item { files: files.to_vec(), ..item(at) };
        let items = [with(1, &[(a, 1000)]), with(2, &[(a, 1000), (b, 50)]), with(3, &[(b, 50)])];
        let bytes = |most| Rule { bytes: Some(most), ..Rule::default() };
        assert_eq!(going(&items, bytes(1080)), (vec![], 0));
        assert_eq!(going(&items, bytes(1079)), (vec![0], 10));
        assert_eq!(going(&items, bytes(1000)), (vec![0, 1], 1020));
        assert_eq!(going(&items, bytes(0)), (vec![0, 1, 2], 1080));
        // One that an item names twice is one.
        let twice = [with(1, &[(a, 5), (a, 5)])];
        assert_eq!(going(&twice, bytes(0)), (vec![0], 15));
    }

    #[test]
    fn who_keeps_most_pays_first_and_who_keeps_little_pays_nothing() {
        let of = |name: &str, at| Item { of: name.parse().unwrap(), ..item(at) };
        // The newest are of who has most.
        let items = [of("a", 1), of("a", 2), of("b", 3), of("b", 4), of("b", 5), of("b", 6)];
        let count = |most| Rule { count: Some(most), ..Rule::default() };
        assert_eq!(going(&items, count(4)).0, [2, 3]);
        assert_eq!(going(&items, count(2)).0, [2, 3, 0, 4]);
        let bytes = Rule { bytes: Some(45), ..Rule::default() };
        assert_eq!(going(&items, bytes), (vec![2, 3], 20));
        // What is pinned counts for its own namespace alone.
        let mut pinned = items.clone();
        pinned[2..].iter_mut().for_each(|item| item.stays = true);
        assert_eq!(going(&pinned, count(4)).0, [0; 0]);
        assert_eq!(going(&pinned, count(2)).0, [0]);
        // A file that two have is freed with the last, and weighs on both.
        let file = vec![(Digest::of(b"a"), 100)];
        let mut shared = [of("a", 1), of("b", 2)];
        shared.iter_mut().for_each(|item| item.files = file.clone());
        let bytes = |most| Rule { bytes: Some(most), ..Rule::default() };
        assert_eq!(going(&shared, bytes(119)), (vec![0], 10));
        assert_eq!(going(&shared, bytes(20)), (vec![0, 1], 120));
    }
}
