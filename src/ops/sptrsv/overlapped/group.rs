//! Groups: the rows of a window of levels, divided among warps so that each needs little of what belongs to others.
//!
//! A group begins with a row of the window's last level that nobody owns, and all rows of the window that it needs. It then takes in
//! the row next to it that costs least: rows to compute and unknowns to await, for each row that becomes owned. Rows that are owned
//! already are computed again. A group ends where a pass has no lane left, or no lane is left that could await another unknown. A row
//! that needs more than one group may have splits its window in two.

use super::scheme::Shape;

/// Rows that are looked at before the next is taken in.
const NEAR: usize = 48;

/// Of an awaited unknown, the rows nearby that need it, too.
const SIBLINGS: usize = 8;

/// What awaiting one more unknown costs, in rows to compute.
const AWAITED_COST: f64 = 0.5;

/// The number of no group, which has nothing.
const NOBODY: u32 = u32::MAX - 1;

/// What a warp does: rows by pass, and the unknowns of earlier windows that they need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    pub awaited: Vec<u32>,
    /// Rows of each level that has any, each with whether the group owns it.
    pub passes: Vec<Vec<(u32, bool)>>,
}

/// The rows of a window, level by level.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// The window's rows in the order of their levels.
    pub rows: &'a [u32],
    /// Where each level ends in `rows`.
    pub ends: &'a [usize],
}

/// Divides a window into groups, in an order in which each awaits only unknowns of earlier windows. A window that has to be split is
/// several, one after the other; the second number is how many. `parents` gives the unknowns that a row needs, and `place` where a
/// row is in the order of levels.
pub fn groups<'a>(
    window: Window<'_>,
    shape: &Shape,
    parents: &impl Fn(u32) -> &'a [u32],
    place: &impl Fn(u32) -> u32,
) -> (Vec<Group>, u32) {
    if let Some(groups) = Grouping::new(window, shape, parents, place).all() {
        return (groups, 1);
    }
    if window.ends.len() < 2 {
        // A row with more terms than lanes can await: the proof finds that it is missing.
        return (Vec::new(), 1);
    }
    let half = window.ends.len() / 2;
    let cut = window.ends[half - 1];
    let ends: Vec<usize> = window.ends[half..].iter().map(|end| end - cut).collect();
    let first = Window { rows: &window.rows[..cut], ends: &window.ends[..half] };
    let second = Window { rows: &window.rows[cut..], ends: &ends };
    let (mut all, count) = groups(first, shape, parents, place);
    let (rest, more) = groups(second, shape, parents, place);
    all.extend(rest);
    (all, count + more)
}

/// The window's graph with numbers of its own: its rows, then the unknowns of earlier windows that they need.
struct Grouping<'a> {
    window: Window<'a>,
    shape: &'a Shape,
    /// Unknowns of earlier windows.
    outside: Vec<u32>,
    /// What each row needs, and by what each row and each unknown from outside is needed.
    needs: Lists,
    needed_by: Lists,
    level_of: Vec<u32>,
    owned: Vec<bool>,
    /// The group that a row or an unknown was last taken into.
    taken: Vec<u32>,
    /// The last search that met it.
    met: Vec<u32>,
    searches: u32,
    /// What the last search found: rows that the group lacks, and unknowns from outside that it lacks.
    rows: Vec<u32>,
    awaited: Vec<u32>,
}

/// Lists of numbers, one after the other.
struct Lists {
    start: Vec<usize>,
    items: Vec<u32>,
}

impl Lists {
    fn of(&self, at: u32) -> &[u32] {
        &self.items[self.start[at as usize]..self.start[at as usize + 1]]
    }

    /// For each of `count` numbers, the lists that have it.
    fn turned(&self, count: usize) -> Self {
        let mut start = vec![0usize; count + 1];
        self.items.iter().for_each(|&item| start[item as usize + 1] += 1);
        for at in 0..count {
            start[at + 1] += start[at];
        }
        let mut next = start.clone();
        let mut items = vec![0u32; self.items.len()];
        for list in 0..self.start.len() - 1 {
            for &item in self.of(list as u32) {
                items[next[item as usize]] = list as u32;
                next[item as usize] += 1;
            }
        }
        Self { start, items }
    }
}

