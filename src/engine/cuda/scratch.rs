//! The device memory of each recipe, the number of calls that have used it, and the word that a waiting kernel sets to give
//! up.

use super::context::{Buffer, Context};
use super::graph::Recording;
use super::launch::refused;
use crate::domain::recipe::{Arg, CudaProgram, Recipe, Scratch};
use crate::domain::{Candidate, Digest};
use crate::engine::EngineError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The memory of the recipes in use: those of one trial or one final. It is freed for the next recipes, so that a load of a
/// thousand candidates needs no more than one of them does.
#[derive(Default)]
pub(super) struct Scratches {
    kept: Vec<(Key, Arc<Memory>)>,
}

/// Recipes of one candidate with the same program text share their memory: they are one recipe, lowered twice.
#[derive(Clone, Debug, PartialEq)]
struct Key {
    candidate: Candidate,
    program: Digest,
    scratch: Vec<Scratch>,
    watched: bool,
}

/// The candidate that the memory belongs to.
pub(super) struct Owner<'a> {
    pub(super) recipe: &'a Recipe,
    pub(super) program: &'a CudaProgram,
    /// Digest of the program's text.
    pub(super) digest: Digest,
}

/// One recipe's memory.
pub(super) struct Memory {
    context: Arc<Context>,
    buffers: Vec<(Buffer, Scratch)>,
    /// `Arg::Status`: 0 unless a call gave up since the last refill. Each recipe has a separate word, so that in a batch of
    /// several recipes one that gives up does not end the others.
    status: Option<Buffer>,
    /// Calls queued since the last refill.
    calls: AtomicU64,
    /// The program as a graph on this memory, if it has several steps.
    pub(super) recording: Recording,
}

impl Scratches {
    /// The memory of each of these recipes, allocated and filled if necessary; all other memory is freed first.
    pub(super) fn take(
        &mut self,
        context: &Arc<Context>,
        wanted: &[&Owner<'_>],
    ) -> Result<Vec<Arc<Memory>>, EngineError> {
        let keys: Vec<Key> = wanted.iter().map(|owner| Key::of(owner)).collect();
        self.kept.retain(|(key, _)| keys.contains(key));
        let mut taken = Vec::with_capacity(keys.len());
        for key in keys {
            // Also those made in this loop: the same recipe may be requested twice.
            if let Some((_, memory)) = self.kept.iter().find(|(kept, _)| *kept == key) {
                taken.push(memory.clone());
                continue;
            }
            let memory = Arc::new(Memory::new(context, &key.scratch, key.watched)?);
            taken.push(memory.clone());
            self.kept.push((key, memory));
        }
        Ok(taken)
    }

    /// Frees all memory.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
    }
}

impl Key {
    fn of(owner: &Owner<'_>) -> Self {
        Self {
            candidate: owner.recipe.candidate.clone(),
            program: owner.digest,
            scratch: owner.recipe.scratch.clone(),
            watched: watched(owner.program),
        }
    }
}

/// Whether a kernel of the program can report that it gave up.
pub(super) fn watched(program: &CudaProgram) -> bool {
    program.steps.iter().any(|step| step.args.contains(&Arg::Status))
}

impl Memory {
    pub(super) fn new(
        context: &Arc<Context>,
        scratch: &[Scratch],
        watched: bool,
    ) -> Result<Self, EngineError> {
        let buffers = scratch.iter().map(|&scratch| {
            // Whole words, since filling works on words.
            let bytes =
                usize::try_from(scratch.bytes).ok().and_then(|b| b.checked_next_multiple_of(4));
            let bytes = bytes
                .ok_or_else(|| refused(format!("{} bytes of scratch memory", scratch.bytes)))?;
            Ok((Buffer::new(context, bytes)?, scratch))
        });
        let memory = Self {
            context: context.clone(),
            buffers: buffers.collect::<Result<_, EngineError>>()?,
            status: watched.then(|| Buffer::new(context, 4)).transpose()?,
            calls: AtomicU64::new(0),
            recording: Recording::default(),
        };
        memory.refill()?;
        Ok(memory)
    }

    /// Resets everything to the state before the first call.
    pub(super) fn refill(&self) -> Result<(), EngineError> {
        for (pointer, word, words) in self.fills() {
            self.context.fill(pointer, word, words)?;
        }
        if let Some(status) = &self.status {
            self.context.fill(status.pointer, 0, 1)?;
        }
        self.calls.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Address, word and number of words of each buffer's fill.
    pub(super) fn fills(&self) -> impl Iterator<Item = (u64, u32, usize)> {
        self.buffers
            .iter()
            .map(|(buffer, scratch)| (buffer.pointer, scratch.fill, buffer.bytes / 4))
    }

    /// The number of the call that is about to be queued, counted from 0.
    pub(super) fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Device address of a scratch buffer.
    pub(super) fn address(&self, index: usize) -> Result<u64, EngineError> {
        let buffer = self.buffers.get(index).map(|(buffer, _)| buffer.pointer);
        buffer.ok_or_else(|| refused(format!("the recipe has no scratch {index}")))
    }

    /// Device address of the status word.
    pub(super) fn status(&self) -> Result<u64, EngineError> {
        let address = self.status.as_ref().map(|buffer| buffer.pointer);
        address.ok_or_else(|| refused("the program has no status word".to_owned()))
    }

    /// Whether a call gave up since the last refill; waits for all queued work if the program can report this.
    pub(super) fn gave_up(&self) -> Result<bool, EngineError> {
        let Some(status) = &self.status else { return Ok(false) };
        let mut word = [0u32];
        status.read(0, &mut word)?;
        Ok(word[0] != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::recipe::{Program, Step};

    fn recipe(candidate: &str, bytes: u64, args: Vec<Arg>) -> (Recipe, CudaProgram) {
        let program = CudaProgram::of("text".to_owned(), Step::of("k", 1, 32, args));
        let bare = Recipe::bare(&Candidate::new(candidate), Program::Cuda(program.clone()));
        (Recipe { scratch: vec![Scratch { bytes, fill: 0 }], ..bare }, program)
    }

    #[test]
    fn memory_is_one_recipes() {
        let digest = Digest::of(b"text");
        let key = |(recipe, program): (Recipe, CudaProgram), digest| {
            Key::of(&Owner { recipe: &recipe, program: &program, digest })
        };
        let first = key(recipe("a", 64, vec![]), digest);
        assert_eq!(first, key(recipe("a", 64, vec![Arg::Scratch(0)]), digest));
        assert_ne!(first, key(recipe("b", 64, vec![]), digest));
        assert_ne!(first, key(recipe("a", 65, vec![]), digest));
        assert_ne!(first, key(recipe("a", 64, vec![]), Digest::of(b"other")));
        // The same text, but now with a status word.
        assert_ne!(first, key(recipe("a", 64, vec![Arg::Status]), digest));
    }

    #[test]
    fn a_program_that_names_the_status_is_watched() {
        assert!(!watched(&recipe("a", 1, vec![Arg::DeadlineNs]).1));
        assert!(watched(&recipe("a", 1, vec![Arg::C, Arg::Status]).1));
    }
}
