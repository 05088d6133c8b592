//! Lowers a scheme: rewrites, splits and packs the system (shared results are kept), proves progress, and plans the launches. Where the
//! solution is to be refined, that is tried first.

use super::alike::Alike;
use super::equations::Equations;
use super::pack::{Packed, Packing, pack};
use super::prove::prove;
use super::refine;
use super::rewrite::{Rewrite, rewrite};
use super::scheme::{Columns, Scheme, Scope, Sync, Take};
use super::space::legal;
use super::split::{Parts, split};
use super::text::{Pass, RESIDUAL_THREADS, Range, Text, WARPS_A_BLOCK, source};
use crate::domain::recipe::{Array, ArrayData, CudaProgram, Program, Recipe, Scratch, Step};
use crate::domain::{Candidate, Dtype};
use crate::ops::Refusal;
use crate::ops::sptrsv::kept::{Kept, distinct, side_by_side};
use crate::ops::sptrsv::{System, no_candidate};
use std::sync::Arc;
use std::time::Instant;

/// Most bytes of rewritten and packed systems that are kept for later schemes.
const KEPT_BYTES: u64 = 3 << 30;

/// Threads per block of a launch that does not wait.
const WINDOW_BLOCK: u32 = 256;

/// Keeps what schemes of one system share: each rewriting, and each packing of it.
pub struct SlicesLowerer {
    equations: Kept<Rewrite, Equations>,
    /// Rewritings whose solutions refinement does not make good for.
    refused: Vec<(Rewrite, Alike, Refusal)>,
    packed: Kept<Key, Packed>,
}

/// What a packed system is made of.
type Key = (Rewrite, Packing);

/// Equations with the rewriting that they were made by.
type Known = (Rewrite, Arc<Equations>);

/// How a result is kept: held or not.
type Put<K, T> = fn(&mut Kept<K, T>, K, T) -> Arc<T>;

impl Default for SlicesLowerer {
    fn default() -> Self {
        let equations = Kept::at_most(KEPT_BYTES, Equations::bytes);
        Self { equations, refused: Vec::new(), packed: Kept::at_most(KEPT_BYTES, Packed::bytes) }
    }
}

impl SlicesLowerer {
    pub fn lower(&mut self, candidate: &Candidate, system: &System) -> Result<Recipe, Refusal> {
        let scheme = Scheme::of(candidate).ok_or_else(|| no_candidate(candidate))?;
        legal(&scheme, system).map_err(Refusal)?;
        let packing = scheme.packing(system.problem.rhs, system.device.multiprocessors);
        let (equations_ms, packed) = self.packed(scheme.rewrite, packing, system)?;
        let started = Instant::now();
        let layout = Layout { scheme: &scheme, system, packed: &packed };
        let (program, scratch) = layout.program()?;
        let arrays = arrays(scheme.rewrite, packing, &packed);
        let bare = Recipe::bare(candidate, Program::Cuda(program));
        let values_ms = equations_ms + packed.ms;
        let lowering_ms = values_ms + started.elapsed().as_secs_f64() * 1e3;
        // On the host new values require all steps again except the levels: rewritten coefficients are functions of all values.
        Ok(Recipe { arrays, scratch, lowering_ms, update_ms: Some(values_ms), ..bare })
    }

    /// Rewrites and packs what these candidates need, several rewritings and then several packings at once.
    pub fn prepare(&mut self, candidates: &[Candidate], system: &System) {
        let schemes = candidates.iter().filter_map(Scheme::of);
        let legal = schemes.filter(|scheme| legal(scheme, system).is_ok());
        let (rhs, multiprocessors) = (system.problem.rhs, system.device.multiprocessors);
        let packings =
            distinct(legal.map(|scheme| (scheme.rewrite, scheme.packing(rhs, multiprocessors))));
        let rewritings = distinct(packings.iter().map(|&(rewriting, _)| rewriting));
        let missing: Vec<Rewrite> =
            rewritings.into_iter().filter(|&it| self.known(it).is_none()).collect();
        self.equations.let_go();
        self.packed.let_go();
        let made = side_by_side(&missing, |&rewriting| rewritten(rewriting, system));
        for (rewriting, made) in missing.into_iter().zip(made) {
            // Lowering says why one is refused.
            self.keep(rewriting, made, Kept::hold).ok();
        }
        let known = packings.into_iter().filter_map(|(rewriting, packing)| {
            let (same, equations) = self.known(rewriting)?.ok()?;
            Some(((same, packing), equations))
        });
        let mut ready: Vec<(Key, Arc<Equations>)> = Vec::new();
        for (key, equations) in known {
            let listed = ready.iter().any(|(other, _)| *other == key);
            if !listed && self.packed.get(&key).is_none() {
                ready.push((key, equations));
            }
        }
        let packed = side_by_side(&ready, |((_, how), equations)| proved(equations, *how, system));
        for ((key, _), packed) in ready.into_iter().zip(packed) {
            if let Ok(packed) = packed {
                self.make_room(packed.bytes());
                self.packed.hold(key, packed);
            }
        }
    }

