//! A recipe's program on the loaded operands: its launches, single or as a CUDA graph, and whether its kernels gave up.

use super::context::Context;
use super::graph::Graph;
use super::launch::{Launch, LoadedKernel, Varying, refused};
use super::operands::{GUARD_WORDS, Loaded};
use super::scratch::{Memory, Owner};
use crate::domain::Dtype;
use crate::domain::recipe::{Arg, Recipe, Step};
use crate::engine::EngineError;
use std::sync::Arc;

/// How long a kernel may wait if the caller gives no limit, nanoseconds.
const DEFAULT_WAIT_NS: u64 = 1_000_000_000;

/// Up to this many launches are queued one by one if each overlaps the one before it: then nothing is left between them that a
/// graph would save, and the first overlaps the call before, which the first of a graph does not.
const MOST_OVERLAPPING: usize = 4;

/// When a waiting kernel gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deadline {
    pub(super) ns: u64,
}

impl Deadline {
    /// `give_up_us` and the additional cost of a first call: caches and page tables are cold.
    pub(super) fn verifying(give_up_us: Option<f64>) -> Self {
        Self::after(give_up_us, 5_000_000)
    }

    /// `give_up_us` and the slack of a call that is not the first.
    pub(super) fn timing(give_up_us: Option<f64>) -> Self {
        Self::after(give_up_us, 1_000_000)
    }

    fn after(give_up_us: Option<f64>, slack_ns: u64) -> Self {
        // A conversion to u64 saturates.
        let ns = give_up_us.filter(|us| us.is_finite()).map(|us| (us.max(0.0) * 1e3) as u64);
        Self { ns: ns.map_or(DEFAULT_WAIT_NS, |ns| ns.saturating_add(slack_ns)) }
    }
}

/// Settings of one call besides the loaded operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallSettings {
    pub(super) deadline: Deadline,
    /// alpha and beta.
    pub(super) factors: [f64; 2],
}

/// One call of a recipe, ready to be queued any number of times.
pub(super) struct Steps {
    context: Arc<Context>,
    launches: Vec<Launch>,
    /// Pointer and number of words of what must be zeroed before each call.
    zero: Option<(u64, usize)>,
    memory: Arc<Memory>,
    /// All launches, if there are several: one graph, or two if calls alternate. Not used for a single launch, since the
    /// launch itself is cheaper, nor for a few that overlap.
    graphs: Arc<[Graph]>,
    deadline: Deadline,
    /// The candidate, for the error if its kernel gives up.
    name: String,
}

impl Steps {
    /// The recipe's arrays must have been uploaded. `kernels` are those of the program's steps.
    pub(super) fn of(
        context: &Arc<Context>,
        owner: &Owner<'_>,
        kernels: &[Arc<LoadedKernel>],
        memory: Arc<Memory>,
        loaded: &Loaded,
        settings: CallSettings,
    ) -> Result<Self, EngineError> {
        let Owner { recipe, program, .. } = owner;
        let CallSettings { deadline, factors } = settings;
        let source = ArgumentSource { recipe, loaded, memory: &memory, deadline, factors };
        let launches = program.steps.iter().zip(kernels);
        let launches = launches.map(|(step, kernel)| source.launch(context, kernel, step));
        let mut steps = Self {
            context: context.clone(),
            launches: launches.collect::<Result<_, _>>()?,
            zero: program.zero_output.then(|| output_words(loaded)),
            memory,
            graphs: Arc::from([]),
            deadline,
            name: recipe.candidate.to_string(),
        };
        let overlap = steps.launches.iter().all(|launch| launch.geometry.overlaps);
        if steps.launches.len() > if overlap { MOST_OVERLAPPING } else { 1 } {
            let numbers = steps.launches.iter().flat_map(Launch::numbers);
            let zero = steps.zero.map_or(0, |(pointer, _)| pointer);
            let numbers = numbers.chain([zero]).collect();
            steps.graphs = steps.memory.recording.of(numbers, || steps.record())?;
        }
        Ok(steps)
    }

