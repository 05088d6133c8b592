//! The evaluator's state between requests: the open engine, the loaded problem, and recipes lowered ahead of time.

use super::load::{self, LoadError};
use super::{DeviceSelector, EvaluatorError, EvaluatorOptions, Lowering};
use super::{arrays, engines, hostile, trial};
use crate::domain::protocol::{
    Effort, Load, MAX_LINE_BYTES, Message, MessageBody, PROTOCOL_VERSION, Reply, RequestBody,
};
use crate::domain::recipe::Recipe;
use crate::domain::{Candidate, Clock, Outcome, Problem};
use crate::engine::{Engine, EngineError};
use crate::fence::Passed;
use crate::ops::{Lowerer, Refusal};
use crate::sparse::Csr;
use std::collections::HashMap;
use std::io::Write;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// Most stage notes per request for lowered finalists and written arrays, since the pool limits their number.
const MOST_NOTES: usize = 24;

/// The stage in which an array of a plan is written to its file.
const WRITING: &str = "writing";

/// Whether to continue with another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Request,
    End,
}

pub(super) struct Session<'a, W: Write> {
    options: &'a EvaluatorOptions,
    lowering: &'a dyn Lowering,
    passed: Passed,
    output: W,
    engine: Option<Box<dyn Engine>>,
    loaded: Option<LoadedProblem>,
}

struct LoadedProblem {
    matrix: Arc<Csr>,
    problem: Problem,
    tolerance: f64,
    lowerer: Box<dyn Lowerer>,
    /// Recipes lowered ahead and not yet measured. A measured recipe is dropped, because thousands of them could each
    /// hold a permutation of all rows; the few finalists are quickly lowered again.
    prepared: HashMap<Candidate, Recipe>,
}

impl<'a, W: Write> Session<'a, W> {
    pub(super) fn new(
        options: &'a EvaluatorOptions,
        lowering: &'a dyn Lowering,
        passed: Passed,
        output: W,
    ) -> Self {
        Self { options, lowering, passed, output, engine: None, loaded: None }
    }

    /// Carries out one request. Stage notes are written meanwhile; the caller writes the reply.
    pub(super) fn carry_out(
        &mut self,
        seq: u64,
        request: RequestBody,
    ) -> Result<Reply, EvaluatorError> {
        match request {
            RequestBody::Open { protocol } => self.open(protocol),
            RequestBody::Load(load) => self.load(seq, &load),
            RequestBody::Prepare { candidates } => self.prepare(candidates),
            RequestBody::Measure { candidate, effort } => self.measure(seq, &candidate, &effort),
            RequestBody::Pair { candidates, rounds, clock, give_up_us } => {
                self.pair(seq, &candidates, rounds, clock, give_up_us)
            }
            RequestBody::Export { candidate, folder } => {
                self.export(seq, &candidate, folder.as_deref())
            }
            RequestBody::Close => Ok(Reply::Closed),
        }
    }

    pub(super) fn reply(&mut self, seq: u64, reply: Reply) -> Result<(), EvaluatorError> {
        send(&mut self.output, seq, MessageBody::Reply(reply))
    }

    /// Replies that the request failed; the session continues.
    pub(super) fn fail(
        &mut self,
        seq: u64,
        error: &EvaluatorError,
    ) -> Result<Next, EvaluatorError> {
        self.reply(seq, Reply::Failed { error: error.to_string() })?;
        Ok(Next::Request)
    }

    fn open(&mut self, theirs: u32) -> Result<Reply, EvaluatorError> {
        if theirs != PROTOCOL_VERSION {
            return Err(EvaluatorError::Version { ours: PROTOCOL_VERSION, theirs });
        }
        let engine = match self.engine.take() {
            Some(engine) => engine,
            None => engines::open(self.options)?,
        };
        let device = engines::with_kernels(engine.device(), self.options);
        self.engine = Some(engine);
        Ok(Reply::Opened(Box::new(device)))
    }

