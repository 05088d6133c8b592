//! Which terms the equations of a window have, found without their coefficients.
//!
//! Whether a level joins a window depends on how many terms that takes, so levels are looked at one after the other. Where levels are
//! narrow, the equations of a window have much in common: as sets of bits they are united a word at a time, which takes a small part of
//! what sums take. So windows are found by these sets, and their coefficients are computed afterwards, many windows at once.

/// Rows of a window, and unknowns of earlier windows that they need, beyond which no further level is looked at by its pattern.
const MOST: usize = 1 << 12;

/// Most words of sets for each of their terms: where more are needed, sums take little longer.
const MOST_WORDS: usize = 4;

const BITS: usize = u64::BITS as usize;

/// The open window: its rows, each with the rows of the window whose part of b it has, and the unknowns that it needs.
pub(super) struct Pattern {
    /// What a row or an unknown is in the window, and the mark of the window that an unknown was last numbered in.
    number: Vec<u32>,
    mark: Vec<u32>,
    marks: u32,
    rows: Vec<u32>,
    /// Unknowns of earlier windows that were numbered.
    outside: usize,
    sets: Vec<Set>,
    /// Of each row, a bit for every row of the window up to itself, then one for every unknown that was numbered by then.
    words: Vec<u64>,
    terms: usize,
}

/// Where the sets of a row are in `words`, and how much they contain.
#[derive(Clone, Copy, Debug)]
struct Set {
    at: usize,
    middle: usize,
    end: usize,
    known: usize,
    unknown: usize,
}

impl Pattern {
    pub(super) fn new(rows: usize) -> Self {
        Self {
            number: vec![0; rows],
            mark: vec![0; rows],
            marks: 1,
            rows: Vec::new(),
            outside: 0,
            sets: Vec::new(),
            words: Vec::new(),
            terms: 0,
        }
    }

    /// Begins another window; what there is of the present one is discarded.
    pub(super) fn begin(&mut self) {
        self.marks += 1;
        self.outside = 0;
        self.rows.clear();
        self.sets.clear();
        self.words.clear();
        self.terms = 0;
    }

    /// Ends the window: appends its rows, returns how many terms they have, and begins another one.
    pub(super) fn end_into(&mut self, rows: &mut Vec<u32>) -> usize {
        rows.extend_from_slice(&self.rows);
        let terms = self.terms;
        self.begin();
        terms
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The number of rows, for [`Self::truncate`].
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether sums should take the place of sets that are so large.
    pub(super) fn is_full(&self) -> bool {
        self.rows.len().max(self.outside) > MOST
            || self.words.len() > MOST_WORDS * self.terms.max(BITS)
    }

    /// Terms of a row of the window, in b and in unknowns.
    pub(super) fn lengths(&self, row: u32) -> (usize, usize) {
        let set = self.sets[self.number[row as usize] as usize];
        (set.known, set.unknown)
    }

    /// Adds a row that needs these unknowns, of which those in the window are substituted; returns its terms in b and in unknowns.
    pub(super) fn add(
        &mut self,
        row: u32,
        parents: &[u32],
        is_inside: impl Fn(u32) -> bool,
    ) -> (usize, usize) {
        for &parent in parents {
            if !is_inside(parent) && self.mark[parent as usize] != self.marks {
                self.mark[parent as usize] = self.marks;
                self.number[parent as usize] = self.outside as u32;
                self.outside += 1;
            }
        }
        let place = self.rows.len();
        let at = self.words.len();
        let middle = at + place / BITS + 1;
        let end = middle + self.outside.div_ceil(BITS);
        self.words.resize(end, 0);
        let (before, own) = self.words.split_at_mut(at);
        let (known, unknown) = own.split_at_mut(middle - at);
        known[place / BITS] |= 1 << (place % BITS);
        for &parent in parents {
            let number = self.number[parent as usize] as usize;
            if is_inside(parent) {
                let set = self.sets[number];
                unite(known, &before[set.at..set.middle]);
                unite(unknown, &before[set.middle..set.end]);
            } else {
                unknown[number / BITS] |= 1 << (number % BITS);
            }
        }
        let (known, unknown) = (count(known), count(unknown));
        self.number[row as usize] = place as u32;
        self.rows.push(row);
        self.sets.push(Set { at, middle, end, known, unknown });
        self.terms += known + unknown;
        (known, unknown)
    }

    /// Discards all rows but the first few.
    pub(super) fn truncate(&mut self, rows: usize) {
        let gone = self.sets.drain(rows..).map(|set| set.known + set.unknown).sum::<usize>();
        self.terms -= gone;
        self.rows.truncate(rows);
        self.words.truncate(self.sets.last().map_or(0, |set| set.end));
    }
}

/// Unites a set with one of no more words.
fn unite(set: &mut [u64], other: &[u64]) {
    set.iter_mut().zip(other).for_each(|(word, other)| *word |= other);
}

fn count(set: &[u64]) -> usize {
    set.iter().map(|word| word.count_ones() as usize).sum()
}