    fn record(&self) -> Result<Arc<[Graph]>, EngineError> {
        let varying: Vec<Varying> =
            self.launches.iter().flat_map(|l| &l.varying).map(|v| v.1).collect();
        if varying.contains(&Varying::Epoch) {
            return Err(refused(
                "an epoch differs in every call, but a program of several steps is recorded once"
                    .to_owned(),
            ));
        }
        let kinds = if varying.is_empty() { 1u64 } else { 2 };
        (0..kinds).map(|call| Graph::record(&self.context, || self.queue(call))).collect()
    }

    /// Queues one call, including the zeroing it needs.
    pub(super) fn enqueue(&self) -> Result<(), EngineError> {
        let call = self.memory.next_call();
        match self.graphs.len() {
            0 => self.queue(call),
            kinds => self.graphs[(call % kinds as u64) as usize].launch(),
        }
    }

    fn queue(&self, call: u64) -> Result<(), EngineError> {
        if let Some((pointer, words)) = self.zero {
            self.context.fill(pointer, 0, words)?;
        }
        self.launches.iter().try_for_each(|launch| launch.enqueue_as(call))
    }

    /// Approximate number of entries in the driver's queue that one call takes.
    pub(super) fn entries(&self) -> usize {
        self.launches.len() + usize::from(self.zero.is_some())
    }

    /// Resets the recipe's memory to the state before the first call.
    pub(super) fn refill(&self) -> Result<(), EngineError> {
        self.memory.refill()
    }

    /// Fails if a kernel of an earlier call gave up. The flags and partial results of that call are useless to the next one,
    /// so the memory is refilled first.
    pub(super) fn watch(&self) -> Result<(), EngineError> {
        if !self.memory.gave_up()? {
            return Ok(());
        }
        self.refill()?;
        Err(EngineError::Watchdog(gave_up(&self.name, self.deadline)))
    }
}

fn gave_up(name: &str, deadline: Deadline) -> String {
    let ms = deadline.ns as f64 / 1e6;
    format!("{name} waited {ms:.1} ms, its limit, and ended itself; the device is unharmed")
}

/// Pointer and 32-bit words of C without the guard behind it.
fn output_words(loaded: &Loaded) -> (u64, usize) {
    (loaded.c.pointer, (loaded.c.bytes / 4).saturating_sub(GUARD_WORDS))
}

/// Where arguments come from.
struct ArgumentSource<'a> {
    recipe: &'a Recipe,
    loaded: &'a Loaded,
    memory: &'a Memory,
    deadline: Deadline,
    factors: [f64; 2],
}

impl ArgumentSource<'_> {
    fn launch(
        &self,
        context: &Arc<Context>,
        kernel: &Arc<LoadedKernel>,
        step: &Step,
    ) -> Result<Launch, EngineError> {
        let dtype = self.loaded.dtype;
        let sizes: Vec<usize> = step.args.iter().map(|arg| size(*arg, dtype)).collect();
        if let Some(expected) = &kernel.parameter_sizes
            && *expected != sizes
        {
            // With these sizes the driver would read past the arguments.
            return Err(refused(format!(
                "kernel `{}` takes arguments of {expected:?} bytes, but the recipe passes {sizes:?}",
                step.entry
            )));
        }
        let mut arguments = Vec::with_capacity(step.args.len());
        let mut varying = Vec::new();
        for (at, arg) in step.args.iter().enumerate() {
            if let Some(each) = self.varying(*arg)? {
                varying.push((at, each));
                arguments.push(each.word(0));
            } else {
                arguments.push(self.word(*arg)?);
            }
        }
        Ok(Launch {
            context: context.clone(),
            kernel: kernel.clone(),
            geometry: context.geometry(step.grid, step.block, step.shared_bytes, step.overlaps),
            arguments,
            varying,
        })
    }

    fn varying(&self, arg: Arg) -> Result<Option<Varying>, EngineError> {
        Ok(match arg {
            Arg::Turn { even, odd } => {
                let [even, odd] = [self.memory.address(even)?, self.memory.address(odd)?];
                Some(Varying::Turn { even, odd })
            }
            Arg::Epoch => Some(Varying::Epoch),
            _ => None,
        })
    }

    fn word(&self, arg: Arg) -> Result<u64, EngineError> {
        let loaded = self.loaded;
        Ok(match arg {
            Arg::RowPtr => loaded.row_ptr.pointer,
            Arg::ColIdx => loaded.col_idx.pointer,
            Arg::Values => loaded.values.pointer,
            Arg::Diagonal => {
                let diagonal = loaded.diagonal.as_ref().map(|buffer| buffer.pointer);
                diagonal.ok_or_else(|| refused("the loaded problem has no diagonal".to_owned()))?
            }
            Arg::B => loaded.b.pointer,
            Arg::C => loaded.c.pointer,
            Arg::Array(index) => loaded.array(self.recipe, index)?,
            Arg::Scratch(index) => self.memory.address(index)?,
            Arg::Status => self.memory.status()?,
            Arg::DeadlineNs => self.deadline.ns,
            Arg::U32(value) => u64::from(value),
            Arg::U64(value) => value,
            Arg::F32(value) => u64::from(value.to_bits()),
            Arg::Alpha => factor(self.factors[0], loaded.dtype),
            Arg::Beta => factor(self.factors[1], loaded.dtype),
            Arg::Turn { .. } | Arg::Epoch => {
                return Err(refused(format!("{arg:?} has no single value")));
            }
        })
    }
}

