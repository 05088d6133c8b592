//! Family `nnz_split` with teams: a long row is the work of several whole warps, which meet in shared memory
//! (`kernels/spmm/row_teams.cuh`), so that few long rows take no longer than their share, and only huge ones are cut.

use super::family::{RowOrder, SpmmFamily, SpmmKernel, Tile, count, gpu_family, is_ordered};
use super::inspect::{Cut, Inspection};
use super::model::Work;
use super::nnz_split::{ARRIVAL_US, FAMILY, PARTIAL_US};
use super::row_turns;
use super::segments::{self, BUNDLE, Cutting, Named, Segments, Sequence};
use super::shared::{Lowered, Shared};
use super::text;
use super::walk::{self, Bound, Dense, Fetch, STATIC_SHARED, Walk};
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::domain::{Candidate, Device, Spmm};
use crate::ops::Refusal;
use crate::ops::family::{Family, Keys};
use crate::ops::program::{EntryPoint, Setting, number};
use crate::search::domain::Domain;
use std::sync::LazyLock;

/// The parameter that tells these candidates from those whose segments are computed by groups.
pub const TEAM: &str = "team";

/// Threads of a warp.
const WARP: u32 = 32;

/// Most entries in a segment, smallest first.
const CHUNKS: [u32; 3] = [256, 1024, 4096];

/// Columns of a tile above which segments of 4096 entries, and up to which those of 256, took longer than others on every
/// matrix measured.
const NARROW: u32 = 8;

/// Most entries of a row that a group computes, smallest first.
const HEAVY: [u32; 3] = [32, 64, 128];

/// The least share of all entries in rows between two values of `heavy` for which both are tried.
pub(super) const BETWEEN: f64 = 0.03;

/// Meeting in shared memory at a row's end, microseconds.
pub(super) const MEETING_US: f64 = 0.2;

pub struct RowTeams;

struct RowTeam {
    walk: Walk,
    team: u32,
    heavy: u32,
    chunk: u32,
    /// Rows that a group computes one after another.
    turns: u32,
}

impl RowTeam {
    /// Teams of a block.
    fn teams(&self) -> u32 {
        self.walk.block / WARP / self.team
    }

    /// Entries of a long row that are summed in parallel.
    fn ways(&self) -> u32 {
        self.team * (WARP / self.walk.lanes)
    }

    /// Rows of a block that computes rows.
    fn rows(&self) -> u32 {
        self.walk.groups().max(1) * self.turns
    }

    /// All static shared memory of a block: that of rows and that of teams, whichever it computes.
    fn shared_bytes(&self) -> u32 {
        self.walk.shared_bytes(self.rows()) + self.meeting_bytes()
    }

    /// Bytes in which the warps of a block leave their sums.
    fn meeting_bytes(&self) -> u32 {
        match self.team {
            1 => 0,
            _ => self.walk.block / WARP * self.walk.columns() * self.walk.sum_bytes() as u32,
        }
    }

    /// Whether these values are worth a measurement. On an H100, 13 matrices with long rows and N of 1, 8, 32 and 128, each rule
    /// leaves out what was within 1 % of the best in the geometric mean.
    fn pays(&self) -> bool {
        let Walk { lanes, ways, cols, unroll, fetch, dense, .. } = self.walk;
        let narrow = self.walk.columns() <= NARROW;
        let others = match lanes {
            1 => ways == 2 || ways == 8,
            2..=8 => ways == 1 || ways == 4,
            _ => ways == 1,
        };
        let depth = match fetch {
            Fetch::Direct if narrow => unroll >= 4,
            Fetch::Direct => unroll == if cols < 4 { 4 } else { 2 } || (cols == 2 && unroll == 2),
            Fetch::Ahead => dense != Dense::Staged && unroll == if cols == 1 { 4 } else { 2 },
            Fetch::Shuffle => false,
        };
        let chunk = if narrow { self.chunk > CHUNKS[0] } else { self.chunk < CHUNKS[2] };
        // Tiles narrower than C read A again.
        let whole = self.walk.column_tiles() == 1 || self.walk.columns() >= 128;
        let fits = self.shared_bytes() <= STATIC_SHARED;
        others && depth && chunk && whole && fits
    }

