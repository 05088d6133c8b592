//! Lowers a scheme: keeps what schemes share, and proves for each schedule that none of its warps waits for ever.

use super::assemble::{Lowering, MAX_ROWS};
use super::prepare::Sync;
use super::schedule::{Alpha, Schedule, ScheduleOptions};
use super::transform::{Graph, Merge, Pattern, Permuted};
use super::{FAMILY, Scheme};
use crate::domain::Candidate;
use crate::domain::recipe::{Program, Recipe};
use crate::ops::Refusal;
use crate::ops::sptrsv::progress::{self, Launch, Order, Supply};
use crate::ops::sptrsv::{System, no_candidate};
use std::sync::Arc;
use std::time::Instant;

/// Most launches of one call: a graph of more takes longer to launch than any solve that is worth it.
pub const MAX_LAUNCHES: usize = 1024;

/// Most bytes of graphs, and of schedules, that are kept for other schemes.
const KEPT_BYTES: usize = 256 << 20;

/// Lowers schemes of one system and keeps what they share.
#[derive(Default)]
pub struct AgLowerer {
    permuted: Option<Arc<Permuted>>,
    graphs: Vec<((bool, Merge), Made<Graph>)>,
    schedules: Vec<((bool, Merge, ScheduleOptions), Made<Proved>)>,
}

/// A kept result, and the host time that it took: the preparation time of every recipe that uses it includes that time.
struct Made<T> {
    it: Arc<T>,
    ms: f64,
}

impl<T> Clone for Made<T> {
    fn clone(&self) -> Self {
        Self { it: self.it.clone(), ms: self.ms }
    }
}

/// A schedule that cannot wait for ever, and the nodes whose values others read.
pub(super) struct Proved {
    pub(super) schedule: Schedule,
    pub(super) publishes: Vec<bool>,
}

impl AgLowerer {
    pub fn lower(&mut self, candidate: &Candidate, system: &System) -> Result<Recipe, Refusal> {
        let scheme = Scheme::of(candidate).ok_or_else(|| no_candidate(candidate))?;
        refuse_early(&scheme, system)?;
        let start = Instant::now();
        let permuted = scheme.reorder.then(|| self.permuted(system));
        let graph = self.graph(&scheme, system, permuted.as_deref());
        let proved = self.schedule(&scheme, system, permuted.as_deref(), &graph.it)?;
        let kept_ms = graph.ms + proved.ms + permuted.as_ref().map_or(0.0, |made| made.ms);
        let pattern = pattern(system, permuted.as_deref());
        let lowering = Lowering {
            scheme: &scheme,
            system,
            permuted: permuted.as_deref(),
            pattern,
            graph: &graph.it,
            proved: &proved.it,
        };
        let packing = Instant::now();
        let (program, arrays, scratch) = lowering.assemble()?;
        // What was made in this call is counted by both clocks; the longer time is right.
        let own_ms = packing.elapsed().as_secs_f64() * 1e3;
        let lowering_ms = (kept_ms + own_ms).max(start.elapsed().as_secs_f64() * 1e3);
        let update_ms = permuted.map(|made| made.values_ms);
        let bare = Recipe::bare(candidate, Program::Cuda(program));
        Ok(Recipe { arrays, scratch, lowering_ms, update_ms, ..bare })
    }

    fn permuted(&mut self, system: &System) -> Arc<Permuted> {
        let make =
            || Arc::new(Permuted::of(&system.triangular, &system.levels, system.problem.dtype));
        self.permuted.get_or_insert_with(make).clone()
    }

    fn graph(
        &mut self,
        scheme: &Scheme,
        system: &System,
        permuted: Option<&Permuted>,
    ) -> Made<Graph> {
        let key = (scheme.reorder, scheme.merge);
        if let Some((_, made)) = self.graphs.iter().find(|(have, _)| *have == key) {
            return made.clone();
        }
        let start = Instant::now();
        let graph = Graph::of(pattern(system, permuted), scheme.merge);
        let made = Made { it: Arc::new(graph), ms: start.elapsed().as_secs_f64() * 1e3 };
        keep(&mut self.graphs, key, made.clone(), Graph::bytes);
        made
    }