/// A factor in the type in which elements of the problem's type are summed.
fn factor(value: f64, dtype: Dtype) -> u64 {
    match dtype {
        Dtype::F16 | Dtype::Bf16 | Dtype::F32 => u64::from((value as f32).to_bits()),
        Dtype::F64 => value.to_bits(),
    }
}

/// Bytes of an argument.
fn size(arg: Arg, dtype: Dtype) -> usize {
    match arg {
        Arg::U32(_) | Arg::F32(_) | Arg::Epoch => 4,
        Arg::Alpha | Arg::Beta if dtype != Dtype::F64 => 4,
        Arg::Alpha | Arg::Beta => 8,
        Arg::U64(_) | Arg::DeadlineNs => 8,
        // Pointers.
        Arg::RowPtr
        | Arg::ColIdx
        | Arg::Values
        | Arg::Diagonal
        | Arg::B
        | Arg::C
        | Arg::Array(_)
        | Arg::Scratch(_)
        | Arg::Turn { .. }
        | Arg::Status => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_what_is_given_up_at_and_a_first_calls_cost() {
        let ns = |deadline: Deadline| deadline.ns;
        assert_eq!(ns(Deadline::verifying(Some(300.0))), 5_300_000);
        assert_eq!(ns(Deadline::timing(Some(300.0))), 1_300_000);
        assert_eq!(ns(Deadline::timing(None)), 1_000_000_000);
        assert_eq!(ns(Deadline::timing(Some(f64::NAN))), 1_000_000_000);
        assert_eq!(ns(Deadline::timing(Some(-1.0))), 1_000_000);
        assert_eq!(ns(Deadline::timing(Some(1e300))), u64::MAX);
    }

    #[test]
    fn the_error_of_a_kernel_that_gave_up_names_the_wait() {
        let error = gave_up("merged{rows=4}", Deadline::verifying(Some(1000.0)));
        assert!(error.starts_with("merged{rows=4} waited 6.0 ms"), "{error}");
    }

    #[test]
    fn arguments_have_the_size_that_kernels_declare() {
        assert_eq!(size(Arg::Epoch, Dtype::F64), 4);
        assert_eq!(size(Arg::DeadlineNs, Dtype::F32), 8);
        assert_eq!(size(Arg::Turn { even: 0, odd: 1 }, Dtype::F32), 8);
        let alpha = [Dtype::F16, Dtype::F32, Dtype::F64].map(|dtype| size(Arg::Alpha, dtype));
        assert_eq!(alpha, [4, 4, 8]);
        assert_eq!(factor(-0.5, Dtype::F16), 0xbf00_0000);
        assert_eq!(f64::from_bits(factor(-0.5, Dtype::F64)), -0.5);
    }
}