    /// The host time of a rewriting, and its packing, which may have been made of another one with the same equations.
    fn packed(
        &mut self,
        rewriting: Rewrite,
        packing: Packing,
        system: &System,
    ) -> Result<(f64, Arc<Packed>), Refusal> {
        let (same, equations) = match self.known(rewriting) {
            Some(known) => known,
            None => self.keep(rewriting, rewritten(rewriting, system), Kept::put),
        }?;
        let key = (same, packing);
        let packed = match self.packed.get(&key) {
            Some(packed) => packed,
            None => {
                let packed = proved(&equations, packing, system)?;
                self.make_room(packed.bytes());
                self.packed.put(key, packed)
            }
        };
        Ok((equations.ms, packed))
    }

    /// The equations of a rewriting, and of which one they are: several may give the same.
    fn known(&self, rewriting: Rewrite) -> Option<Result<Known, Refusal>> {
        let refused = self.refused.iter().find(|(own, alike, _)| alike.covers(*own, rewriting));
        if let Some((.., why)) = refused {
            return Some(Err(why.clone()));
        }
        let same = self.equations.find(|own, equations| equations.alike.covers(*own, rewriting));
        same.map(Ok)
    }

    fn keep(
        &mut self,
        rewriting: Rewrite,
        made: Result<Equations, (Alike, Refusal)>,
        put: Put<Rewrite, Equations>,
    ) -> Result<Known, Refusal> {
        // It may have been made beside another that turned out to be the same.
        if let Some(known) = self.known(rewriting) {
            return known;
        }
        match made {
            Ok(equations) => {
                self.make_room(equations.bytes());
                Ok((rewriting, put(&mut self.equations, rewriting, equations)))
            }
            Err((alike, why)) => {
                self.refused.push((rewriting, alike, why.clone()));
                Err(why)
            }
        }
    }

    /// Both share the room. Packings go first: they are remade faster than equations.
    fn make_room(&mut self, bytes: u64) {
        let all = self.equations.bytes() + self.packed.bytes() + bytes;
        let mut over = all.saturating_sub(KEPT_BYTES);
        while over > 0 {
            let gone = self.packed.drop_oldest().or_else(|| self.equations.drop_oldest());
            let Some(gone) = gone else { return };
            over = over.saturating_sub(gone);
        }
    }
}

/// The equations of a rewriting, split where they are long. One whose solutions refinement does not make good for is refused.
fn rewritten(rewriting: Rewrite, system: &System) -> Result<Equations, (Alike, Refusal)> {
    let width = Columns::of(system.problem.rhs).width();
    let mut equations = split(rewrite(system, rewriting), Parts::of_slices(width));
    if rewriting.refine {
        let started = Instant::now();
        refine::tried(system, &equations).map_err(|why| (equations.alike, why))?;
        equations.ms += started.elapsed().as_secs_f64() * 1e3;
    }
    Ok(equations)
}

fn proved(equations: &Equations, packing: Packing, system: &System) -> Result<Packed, Refusal> {
    let packed = pack(equations, system.problem.dtype, packing)?;
    prove(&packed, packing, system.triangular.rows())?;
    Ok(packed)
}

/// Arrays have the name of the scheme's own parameters: a plan's are found again by them, whatever was lowered before.
fn arrays(rewriting: Rewrite, packing: Packing, packed: &Packed) -> Vec<Array> {
    let Rewrite { window_ns, terms, refine } = rewriting;
    let Packing { width, lanes, warps, .. } = packing;
    let grown = if refine { "_refined" } else { "" };
    let name = |what| format!("slices_{what}_{window_ns}_{terms}{grown}_{width}_{lanes}_{warps}");
    let array = |what, data| Array { name: name(what), data };
    vec![
        array("meta", ArrayData::U32(packed.meta.clone())),
        array("cols", ArrayData::U32(packed.cols.clone())),
        array("vals", packed.vals.clone()),
        array("rows", ArrayData::U32(packed.rows.clone())),
    ]
}

struct Layout<'a> {
    scheme: &'a Scheme,
    system: &'a System,
    packed: &'a Packed,
}