    fn load(&mut self, seq: u64, load: &Load) -> Result<Reply, EvaluatorError> {
        let engine = self.engine.as_mut().ok_or(EvaluatorError::NotOpen)?;
        // Free the old problem's memory before allocating the new one's.
        self.loaded = None;
        let started = Instant::now();
        send_stage(&mut self.output, seq, load::READING)?;
        let loading = load::read(load, self.passed.take())?;
        let matrix = loading.matrix.clone();
        send_stage(&mut self.output, seq, load::MULTIPLYING)?;
        // Both read the matrix, and neither has work for all threads.
        let (lowering, device) = (self.lowering, engine.device());
        let (lowerer, operands) = thread::scope(|scope| {
            let lowerer = scope.spawn(|| lowering.begin(matrix.clone(), &load.problem, device));
            let operands = loading.operands(load);
            (lowerer.join().unwrap_or_else(|panic| resume_unwind(panic)), operands)
        });
        let (lowerer, operands) = (lowerer.map_err(LoadError::from)?, operands?);
        send_stage(&mut self.output, seq, load::UPLOADING)?;
        engine.load(operands).map_err(|error| match error {
            EngineError::Lost(detail) => EvaluatorError::Lost(detail),
            other => LoadError::Engine(other.to_string()).into(),
        })?;
        self.loaded = Some(LoadedProblem {
            problem: load.problem,
            tolerance: loading.tolerance(),
            lowerer,
            matrix,
            prepared: HashMap::new(),
        });
        Ok(Reply::Loaded(loading.facts(engine.device(), started)))
    }

    /// Lowers here and compiles in the engine's background threads. A candidate that cannot be lowered is refused when
    /// measured.
    fn prepare(&mut self, candidates: Vec<Candidate>) -> Result<Reply, EvaluatorError> {
        let (engine, loaded) = both(&mut self.engine, &mut self.loaded)?;
        let unprepared = |candidate: &Candidate| !loaded.prepared.contains_key(candidate);
        let candidates: Vec<Candidate> = candidates.into_iter().filter(unprepared).collect();
        loaded.lowerer.prepare(&candidates);
        let mut recipes = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            match loaded.lower(&candidate, self.options) {
                Ok(recipe) => recipes.push(recipe),
                Err(refusal) => tracing::debug!(%candidate, %refusal, "not prepared"),
            }
        }
        engine.prepare(&recipes);
        loaded.prepared.extend(recipes.into_iter().map(|r| (r.candidate.clone(), r)));
        Ok(Reply::Prepared)
    }

    fn measure(
        &mut self,
        seq: u64,
        candidate: &Candidate,
        effort: &Effort,
    ) -> Result<Reply, EvaluatorError> {
        let began = Instant::now();
        let (engine, loaded) = both(&mut self.engine, &mut self.loaded)?;
        send_stage(&mut self.output, seq, trial::LOWERING)?;
        let recipe = match loaded.take(candidate, self.options) {
            Ok(recipe) => recipe,
            Err(Refusal(detail)) => return Ok(trial::measured(Outcome::Refused { detail }, None)),
        };
        let output = &mut self.output;
        let effort = effort.after(began.elapsed());
        trial::run(engine, &recipe, effort, loaded.tolerance, |stage| {
            send_stage(output, seq, stage)
        })
    }

    fn pair(
        &mut self,
        seq: u64,
        candidates: &[Candidate],
        rounds: u32,
        clock: Clock,
        give_up_us: Option<f64>,
    ) -> Result<Reply, EvaluatorError> {
        let (engine, loaded) = both(&mut self.engine, &mut self.loaded)?;
        let mut recipes = Vec::with_capacity(candidates.len());
        for (number, candidate) in candidates.iter().enumerate() {
            // A note per candidate, so that each has its own deadline.
            if number < MOST_NOTES {
                send_stage(&mut self.output, seq, trial::LOWERING)?;
            }
            let recipe = loaded
                .take(candidate, self.options)
                .map_err(|refusal| failed(candidate, refusal.to_string()))?;
            // Compiled kernels are in the engine's cache, except after a restart.
            engine.compile(&recipe).map_err(|error| failed_call(candidate, error))?;
            recipes.push(recipe);
        }
        send_stage(&mut self.output, seq, trial::TIMING)?;
        match engine.pair(&recipes, rounds, clock, give_up_us) {
            Ok(timings) => Ok(Reply::Paired { timings }),
            Err(EngineError::Lost(detail)) => Err(EvaluatorError::Lost(detail)),
            Err(error) => Err(EvaluatorError::Pair(error.to_string())),
        }
    }

    fn export(
        &mut self,
        seq: u64,
        candidate: &Candidate,
        folder: Option<&Path>,
    ) -> Result<Reply, EvaluatorError> {
        let (engine, loaded) = both(&mut self.engine, &mut self.loaded)?;
        send_stage(&mut self.output, seq, trial::LOWERING)?;
        let recipe = loaded
            .take(candidate, self.options)
            .map_err(|refusal| failed(candidate, refusal.to_string()))?;
        send_stage(&mut self.output, seq, trial::COMPILING)?;
        let exported = engine.compile(&recipe).and_then(|_| engine.export(&recipe));
        let mut exported = exported.map_err(|error| failed_call(candidate, error))?;
        // The family's digest as in `Device::kernels`, which also covers the headers of other layouts.
        let kernels = engines::with_kernels(engine.device(), self.options).kernels;
        if let Some(digest) = kernels.get(&candidate.family) {
            exported.kernel_digest = Some(*digest);
        }
        let (output, mut notes) = (&mut self.output, 0);
        let begin = || {
            notes += 1;
            match notes <= MOST_NOTES {
                true => send_stage(output, seq, WRITING).map_err(std::io::Error::other),
                false => Ok(()),
            }
        };
        exported.arrays = arrays::export(
            &recipe.arrays,
            folder,
            |named| self.options.folders.reach(named),
            begin,
        )
        .map_err(|error| failed(candidate, error.to_string()))?;
        Ok(Reply::Exported(Box::new(exported)))
    }
}

