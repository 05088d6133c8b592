//! CUDA graphs: several launches recorded from the stream once and launched together, with no host time between them.

use super::context::Context;
use crate::engine::EngineError;
use cudarc::driver::sys::{CUgraph, CUgraphExec};
use std::sync::{Arc, Mutex, PoisonError};

/// A graph ready to be launched any number of times.
pub(super) struct Graph {
    context: Arc<Context>,
    handle: CUgraphExec,
}

// SAFETY: a handle into a context; see `Context`. The engine launches from one thread at a time.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

/// The last graphs that were recorded, with all the numbers that they were recorded from. A trial compiles, verifies and
/// times one program, and a graph of a thousand nodes should not be recorded three times.
#[derive(Default)]
pub(super) struct Recording {
    last: Mutex<Option<Recorded>>,
}

struct Recorded {
    numbers: Vec<u64>,
    graphs: Arc<[Graph]>,
}

impl Recording {
    /// The graphs of these numbers; records them if the last graphs were of other numbers.
    pub(super) fn of(
        &self,
        numbers: Vec<u64>,
        record: impl FnOnce() -> Result<Arc<[Graph]>, EngineError>,
    ) -> Result<Arc<[Graph]>, EngineError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(recorded) = &*last
            && recorded.numbers == numbers
        {
            return Ok(recorded.graphs.clone());
        }
        // Dropped before the new ones are made, so that both need not fit the device together.
        *last = None;
        let graphs = record()?;
        *last = Some(Recorded { numbers, graphs: graphs.clone() });
        Ok(graphs)
    }
}

impl Graph {
    /// Records what `queue` queues instead of running it. Recorded rather than built node by node, since a recorded launch is
    /// exactly the launch that a single step makes: clusters and zeroing are included without further code.
    pub(super) fn record(
        context: &Arc<Context>,
        queue: impl FnOnce() -> Result<(), EngineError>,
    ) -> Result<Self, EngineError> {
        // What other threads do with the driver must not affect this recording.
        const THREAD_LOCAL: u32 = 1;
        let api = &context.driver.api;
        // SAFETY: the stream is ours and records nothing yet.
        let code = unsafe { (api.capture_begin)(context.stream, THREAD_LOCAL) };
        context.driver.check("cuStreamBeginCapture", code)?;
        let queued = queue();
        let mut graph: CUgraph = std::ptr::null_mut();
        // Also after a launch that failed: the stream must leave recording mode.
        // SAFETY: out-pointer to a local; the stream records since above.
        let code = unsafe { (api.capture_end)(context.stream, &mut graph) };
        let ended = context.driver.check("cuStreamEndCapture", code);
        let mut handle: CUgraphExec = std::ptr::null_mut();
        let made = queued.and(ended).and_then(|()| {
            // SAFETY: out-pointer to a local; the recording ended well, so the graph is whole.
            let code = unsafe { (api.graph_instantiate)(&mut handle, graph, 0) };
            context.driver.check("cuGraphInstantiate", code)
        });
        if !graph.is_null() {
            // SAFETY: made above, destroyed once; what was instantiated does not need it.
            unsafe { (api.graph_destroy)(graph) };
        }
        made?;
        let graph = Self { context: context.clone(), handle };
        // Otherwise the first launch would upload it to the device, perhaps while it is timed.
        // SAFETY: graph and stream are alive.
        let code = unsafe { (api.graph_upload)(handle, context.stream) };
        context.driver.check("cuGraphUpload", code)?;
        Ok(graph)
    }

    /// Queues the whole graph.
    pub(super) fn launch(&self) -> Result<(), EngineError> {
        let context = &self.context;
        // SAFETY: graph and stream are alive.
        let code = unsafe { (context.driver.api.graph_launch)(self.handle, context.stream) };
        context.driver.check("cuGraphLaunch", code)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated once, destroyed once; the driver keeps what is still running.
        unsafe { (self.context.driver.api.graph_exec_destroy)(self.handle) };
    }
}