    /// Counted together: the rows that groups compute, and the segments of teams.
    fn cut(&self, seen: &Inspection) -> Cut {
        seen.cut(u64::from(self.heavy), u64::from(self.chunk))
    }

    fn kernel(&self, bound: Bound, heavy_first: u32, named: &Named) -> EntryPoint {
        let mut operands = self.walk.operands(bound);
        operands.extend([
            number("heavy", self.heavy),
            number("heavy_first", heavy_first),
            named.operand(text::element(self.walk.problem.dtype)),
            text::scale(&self.walk.problem),
        ]);
        text::kernel("row_teams", "RowTeamsConfig", operands)
    }
}

impl SpmmFamily for RowTeams {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/row_teams.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            let mut domains = vec![
                Domain::ints(TEAM, &[1, 2, 8]),
                Domain::ints("heavy", &HEAVY),
                Domain::ints("chunk", &CHUNKS),
            ];
            domains.extend(walk::DOMAINS.iter().map(|domain| match domain.name {
                "ways" => Domain::ints("ways", &[1, 2, 4, 8]),
                "block" => Domain::ints("block", &[256]),
                "fetch" => Domain::texts("fetch", &["direct", "ahead"]),
                "order" => Domain::texts("order", &["natural", "length"]),
                _ => domain.clone(),
            }));
            domains
        });
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        let mut all = walk::candidates(FAMILY, self.domains(), problem);
        row_turns::add_turned(&mut all, problem);
        all.retain(|candidate| self.of(candidate, problem).is_some_and(|it| it.pays()));
        all
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        Some(Box::new(self.of(candidate, problem)?))
    }
}

impl RowTeams {
    fn of(&self, candidate: &Candidate, problem: &Spmm) -> Option<RowTeam> {
        if candidate.family != FAMILY || !candidate.params.contains_key(TEAM) {
            return None;
        }
        let team = RowTeam {
            walk: Walk::of(candidate, problem, self.domains())?,
            team: count(candidate, TEAM)?,
            heavy: count(candidate, "heavy")?,
            chunk: count(candidate, "chunk")?,
            turns: row_turns::turns_of(candidate)?,
        };
        row_turns::serve(&team.walk, team.turns).then_some(team)
    }
}

impl Family for RowTeams {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first(FAMILY, Distinction::Has(TEAM))];
        const OWN: [(&str, &str); 3] = [
            (TEAM, "warps that compute a long row, or a segment of a cut one, together"),
            ("heavy", "most entries of a row that one group computes"),
            ("chunk", "most entries in a segment of a long row"),
        ];
        let mut parameters = walk::described(self.domains(), &OWN);
        parameters.push(row_turns::described());
        FamilyDescriptor {
            title: "Split by entries, with teams",
            summary: "Teams of warps compute long rows, which are cut only if they are huge; all others are computed as in row_split.",
            source: None,
            parameters,
            ..gpu_family("spmm.row_teams", STORED, false)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys {
            prepared_by: &[],
            tiled_by: &["cols", "lanes", "vec"],
            headers: &["spmm/row_teams.cuh", "spmm/stage.cuh", "spmm/unstage.cuh"],
        }
    }

    fn complexity(&self, candidate: &Candidate) -> u32 {
        3 + u32::from(is_ordered(candidate)) + u32::from(walk::is_near(candidate))
    }
}

impl SpmmKernel for RowTeam {
    fn tile(&self) -> Tile {
        let tile = self.walk.tile();
        let ahead = if self.walk.fetch == Fetch::Ahead { 2 * self.walk.unroll } else { 0 };
        Tile {
            balanced: true,
            registers: tile.registers + ahead + 2,
            shared_bytes: self.shared_bytes(),
            ..tile
        }
    }