impl LoadedProblem {
    fn lower(
        &mut self,
        candidate: &Candidate,
        options: &EvaluatorOptions,
    ) -> Result<Recipe, Refusal> {
        if candidate.family != hostile::FAMILY {
            return self.lowerer.lower(candidate);
        }
        if !options.allow_hostile {
            return Err(Refusal("the hostile family requires --allow-hostile".to_owned()));
        }
        let on_gpu = matches!(options.device, DeviceSelector::Cuda(_));
        hostile::lower(candidate, &self.matrix, &self.problem, on_gpu)
    }

    /// The recipe that was lowered ahead, or one lowered now.
    fn take(
        &mut self,
        candidate: &Candidate,
        options: &EvaluatorOptions,
    ) -> Result<Recipe, Refusal> {
        match self.prepared.remove(candidate) {
            Some(recipe) => Ok(recipe),
            None => self.lower(candidate, options),
        }
    }
}

/// The engine and the problem, if both are available.
fn both<'s>(
    engine: &'s mut Option<Box<dyn Engine>>,
    loaded: &'s mut Option<LoadedProblem>,
) -> Result<(&'s mut dyn Engine, &'s mut LoadedProblem), EvaluatorError> {
    let engine = engine.as_deref_mut().ok_or(EvaluatorError::NotOpen)?;
    Ok((engine, loaded.as_mut().ok_or(EvaluatorError::NotLoaded)?))
}

fn failed(candidate: &Candidate, why: String) -> EvaluatorError {
    EvaluatorError::Candidate { candidate: candidate.to_string(), why }
}

fn failed_call(candidate: &Candidate, error: EngineError) -> EvaluatorError {
    match error {
        EngineError::Lost(detail) => EvaluatorError::Lost(detail),
        other => failed(candidate, other.to_string()),
    }
}

fn send_stage(output: &mut impl Write, seq: u64, stage: &str) -> Result<(), EvaluatorError> {
    send(output, seq, MessageBody::Stage { stage: stage.to_owned() })
}

/// Writes one line with a single write and flushes it.
fn send(output: &mut impl Write, seq: u64, body: MessageBody) -> Result<(), EvaluatorError> {
    let json = |body| serde_json::to_vec(&Message { seq, body }).map_err(std::io::Error::from);
    let mut line = json(body)?;
    if line.len() as u64 >= MAX_LINE_BYTES {
        // The pool would treat a longer line as garbage and kill this process.
        let error = format!("the answer has {} bytes, above the protocol's limit", line.len());
        line = json(MessageBody::Reply(Reply::Failed { error }))?;
    }
    line.push(b'\n');
    output.write_all(&line)?;
    Ok(output.flush()?)
}