/// The group that is being made.
struct Open {
    number: u32,
    /// Rows of each level of the window.
    counts: Vec<u32>,
    awaited: u32,
    rows: Vec<(u32, bool)>,
    unknowns: Vec<u32>,
    /// Rows that may come next.
    near: Vec<u32>,
}

impl Open {
    fn of(number: u32, window: Window<'_>) -> Self {
        let counts = vec![0; window.ends.len()];
        let (rows, unknowns, near) = (Vec::new(), Vec::new(), Vec::new());
        Self { number, counts, awaited: 0, rows, unknowns, near }
    }
}

impl<'a> Grouping<'a> {
    fn new<'p>(
        window: Window<'a>,
        shape: &'a Shape,
        parents: &impl Fn(u32) -> &'p [u32],
        place: &impl Fn(u32) -> u32,
    ) -> Self {
        let count = window.rows.len();
        let first = window.rows.first().map_or(0, |&row| place(row));
        let mut start = Vec::with_capacity(count + 1);
        start.push(0);
        let mut places: Vec<u32> = Vec::new();
        let mut outside: Vec<(u32, u32)> = Vec::new();
        for &row in window.rows {
            for &it in parents(row) {
                let at = place(it);
                places.push(at);
                if at < first {
                    outside.push((at, it));
                }
            }
            start.push(places.len());
        }
        outside.sort_unstable();
        outside.dedup();
        // Found by halving in an array of nothing else: there are as many searches as entries.
        let before: Vec<u32> = outside.iter().map(|&(at, _)| at).collect();
        let outside: Vec<u32> = outside.into_iter().map(|(_, unknown)| unknown).collect();
        let number = |&at: &u32| match at.checked_sub(first) {
            Some(inside) => inside,
            None => (count + before.partition_point(|&other| other < at)) as u32,
        };
        let items = places.iter().map(number).collect();
        let needs = Lists { start, items };
        let all = count + outside.len();
        let needed_by = needs.turned(all);
        let mut level_of = Vec::with_capacity(count);
        for (level, &end) in window.ends.iter().enumerate() {
            level_of.resize(end, level as u32);
        }
        Self {
            window,
            shape,
            outside,
            needs,
            needed_by,
            level_of,
            owned: vec![false; count],
            taken: vec![u32::MAX; all],
            met: vec![0; all],
            searches: 0,
            rows: Vec::new(),
            awaited: Vec::new(),
        }
    }

    /// All groups; `None` if a row needs more than a group may have.
    fn all(mut self) -> Option<Vec<Group>> {
        // Such a row fits into no group, and would be met last, once most groups are made.
        let alone = Open::of(NOBODY, self.window);
        if self.window.ends.len() > 1
            && !(0..self.owned.len() as u32).rev().all(|row| self.search(row, &alone))
        {
            return None;
        }
        let mut groups = Vec::new();
        let mut seeds = Seeds::of(self.window.ends);
        while let Some(seed) = seeds.next(&self.owned) {
            let mut open = Open::of(groups.len() as u32, self.window);
            if !self.search(seed, &open) {
                // A row of a single level has no more terms than lanes can await: `Scheme::of`.
                return None;
            }
            self.take(&mut open);
            self.fill(&mut open, &mut seeds);
            groups.push(self.close(open));
        }
        Some(groups)
    }

    /// Takes in rows for as long as one fits.
    fn fill(&mut self, open: &mut Open, seeds: &mut Seeds) {
        let mut looked_aside = false;
        loop {
            if let Some(best) = self.cheapest(open) {
                self.search(best, open);
                self.take(open);
            } else if !looked_aside {
                looked_aside = true;
                self.look_aside(open);
            } else {
                let Some(seed) = seeds.next(&self.owned) else { return };
                if !self.search(seed, open) {
                    return;
                }
                self.take(open);
                looked_aside = false;
            }
        }
    }

    /// Finds what a group would have to take in with a row; whether that fits. Ends where it does not: most searches of a group that is
    /// nearly full do not fit.
    fn search(&mut self, row: u32, open: &Open) -> bool {
        self.searches += 1;
        let (count, mark) = (self.owned.len(), self.searches);
        let (most_rows, most_awaited) = (self.shape.rows(), 32 * self.shape.awaited as usize);
        let most_awaited = most_awaited.saturating_sub(open.awaited as usize);
        let mut counts = [0u32; 32];
        counts[..open.counts.len()].copy_from_slice(&open.counts);
        self.rows.clear();
        self.awaited.clear();
        self.rows.push(row);
        self.met[row as usize] = mark;
        let mut at = 0;
        while at < self.rows.len() {
            let row = self.rows[at];
            let level = &mut counts[self.level_of[row as usize] as usize];
            *level += 1;
            if *level > most_rows {
                return false;
            }
            for &need in self.needs.of(row) {
                let need_at = need as usize;
                if self.met[need_at] == mark || self.taken[need_at] == open.number {
                    continue;
                }
                self.met[need_at] = mark;
                if need_at < count { self.rows.push(need) } else { self.awaited.push(need) }
            }
            if self.awaited.len() > most_awaited {
                return false;
            }
            at += 1;
        }
        true
    }

    /// Takes in what the last search found.
    fn take(&mut self, open: &mut Open) {
        for &unknown in &self.awaited {
            self.taken[unknown as usize] = open.number;
            open.unknowns.push(unknown);
        }
        open.awaited += self.awaited.len() as u32;
        for &row in &self.rows {
            let at = row as usize;
            self.taken[at] = open.number;
            open.counts[self.level_of[at] as usize] += 1;
            open.rows.push((row, !std::mem::replace(&mut self.owned[at], true)));
            open.near.extend(self.needed_by.of(row));
        }
    }

    /// Of the rows near the group that fit, the one that costs least for each row that becomes owned.
    fn cheapest(&mut self, open: &mut Open) -> Option<u32> {
        let from = open.near.len().saturating_sub(NEAR);
        let near = open.near.split_off(from);
        let mut best: Option<(f64, u32)> = None;
        for row in near {
            if self.owned[row as usize] {
                continue;
            }
            if !self.search(row, open) {
                continue;
            }
            open.near.push(row);
            let fresh = self.rows.iter().filter(|&&row| !self.owned[row as usize]).count();
            let all = self.rows.len() as f64 + AWAITED_COST * self.awaited.len() as f64;
            let cost = all / fresh as f64;
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, row));
            }
        }
        best.map(|(_, row)| row)
    }

    /// Rows that need what the group awaits anyway may come next.
    fn look_aside(&self, open: &mut Open) {
        for &unknown in &open.unknowns {
            let free = |row: &&u32| !self.owned[**row as usize];
            open.near.extend(self.needed_by.of(unknown).iter().filter(free).take(SIBLINGS));
        }
    }

    /// The group with the numbers that its rows have in the system.
    fn close(&self, open: Open) -> Group {
        let count = self.owned.len() as u32;
        let mut passes = vec![Vec::new(); self.window.ends.len()];
        for (row, owned) in open.rows {
            let level = self.level_of[row as usize] as usize;
            passes[level].push((self.window.rows[row as usize], owned));
        }
        passes.retain(|pass| !pass.is_empty());
        let outside = |unknown: u32| self.outside[(unknown - count) as usize];
        Group { awaited: open.unknowns.into_iter().map(outside).collect(), passes }
    }
}

/// Rows that nobody owns, from the last level down.
struct Seeds<'a> {
    ends: &'a [usize],
    level: usize,
    at: usize,
}

impl<'a> Seeds<'a> {
    fn of(ends: &'a [usize]) -> Self {
        let level = ends.len();
        Self { ends, level, at: ends.last().copied().unwrap_or(0) }
    }

    fn next(&mut self, owned: &[bool]) -> Option<u32> {
        loop {
            let end = if self.level < self.ends.len() { self.ends[self.level] } else { self.at };
            while self.at < end {
                if !owned[self.at] {
                    return Some(self.at as u32);
                }
                self.at += 1;
            }
            self.level = self.level.checked_sub(1)?;
            self.at = if self.level == 0 { 0 } else { self.ends[self.level - 1] };
        }
    }
}