    fn blocks(&self, seen: &Inspection, _problem: &Spmm) -> u64 {
        let Cut { segments, short_rows } = self.cut(seen);
        let teams = (segments as u64).div_ceil(u64::from(self.teams()));
        // In natural order long rows have places among the others, too, which are left at once.
        let rows = if self.walk.order == RowOrder::Length { short_rows as u64 } else { seen.rows };
        let groups = rows.div_ceil(u64::from(self.rows()));
        (teams + groups) * u64::from(self.walk.column_tiles())
    }

    /// Without long rows `row_split` does the same; longer segments than the longest row needs do the same as shorter ones that
    /// hold it, too, and a higher `heavy` does almost the same where few entries are in rows between it and the next lower one.
    fn applies(&self, seen: &Inspection, _device: &Device) -> bool {
        let least = if self.walk.columns() <= NARROW { CHUNKS[1] } else { CHUNKS[0] };
        let shorter = CHUNKS.into_iter().rev().find(|&it| it < self.chunk && it >= least);
        let lower = HEAVY.into_iter().rev().find(|&it| it < self.heavy);
        seen.longest_row > u64::from(self.heavy.max(shorter.unwrap_or(0)))
            && lower.is_none_or(|lower| seen.share_within(lower, self.heavy) >= BETWEEN)
    }

    fn work(&self, seen: &Inspection) -> Work {
        let work = row_turns::in_turn(self.walk.work(seen), self.turns);
        let Cut { segments, short_rows } = self.cut(seen);
        let (group, team) = (f64::from(self.walk.ways), f64::from(self.ways()));
        // A team's segment is as many walks of a group's length as it has groups.
        let walks = (short_rows + segments * team / group).max(1.0);
        let longest = (seen.longest_row as f64).min(f64::from(self.chunk));
        let parts = seen.longest_row as f64 / f64::from(self.chunk);
        let cut = if parts > 1.0 {
            let added = parts.min(BUNDLE as f64) + parts / BUNDLE as f64;
            ARRIVAL_US + added / f64::from(WARP / self.walk.lanes) * PARTIAL_US
        } else {
            0.0
        };
        let cut_segments = seen.cut(u64::from(self.chunk), u64::from(self.chunk)).segments;
        Work {
            walks,
            mean_walk: seen.nnz as f64 / walks / group,
            longest_walk: (longest / team).max(f64::from(self.heavy) / group),
            lockstep: work.lockstep.min(2.0),
            c_again: cut_segments
                * f64::from(self.walk.columns())
                * 2.0
                * self.walk.sum_bytes() as f64,
            after_us: work.after_us + cut + if self.team > 1 { MEETING_US } else { 0.0 },
            ..work
        }
    }

    fn source(&self) -> String {
        let kernel = self.kernel(Bound::default(), 0, &Named::default());
        let own = [("kTeam", Setting::from(self.team)), ("kTurns", self.turns.into())];
        self.walk.source_with("spmm/row_teams.cuh", kernel, &own)
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let walk = &self.walk;
        let by_length = walk.order == RowOrder::Length;
        let sequence = if by_length { Sequence::LongestFirst } else { Sequence::ByColumn };
        let cutting = Cutting { threshold: self.heavy, chunk: self.chunk, sequence };
        // By length the long rows are the first ones.
        let heavy_first = |segments: &Segments| if by_length { segments.rows } else { 0 };
        let blocks = |segments: &Segments, rows: u32| {
            let others = rows - heavy_first(segments);
            segments.count().div_ceil(self.teams()) + others.div_ceil(self.rows())
        };
        let kernel = |bound, segments: &Segments, named: &Named| {
            self.kernel(bound, heavy_first(segments), named)
        };
        segments::lower(walk, shared, &cutting, blocks, kernel, self.source())
    }
}
