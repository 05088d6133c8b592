//! AG-SpTRSV's second stage (section 4.3): the computation graph, merging of its nodes, and reordering by level.

use crate::domain::Dtype;
use crate::domain::recipe::ArrayData;
use crate::sparse::Triangular;
use crate::sparse::levels::Levels;
use std::sync::Arc;
use std::time::Instant;

/// Most rows of a node, and `rb` of the strategies by thresholds.
pub const ROWS: u32 = 32;
/// Values of `rb` and of the thresholds.
pub const POWERS: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// How rows become nodes along the data edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Merge {
    /// Every `rb` rows.
    Fixed(u32),
    /// Every 32 rows if they have at most this many entries on average; otherwise each row alone.
    Average(u32),
    /// Runs of rows with at most this many entries each, up to 32 rows; a longer row alone.
    Threshold(u32),
}

/// Every strategy with every parameter.
pub fn merges() -> Vec<Merge> {
    let each = |of: fn(u32) -> Merge| POWERS.map(of);
    [each(Merge::Fixed), each(Merge::Average), each(Merge::Threshold)].concat()
}

impl Merge {
    pub fn name(self) -> String {
        match self {
            Self::Fixed(rb) => format!("fixed{rb}"),
            Self::Average(thresh) => format!("avg{thresh}"),
            Self::Threshold(thresh) => format!("thresh{thresh}"),
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        merges().into_iter().find(|merge| merge.name() == text)
    }
}

/// The strictly lower triangle that is scheduled: the system's own or the permuted one.
#[derive(Clone, Copy)]
pub struct Pattern<'a> {
    pub indptr: &'a [usize],
    pub indices: &'a [u32],
}

impl<'a> Pattern<'a> {
    pub fn of(system: &'a Triangular) -> Self {
        Self { indptr: &system.indptr, indices: &system.indices }
    }

    pub fn rows(self) -> usize {
        self.indptr.len() - 1
    }

    pub fn row(self, row: usize) -> &'a [u32] {
        &self.indices[self.indptr[row]..self.indptr[row + 1]]
    }

    /// Entries of rows `first..end`, including the diagonal.
    pub fn entries(self, first: usize, end: usize) -> usize {
        self.indptr[end] - self.indptr[first] + end - first
    }
}

/// A computation graph. Nodes are runs of rows, so a data edge joins each to the next; the dependency edges are the
/// entries of its rows in other nodes, and are read off the pattern where they are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// Node n has rows `node_ptr[n]..node_ptr[n + 1]`.
    pub node_ptr: Vec<u32>,
    pub node_of: Vec<u32>,
    /// Level of each node: one above the highest of its parents.
    pub level: Vec<u32>,
    /// Nodes per level; none is zero.
    pub widths: Vec<u32>,
    /// Rows of the largest node.
    pub span: u32,
}

impl Graph {
    /// Merges rows and computes the levels anew: a node may contain rows of several levels.
    pub fn of(pattern: Pattern, merge: Merge) -> Self {
        let node_ptr = cut(pattern, merge);
        let nodes = node_ptr.len() - 1;
        let mut node_of = vec![0u32; pattern.rows()];
        // The level after that of each row's node, so that a parent is one look into memory.
        let mut after = vec![0u32; pattern.rows()];
        let (mut level, mut widths) = (vec![0u32; nodes], Vec::new());
        let mut span = 0;
        for node in 0..nodes {
            let rows = node_ptr[node] as usize..node_ptr[node + 1] as usize;
            span = span.max(rows.len() as u32);
            node_of[rows.clone()].fill(node as u32);
            let columns = &pattern.indices[pattern.indptr[rows.start]..pattern.indptr[rows.end]];
            // Columns within the node itself are no dependencies; all others belong to earlier nodes.
            let parents = columns.iter().filter(|&&col| (col as usize) < rows.start);
            level[node] = parents.map(|&col| after[col as usize]).max().unwrap_or(0);
            after[rows].fill(level[node] + 1);
            match widths.get_mut(level[node] as usize) {
                Some(width) => *width += 1,
                None => widths.push(1),
            }
        }
        Self { node_ptr, node_of, level, widths, span }
    }

    pub fn nodes(&self) -> usize {
        self.level.len()
    }

    pub fn rows(&self, node: usize) -> std::ops::Range<usize> {
        self.node_ptr[node] as usize..self.node_ptr[node + 1] as usize
    }

    /// Entries of a node, including the diagonal: its work, as scheduling counts it.
    pub fn entries(&self, pattern: Pattern, node: usize) -> usize {
        let rows = self.rows(node);
        pattern.entries(rows.start, rows.end)
    }

    /// Dependency edges of a node, one for each entry.
    pub fn parents<'a>(
        &'a self,
        pattern: Pattern<'a>,
        node: usize,
    ) -> impl Iterator<Item = usize> + 'a {
        let rows = self.rows(node);
        let columns = &pattern.indices[pattern.indptr[rows.start]..pattern.indptr[rows.end]];
        let others = columns.iter().filter(move |&&col| (col as usize) < rows.start);
        others.map(|&col| self.node_of[col as usize] as usize)
    }

    /// Approximate size in memory, bytes.
    pub fn bytes(&self) -> usize {
        4 * (self.node_ptr.len() + self.node_of.len() + self.level.len() + self.widths.len())
    }
}