    fn schedule(
        &mut self,
        scheme: &Scheme,
        system: &System,
        permuted: Option<&Permuted>,
        graph: &Graph,
    ) -> Result<Made<Proved>, Refusal> {
        let key = (scheme.reorder, scheme.merge, scheme.options());
        if let Some((_, made)) = self.schedules.iter().find(|(have, _)| *have == key) {
            return Ok(made.clone());
        }
        let start = Instant::now();
        let pattern = pattern(system, permuted);
        let schedule = Schedule::of(pattern, graph, &scheme.options(), &system.device);
        if schedule.kernels.len() > MAX_LAUNCHES {
            return Err(Refusal(format!(
                "{} launches per call; at most {MAX_LAUNCHES} are allowed",
                schedule.kernels.len()
            )));
        }
        prove(system, permuted, graph, &schedule)?;
        let publishes = publishing(pattern, graph, &schedule, permuted.is_some());
        let proved = Proved { schedule, publishes };
        let made = Made { it: Arc::new(proved), ms: start.elapsed().as_secs_f64() * 1e3 };
        let bytes = |proved: &Proved| proved.schedule.bytes() + proved.publishes.len();
        keep(&mut self.schedules, key, made.clone(), bytes);
        Ok(made)
    }
}

/// Keeps the newest results, as many as fit.
fn keep<K, T>(kept: &mut Vec<(K, Made<T>)>, key: K, made: Made<T>, bytes: impl Fn(&T) -> usize) {
    kept.push((key, made));
    let size = |kept: &[(K, Made<T>)]| kept.iter().map(|(_, made)| bytes(&made.it)).sum::<usize>();
    while kept.len() > 1 && size(kept) > KEPT_BYTES {
        kept.remove(0);
    }
}

fn pattern<'a>(system: &'a System, permuted: Option<&'a Permuted>) -> Pattern<'a> {
    permuted.map_or_else(|| Pattern::of(&system.triangular), Permuted::pattern)
}

fn refuse_early(scheme: &Scheme, system: &System) -> Result<(), Refusal> {
    let rows = system.triangular.rows();
    let refuse = |why: String| Err(Refusal(why));
    if system.problem.rhs != 1 {
        return refuse(format!("{FAMILY} solves for one right-hand side at a time"));
    }
    if system.problem.dtype.is_half() {
        return refuse(format!("{FAMILY} has no kernels for {}", system.problem.dtype));
    }
    if rows == 0 || rows > MAX_ROWS {
        return refuse(format!("{rows} rows; {FAMILY} solves systems of 1 to {MAX_ROWS}"));
    }
    if scheme.variant.sync == Sync::Packed && scheme.alpha != Alpha::Infinite {
        let why = "packed words need an epoch, which a program of several launches does not have";
        return refuse(why.to_owned());
    }
    Ok(())
}

/// The schedule in the form that the proof needs: a group is a task, a node is a part of it.
fn prove(
    system: &System,
    permuted: Option<&Permuted>,
    graph: &Graph,
    schedule: &Schedule,
) -> Result<(), Refusal> {
    let mut group_of = vec![0u32; graph.nodes()];
    for group in 0..schedule.groups() {
        for &node in schedule.group(group) {
            group_of[node as usize] = group as u32;
        }
    }
    let rows = system.triangular.rows();
    let place = |s: usize| permuted.map_or(s, |made| made.place_of[s] as usize);
    let part: Vec<u32> = (0..rows).map(|s| graph.node_of[place(s)]).collect();
    let position: Vec<u32> = part.iter().map(|&node| group_of[node as usize]).collect();
    let launches: Vec<Launch> = schedule
        .kernels
        .iter()
        .map(|kernel| {
            let (pointers, tasks) = (schedule.queues(kernel), schedule.queue.as_slice());
            let supply = if kernel.waits {
                Supply::Resident { pointers, tasks }
            } else {
                Supply::Independent { pointers, tasks }
            };
            Launch { positions: kernel.groups.clone(), supply }
        })
        .collect();
    let order = Order { position: &position, part: Some(&part), launches: &launches };
    progress::prove(&system.triangular, &order)
}

/// Nodes that have to publish (section 4.2.2, elimination of synchronisation): those that a node of a waiting launch reads.
/// Launches of one level read x itself, unless rows are permuted: then the work words are in the order of the permuted rows.
fn publishing(pattern: Pattern, graph: &Graph, schedule: &Schedule, permuted: bool) -> Vec<bool> {
    let mut publishes = vec![false; graph.nodes()];
    for kernel in schedule.kernels.iter().filter(|kernel| kernel.waits || permuted) {
        for group in kernel.groups.clone() {
            for &node in schedule.group(group as usize) {
                for parent in graph.parents(pattern, node as usize) {
                    publishes[parent] = true;
                }
            }
        }
    }
    publishes
}
