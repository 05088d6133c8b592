//! An engine that replays recorded outcomes, including hangs and crashes, so that the layers above can be tested
//! without a device.

mod recording;

pub use recording::{Act, Header, Record, Recording, RecordingError, Step};

use super::{Check, Engine, EngineError, Operands};
use crate::domain::protocol::{Effort, Exported};
use crate::domain::recipe::{Compiled, Recipe};
use crate::domain::{Candidate, Clock, Device, Digest, Timing};
use std::path::Path;
use std::time::Duration;

/// Replays a recording. Candidates without a record are refused.
pub struct ReplayEngine {
    recording: Recording,
}

impl ReplayEngine {
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        Ok(Self::new(Recording::open(path)?))
    }

    pub fn new(recording: Recording) -> Self {
        Self { recording }
    }

    /// The recorded behaviour, after performing its effect on the process in this step.
    fn act(&self, candidate: &Candidate, step: Step) -> Result<&Act, EngineError> {
        let act = self.recording.acts.get(candidate).ok_or_else(|| {
            EngineError::Refused(format!("the recording has no record for {candidate}"))
        })?;
        match act {
            Act::Hang { during } if *during == step => hang(),
            Act::Die { during } if *during == step => std::process::abort(),
            Act::Lost { during, detail } if *during == step => {
                Err(EngineError::Lost(detail.clone()))
            }
            Act::CompileFailed { detail } => Err(EngineError::Compile(detail.clone())),
            Act::Refused { detail } => Err(EngineError::Refused(detail.clone())),
            _ => Ok(act),
        }
    }
}

impl Engine for ReplayEngine {
    fn device(&self) -> &Device {
        &self.recording.device
    }

    fn load(&mut self, _: Operands) -> Result<(), EngineError> {
        Ok(())
    }

    fn prepare(&mut self, _: &[Recipe]) {}

    fn compile(&mut self, recipe: &Recipe) -> Result<Compiled, EngineError> {
        let act = self.act(&recipe.candidate, Step::Compile)?;
        Ok(match act {
            Act::Measured { resources, prepare_ms, .. } => {
                Compiled { resources: *resources, prepare_ms: *prepare_ms, ..Compiled::default() }
            }
            _ => Compiled::default(),
        })
    }

    fn verify(&mut self, recipe: &Recipe, _give_up_us: Option<f64>) -> Result<Check, EngineError> {
        Ok(match self.act(&recipe.candidate, Step::Verify)? {
            Act::Stopped { detail } => return Err(EngineError::Watchdog(detail.clone())),
            Act::Measured { rel_error, .. } => {
                Check { rel_error: *rel_error, unwritten: 0, worst: 0 }
            }
            Act::Wrong { rel_error, unwritten } => Check {
                rel_error: rel_error.unwrap_or(f64::INFINITY),
                unwritten: *unwritten,
                worst: 0,
            },
            _ => Check { rel_error: 0.0, unwritten: 0, worst: 0 },
        })
    }

    fn time(&mut self, recipe: &Recipe, effort: &Effort) -> Result<Timing, EngineError> {
        let act = self.act(&recipe.candidate, Step::Time)?;
        // Each sample takes its part of the delay, the first whatever the time.
        let samples = samples(act, effort.clock);
        let samples = &samples[..samples.len().min(effort.max_samples as usize)];
        let latency_ms = match act {
            Act::Measured { latency_ms, .. } => *latency_ms as f64,
            _ => 0.0,
        };
        let each_ms = latency_ms / samples.len().max(1) as f64;
        let fitting = effort.left_ms.map_or(samples.len(), |left_ms| match latency_ms > left_ms {
            true => ((left_ms / each_ms) as usize).clamp(1, samples.len().max(1)),
            false => samples.len(),
        });
        std::thread::sleep(Duration::from_secs_f64(each_ms * fitting as f64 / 1e3));
        let timing = timing(&recipe.candidate, samples.iter().take(fitting), effort.clock)?;
        Ok(timing.cut_if(fitting < samples.len()))
    }

    fn pair(
        &mut self,
        recipes: &[Recipe],
        rounds: u32,
        clock: Clock,
        _give_up_us: Option<f64>,
    ) -> Result<Vec<Timing>, EngineError> {
        let paired = |recipe: &Recipe| {
            let samples = samples(self.act(&recipe.candidate, Step::Pair)?, clock).iter();
            timing(&recipe.candidate, samples.cycle().take(rounds as usize), clock)
        };
        recipes.iter().map(paired).collect()
    }

    fn export(&mut self, recipe: &Recipe) -> Result<Exported, EngineError> {
        let family = &recipe.candidate.family;
        let kernel_digest = Some(Digest::of(family.as_bytes()));
        Ok(Exported { kernel_digest, ..Exported::routine(family, Vec::new()) })
    }
}

fn samples(act: &Act, clock: Clock) -> &[f64] {
    match act {
        Act::Measured { alone_us: Some(alone), .. } if clock == Clock::Isolated => alone,
        Act::Measured { samples_us, .. } => samples_us,
        _ => &[],
    }
}

fn timing<'a>(
    candidate: &Candidate,
    samples: impl Iterator<Item = &'a f64>,
    clock: Clock,
) -> Result<Timing, EngineError> {
    Timing::of(samples.copied().collect(), 0).map(|timing| timing.by(clock)).ok_or_else(|| {
        EngineError::Refused(format!("the recording has no samples for {candidate}"))
    })
}

fn hang() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