/// Where nodes begin, and at the end the number of rows.
fn cut(pattern: Pattern, merge: Merge) -> Vec<u32> {
    let rows = pattern.rows();
    let mut starts = Vec::new();
    match merge {
        Merge::Fixed(rb) => starts.extend((0..rows).step_by(rb as usize).map(|row| row as u32)),
        Merge::Average(thresh) => {
            for first in (0..rows).step_by(ROWS as usize) {
                let end = rows.min(first + ROWS as usize);
                let few = pattern.entries(first, end) <= thresh as usize * (end - first);
                let own = if few { first + 1 } else { end };
                starts.extend((first..own).map(|row| row as u32));
            }
        }
        Merge::Threshold(thresh) => {
            let long = |row| pattern.entries(row, row + 1) > thresh as usize;
            let mut open = None::<usize>;
            for row in 0..rows {
                let joins = open.is_some_and(|first| row - first < ROWS as usize) && !long(row);
                if !joins {
                    starts.push(row as u32);
                    open = (!long(row)).then_some(row);
                }
            }
        }
    }
    starts.push(rows as u32);
    starts
}

/// The system renumbered by level: rows of one level are adjacent, in solve order within the level.
pub struct Permuted {
    /// Row of the permuted system by solve index.
    pub place_of: Vec<u32>,
    pub indptr: Vec<usize>,
    /// Matrix row of each permuted row.
    pub rows_of: Arc<[u32]>,
    pub row_ptr: Arc<[u32]>,
    pub indices: Arc<[u32]>,
    pub values: ArrayData,
    pub diagonal: ArrayData,
    /// Host time of all steps, milliseconds.
    pub ms: f64,
    /// Upper estimate of the part that new values of the same pattern require: gathering all entries again, including
    /// columns.
    pub values_ms: f64,
}

impl Permuted {
    pub fn of(system: &Triangular, levels: &Levels, dtype: Dtype) -> Self {
        let start = Instant::now();
        let (place_of, solve_of) = by_level(levels);
        let entries_start = Instant::now();
        let mut indptr = Vec::with_capacity(system.rows() + 1);
        indptr.push(0usize);
        let mut entries: Vec<(u32, f64)> = Vec::with_capacity(system.nnz());
        for &s in &solve_of {
            let (columns, values) = system.row(s as usize);
            let from = entries.len();
            let pairs = columns.iter().zip(values);
            entries.extend(pairs.map(|(&col, &value)| (place_of[col as usize], value)));
            // Rising again, so that neighbouring lanes read neighbouring words.
            entries[from..].sort_unstable_by_key(|&(col, _)| col);
            indptr.push(entries.len());
        }
        let indices = entries.iter().map(|&(col, _)| col).collect();
        let values = typed(entries.iter().map(|&(_, value)| value), dtype);
        let diagonal = typed(solve_of.iter().map(|&s| system.diagonal[s as usize]), dtype);
        let values_ms = entries_start.elapsed().as_secs_f64() * 1e3;
        let rows_of = solve_of.iter().map(|&s| system.original(s as usize) as u32).collect();
        let row_ptr = indptr.iter().map(|&at| at as u32).collect();
        let ms = start.elapsed().as_secs_f64() * 1e3;
        Self { place_of, indptr, rows_of, row_ptr, indices, values, diagonal, ms, values_ms }
    }

    pub fn pattern(&self) -> Pattern<'_> {
        Pattern { indptr: &self.indptr, indices: &self.indices }
    }
}

/// Place of each solve index in level order, and the inverse.
fn by_level(levels: &Levels) -> (Vec<u32>, Vec<u32>) {
    let mut next: Vec<u32> = Vec::with_capacity(levels.widths.len());
    let mut sum = 0;
    for &width in &levels.widths {
        next.push(sum);
        sum += width;
    }
    let mut place_of = vec![0u32; levels.level_of_row.len()];
    let mut solve_of = place_of.clone();
    for (s, (place, &level)) in place_of.iter_mut().zip(&levels.level_of_row).enumerate() {
        let slot = &mut next[level as usize];
        *place = *slot;
        solve_of[*slot as usize] = s as u32;
        *slot += 1;
    }
    (place_of, solve_of)
}

/// The permuted pattern alone, with the columns of a row in any order: what selection reads.
pub fn reordered(system: &Triangular, levels: &Levels) -> (Vec<usize>, Vec<u32>) {
    let (place_of, solve_of) = by_level(levels);
    let mut indptr = Vec::with_capacity(system.rows() + 1);
    indptr.push(0usize);
    let mut indices = Vec::with_capacity(system.nnz());
    for &s in &solve_of {
        indices.extend(system.row(s as usize).0.iter().map(|&col| place_of[col as usize]));
        indptr.push(indices.len());
    }
    (indptr, indices)
}

fn typed(values: impl Iterator<Item = f64>, dtype: Dtype) -> ArrayData {
    match dtype {
        Dtype::F64 => ArrayData::F64(values.collect()),
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => {
            ArrayData::F32(values.map(|value| value as f32).collect())
        }
    }
}
