//! Cross-validation folds by pattern: evaluation groups share no pattern with training groups.

use super::Dataset;
use crate::sparse::random::Stream;
use std::collections::BTreeMap;

/// Divides all groups into `k` folds (fewer if there are fewer patterns) with about equally many groups each; no pattern is
/// split. The result depends only on the patterns and the seed, not on the order of the groups. Each fold is sorted.
pub fn folds(data: &Dataset, k: usize, seed: u64) -> Vec<Vec<usize>> {
    deal(data, &(0..data.groups.len()).collect::<Vec<usize>>(), k, seed)
}

/// As [`folds`], for the given groups.
pub fn deal(data: &Dataset, groups: &[usize], k: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut patterns: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for &group in groups {
        patterns.entry(&data.groups[group].pattern).or_default().push(group);
    }
    let mut patterns: Vec<Vec<usize>> = patterns.into_values().collect();
    let mut stream = Stream::new(seed, 0x666f_6c64);
    for last in (1..patterns.len()).rev() {
        patterns.swap(last, stream.below(last as u64 + 1) as usize);
    }
    // Largest patterns first, each into the smallest fold; patterns of equal size stay in shuffled order.
    patterns.sort_by_key(|groups| std::cmp::Reverse(groups.len()));
    let mut parts = vec![Vec::new(); k.clamp(1, patterns.len().max(1))];
    for pattern in patterns {
        if let Some(emptiest) = parts.iter_mut().min_by_key(|part| part.len()) {
            emptiest.extend(pattern);
        }
    }
    parts.iter_mut().for_each(|part| part.sort_unstable());
    parts
}

/// Splits off about `1 / k` of the groups for early stopping: (train, held out). Nothing is held out if there is only one
/// pattern.
pub fn split(data: &Dataset, groups: &[usize], k: usize, seed: u64) -> (Vec<usize>, Vec<usize>) {
    let mut parts = deal(data, groups, k.max(2), seed);
    let held_out = if parts.len() > 1 { parts.swap_remove(0) } else { Vec::new() };
    let mut train: Vec<usize> = parts.into_iter().flatten().collect();
    train.sort_unstable();
    (train, held_out)
}

#[cfg(test)]
mod tests {
    use super::super::Group;
    use super::*;

    fn data(patterns: &[&str]) -> Dataset {
        let group =
            |p: &&str| Group { pattern: (*p).to_owned(), shared: Vec::new(), rows: Vec::new() };
        Dataset { groups: patterns.iter().map(group).collect(), ..Dataset::default() }
    }

    #[test]
    fn no_pattern_is_split_and_folds_are_balanced() {
        let names: Vec<String> = (0..60).map(|i| format!("p{}", i % 23)).collect();
        let data = data(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let parts = folds(&data, 5, 7);
        let mut all: Vec<usize> = parts.iter().flatten().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..60).collect::<Vec<_>>());
        assert!(parts.iter().all(|part| part.len().abs_diff(12) <= 2), "{parts:?}");
        for (i, part) in parts.iter().enumerate() {
            for other in &parts[i + 1..] {
                let shares = |g: &usize| other.iter().any(|o| names[*o] == names[*g]);
                assert!(!part.iter().any(shares));
            }
        }
        assert_eq!(parts, folds(&data, 5, 7));
        assert_ne!(parts, folds(&data, 5, 8));
    }

    #[test]
    fn fewer_patterns_than_folds() {
        assert_eq!(folds(&data(&["a", "a", "b"]), 5, 1), [vec![0, 1], vec![2]]);
        assert_eq!(folds(&data(&[]), 5, 1), [vec![0usize; 0]]);
    }

    #[test]
    fn nothing_is_held_out_of_one_pattern() {
        assert_eq!(split(&data(&["a", "a"]), &[0, 1], 6, 1), (vec![0, 1], vec![]));
        let (train, held_out) = split(&data(&["a", "b", "c", "c"]), &[0, 2, 3], 6, 1);
        assert_eq!((train, held_out), (vec![0], vec![2, 3]));
    }
}
