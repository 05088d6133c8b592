//! The kernels of a plan with their scratch memory: bound once, queued at every call.

use super::super::context::{Context, HostFlag, Module};
use super::super::launch::{LoadedKernel, refused};
use super::super::limits;
use super::super::scratch::Memory;
use super::arrays::Arrays;
use super::bind::{Addresses, Arguments, check_sizes};
use super::sequence::{Fill, Launch, Report, Sequence, Set};
use super::target;
use crate::domain::bundle::{Argument, BundleStep, CudaForward, GraphUse, Manifest};
use crate::domain::recipe::Step;
use crate::engine::EngineError;
use cudarc::driver::sys::CUdevice_attribute as Limit;
use std::sync::Arc;

pub(super) struct Program {
    pub(super) sequence: Sequence<Arc<LoadedKernel>>,
    /// The usual memory, and that of captured calls.
    memories: Vec<Memory>,
    /// For each memory of a program that can give up, the copy of its status that calls bring to the host.
    reported: Vec<HostFlag>,
}

impl Program {
    pub(super) fn new(
        context: &Arc<Context>,
        module: &Arc<Module>,
        manifest: &Manifest,
        forward: &CudaForward,
        arrays: &Arrays,
        output_bytes: usize,
    ) -> Result<Self, EngineError> {
        if forward.steps.is_empty() {
            return Err(refused("The plan has no step.".to_owned()));
        }
        let kernels = forward.steps.iter().map(|step| kernel(context, module, step));
        let kernels = kernels.collect::<Result<Vec<_>, _>>()?;
        let has_status = |step: &BundleStep| step.arguments.contains(&Argument::Status);
        let watched = forward.steps.iter().any(has_status);
        let sets = match forward.graph {
            GraphUse::Plain => 1,
            GraphUse::Refill => 2,
        };
        let (mut memories, mut made, mut reported) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..sets {
            let memory = Memory::new(context, &manifest.scratch, watched)?;
            let addresses = Addresses {
                array: &|name| arrays.buffer(name).map(|buffer| buffer.pointer),
                scratch: &|index| memory.address(index),
                status: &|| memory.status(),
                max_wait_ns: forward.max_wait_ns,
            };
            let launches = forward.steps.iter().zip(&kernels).map(|(step, kernel)| {
                let BundleStep { grid, block, shared_bytes, overlaps, .. } = step;
                let geometry = context.geometry(*grid, *block, *shared_bytes, *overlaps);
                let arguments = Arguments::of(step, &addresses)?;
                Ok(Launch { kernel: kernel.clone(), geometry, arguments })
            });
            let launches = launches.collect::<Result<_, EngineError>>()?;
            let fill = |(pointer, word, words)| Fill { pointer, word, words };
            let report = match watched {
                true => {
                    let flag = HostFlag::new(context)?;
                    flag.set(0);
                    let report = Report { status: memory.status()?, host: flag.address() };
                    reported.push(flag);
                    Some(report)
                }
                false => None,
            };
            made.push(Set::new(memory.fills().map(fill).collect(), launches, report));
            memories.push(memory);
        }
        let mut made = made.into_iter();
        let usual = made.next().ok_or_else(|| refused("no scratch memory".to_owned()))?;
        let zero_bytes = forward.zero_output.then_some(output_bytes);
        let sequence = Sequence { zero_bytes, usual, captured: made.next() };
        Ok(Self { sequence, memories, reported })
    }

    /// Whether an earlier call has brought to the host that a kernel gave up. Asks nothing of the device.
    pub(super) fn reported(&self) -> bool {
        self.reported.iter().any(|flag| flag.get() != 0)
    }

    /// Whether a kernel gave up since the last answer; if so, all memory is filled again. All work must be complete.
    pub(super) fn gave_up(&mut self) -> Result<bool, EngineError> {
        let mut any = self.reported();
        for memory in &self.memories {
            any |= memory.gave_up()?;
        }
        if any {
            self.memories.iter().try_for_each(Memory::refill)?;
            self.reported.iter().for_each(|flag| flag.set(0));
            self.sequence.restart();
        }
        Ok(any)
    }
}

/// Names of the arrays that the steps read.
pub(super) fn arrays_of(forward: &CudaForward) -> Vec<&str> {
    let arguments = forward.steps.iter().flat_map(|step| &step.arguments);
    arguments
        .filter_map(|argument| match argument {
            Argument::Array { name } => Some(name.as_str()),
            _ => None,
        })
        .collect()
}

/// The kernel of a step, refused if the device or the kernel does not take the launch.
fn kernel(
    context: &Arc<Context>,
    module: &Arc<Module>,
    step: &BundleStep,
) -> Result<Arc<LoadedKernel>, EngineError> {
    let kernel = LoadedKernel::of(context, module, &step.symbol)?;
    check_sizes(step, kernel.parameter_sizes.as_deref())?;
    let launch = Step {
        grid: step.grid,
        block: step.block,
        cluster: step.cluster,
        shared_bytes: step.shared_bytes,
        overlaps: step.overlaps,
        ..Step::of(&step.symbol, 1, 1, Vec::new())
    };
    let opt_in = Limit::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    let most = u64::from(context.driver.attribute(context.device, opt_in)?);
    let needed = u64::from(kernel.static_shared) + u64::from(step.shared_bytes);
    target::check_shared(&step.symbol, needed, most)?;
    limits::check(&kernel, context, &launch)?;
    Ok(Arc::new(kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_arrays_that_steps_read_are_uploaded() {
        let array = |name: &str| Argument::Array { name: name.to_owned() };
        let step = |arguments| BundleStep {
            symbol: "k".to_owned(),
            grid: [1, 1, 1],
            block: [32, 1, 1],
            cluster: 1,
            shared_bytes: 0,
            overlaps: false,
            arguments,
        };
        let forward = CudaForward {
            module: crate::domain::bundle::CudaModule {
                cubin: "kernels/a.cubin".to_owned(),
                ptx: None,
                source: None,
                options: Vec::new(),
                compiler: None,
            },
            steps: vec![step(vec![array("rows"), Argument::B]), step(vec![array("values")])],
            zero_output: false,
            max_wait_ns: 0,
            graph: GraphUse::Plain,
        };
        assert_eq!(arrays_of(&forward), ["rows", "values"]);
    }
}
