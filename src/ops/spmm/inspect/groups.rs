//! Groups of consecutive rows: how unequal they are, and what executing them in lockstep costs.

use std::collections::BTreeMap;

/// Groups of consecutive rows (in one of the two row orders) that run together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Groups {
    pub count: u64,
    /// Coefficient of variation of the groups' entries (LO-SpMM's COV_row for tiles of this many rows).
    pub cov: f64,
    /// Sum over groups of (longest row x rows) over nnz: what lockstep execution costs. 1 is perfect.
    pub lockstep: f64,
    /// Entries of the heaviest group.
    pub heaviest: u64,
}

impl Groups {
    pub const NONE: Self = Self { count: 0, cov: 0.0, lockstep: 1.0, heaviest: 0 };
}

/// The groups of the largest size that is at most `size`.
pub fn of_size(groups: &BTreeMap<u32, Groups>, size: u32) -> Groups {
    groups.range(..=size.max(1)).next_back().map_or(Groups::NONE, |(_, groups)| *groups)
}

/// Groups of so many rows.
#[cfg(test)]
pub fn of_consecutive(lengths: &[u32], size: u32) -> Groups {
    let parts: Vec<Part> = lengths.iter().map(|&length| Part::of(length)).collect();
    groups(&parts.chunks(size as usize).map(Part::joined).collect::<Vec<_>>())
}

/// Groups of 1, 2, 4 .. 256 rows: those of a size are pairs of the size before.
pub fn all_groups(lengths: &[u32]) -> BTreeMap<u32, Groups> {
    let mut parts: Vec<Part> = lengths.iter().map(|&length| Part::of(length)).collect();
    let mut all = BTreeMap::new();
    for power in 0..=8 {
        all.insert(1 << power, groups(&parts));
        parts = parts.chunks(2).map(Part::joined).collect();
    }
    all
}

/// One group of rows.
#[derive(Clone, Copy)]
struct Part {
    rows: u32,
    longest: u32,
    entries: u64,
}

impl Part {
    fn of(length: u32) -> Self {
        Self { rows: 1, longest: length, entries: length.into() }
    }

    fn joined(parts: &[Self]) -> Self {
        parts[1..].iter().fold(parts[0], |a, b| Self {
            rows: a.rows + b.rows,
            longest: a.longest.max(b.longest),
            entries: a.entries + b.entries,
        })
    }
}

fn groups(parts: &[Part]) -> Groups {
    let (mut count, mut sum, mut squares, mut lockstep, mut heaviest) = (0u64, 0.0, 0.0, 0.0, 0u64);
    for part in parts {
        let entries = part.entries as f64;
        count += 1;
        sum += entries;
        squares += entries * entries;
        lockstep += f64::from(part.longest) * f64::from(part.rows);
        heaviest = heaviest.max(part.entries);
    }
    if sum == 0.0 {
        return Groups { count, ..Groups::NONE };
    }
    let mean = sum / count as f64;
    let variance = (squares / count as f64 - mean * mean).max(0.0);
    Groups { count, cov: variance.sqrt() / mean, lockstep: lockstep / sum, heaviest }
}