impl Layout<'_> {
    fn program(&self) -> Result<(CudaProgram, Vec<Scratch>), Refusal> {
        let source = source(self.scheme, &self.system.problem);
        let mut steps = Vec::new();
        for &pass in self.scheme.passes() {
            if pass == Pass::Again {
                steps.push(self.residual());
            }
            match self.scheme.scope {
                Scope::Shared { blocks } => steps.push(self.shared(blocks, pass)?),
                Scope::Global => steps.extend(self.launches(pass)),
            }
        }
        Ok((CudaProgram::of_steps(source, steps), self.scratch()))
    }

    fn work_bytes(&self) -> u64 {
        let problem = &self.system.problem;
        self.packed.slots as u64 * u64::from(problem.rhs) * problem.dtype.bytes()
    }

    fn text(&self) -> Text<'_> {
        Text { scheme: self.scheme, problem: &self.system.problem }
    }

    fn range(&self, first: u32, end: u32) -> Range {
        Range { first, end, slots: self.packed.slots as u32 }
    }

    fn residual(&self) -> Step {
        let triangular = &self.system.triangular;
        let rows = triangular.rows() as u32;
        let blocks = rows.div_ceil(self.text().residual_rows()).max(1);
        self.text().residual(rows, triangular.reversed).step(blocks, RESIDUAL_THREADS)
    }

    fn shared(&self, blocks: u32, pass: Pass) -> Result<Step, Refusal> {
        // Partial sums of split equations add to the unknowns that `legal` counts.
        let (work, most) = (self.work_bytes(), self.system.device.shared_bytes_per_block);
        if work > most {
            return Err(Refusal(format!(
                "{} unknowns and partial sums take {work} bytes of shared memory; at most {most} are available",
                self.packed.slots
            )));
        }
        let kernel = self.text().shared(blocks, pass, self.range(0, self.packed.slices()));
        Ok(Step {
            shared_bytes: work as u32,
            resident: true,
            ..kernel.step(blocks, self.scheme.warps * 32)
        })
    }

    /// Launches in order: windows with many slices alone, runs of other windows together.
    fn launches(&self, pass: Pass) -> Vec<Step> {
        let windows = &self.packed.window_start;
        let end = self.packed.slices();
        let warps = self.scheme.warps * self.system.device.multiprocessors;
        let wide = |window: &[u32]| {
            self.scheme.alpha > 0
                && u64::from(window[1] - window[0])
                    > u64::from(self.scheme.alpha) * u64::from(warps)
        };
        let mut steps = Vec::new();
        let mut first = 0;
        for window in windows.windows(2).filter(|window| wide(window)) {
            if window[0] > first {
                steps.push(self.waiting(pass, first, window[0]));
            }
            steps.push(self.window(pass, window[0], window[1]));
            first = window[1];
        }
        // An empty system is still one launch, which does nothing.
        if first < end || steps.is_empty() {
            steps.push(self.waiting(pass, first, end));
        }
        steps
    }

    fn waiting(&self, pass: Pass, first: u32, end: u32) -> Step {
        let a_block = self.scheme.warps.min(WARPS_A_BLOCK);
        let blocks = self.scheme.warps / a_block * self.system.device.multiprocessors;
        // No more blocks than there are slices for.
        let grid = blocks.min((end - first).div_ceil(a_block)).max(1);
        let resident = self.scheme.take != Take::Ticket;
        let kernel = self.text().waiting(pass, self.range(first, end));
        let shared_bytes = match self.scheme.ahead {
            true => a_block * self.text().copied_bytes(),
            false => 0,
        };
        Step { resident, shared_bytes, ..kernel.step(grid, a_block * 32) }
    }

    fn window(&self, pass: Pass, first: u32, end: u32) -> Step {
        let grid = (end - first).div_ceil(WINDOW_BLOCK / 32);
        self.text().window(pass, self.range(first, end)).step(grid, WINDOW_BLOCK)
    }

    fn scratch(&self) -> Vec<Scratch> {
        let bytes = self.work_bytes();
        let mut scratch = match (self.scheme.scope, self.scheme.sync) {
            (Scope::Shared { .. }, _) => Vec::new(),
            (Scope::Global, Sync::Sentinel) => vec![Scratch { bytes, fill: u32::MAX }; 2],
            // {value, epoch}: 8 bytes for f32, 16 for f64.
            (Scope::Global, Sync::Packed) => vec![Scratch { bytes: bytes * 2, fill: 0 }],
        };
        if self.scheme.rewrite.refine {
            let problem = &self.system.problem;
            let elements = self.system.triangular.rows() as u64 * u64::from(problem.rhs);
            scratch.push(Scratch { bytes: elements * problem.dtype.bytes(), fill: 0 });
        }
        if self.scheme.take == Take::Ticket {
            scratch.extend([Scratch { bytes: 4, fill: 0 }; 2]);
        }
        scratch
    }
}

/// Bytes that one call of a packed scheme streams in: the basis of its predicted time.
pub fn term_bytes(dtype: Dtype) -> u64 {
    4 + dtype.bytes()
}
