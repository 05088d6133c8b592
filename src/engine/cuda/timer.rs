//! Timing single calls with CUDA events: gated batches, adaptive repetition, cache policy; throttled batches are discarded.
//!
//! An event's time is taken when the stream reaches it. If the host queues event, kernel, event one by one on an idle
//! stream, a short kernel's interval holds the host's launch latency (several microseconds). So each batch starts with
//! a gate: a kernel that waits, bounded, until the host has queued the whole batch. Then the calls run back to back.

use super::baseline::{Factors, Routine};
use super::context::{Buffer, Context, Event, HostFlag};
use super::launch::{Launch, refused};
use super::nvml::Monitor;
use super::own::OwnKernels;
use super::steps::Steps;
use crate::domain::protocol::Effort;
use crate::domain::{L2Policy, Timing};
use crate::engine::EngineError;
use std::sync::Arc;

/// Most calls of one batch. The driver's queue holds about a thousand entries; a call takes at most about ten (sweep, two
/// events, zeroing, the vendor's kernels), and a full queue would block the host before the gate opens.
const MOST_CALLS: usize = 48;

/// Most queue entries of one batch if calls are graphs: each of their launches may take one.
const MOST_ENTRIES: usize = 10 * MOST_CALLS;

/// Entries of every call: sweep, start, end.
const OWN_ENTRIES: usize = 3;

/// Approximate measured time of one batch: short enough to follow the clocks, long enough to be worth reading them.
const BATCH_US: f64 = 10_000.0;

/// The longest time for which the gate stays closed.
const GATE_NS: u64 = 50_000_000;

/// Threads per block of the sweep.
const SWEEP_THREADS: u32 = 256;

/// An operation that can be queued repeatedly.
pub(super) enum Call {
    Steps(Steps),
    Vendor(Arc<Routine>, Factors),
}

impl Call {
    pub(super) fn enqueue(&self) -> Result<(), EngineError> {
        match self {
            Self::Steps(steps) => steps.enqueue(),
            Self::Vendor(routine, factors) => routine.enqueue(factors),
        }
    }

    /// Resets the state, before a call that must not depend on earlier ones.
    pub(super) fn refill(&self) -> Result<(), EngineError> {
        match self {
            Self::Steps(steps) => steps.refill(),
            Self::Vendor(..) => Ok(()),
        }
    }

    /// After calls: fails if one of them did not complete.
    pub(super) fn watch(&self) -> Result<(), EngineError> {
        match self {
            Self::Steps(steps) => steps.watch(),
            Self::Vendor(..) => Ok(()),
        }
    }

    /// How many of these calls a batch holds.
    fn most(&self) -> usize {
        match self {
            Self::Steps(steps) => most_calls(steps.entries()),
            Self::Vendor(..) => MOST_CALLS,
        }
    }
}

pub(super) struct Timer {
    context: Arc<Context>,
    flag: HostFlag,
    gate: Launch,
    sweep: Launch,
    /// The buffers that the sweep's pointers refer to.
    _swept: Buffer,
    _sink: Buffer,
    /// Start and end of each call of a batch.
    events: Vec<[Event; 2]>,
    monitor: Option<Monitor>,
}

/// The samples of one batch.
struct Batch {
    us: Vec<f64>,
    throttled: bool,
}

impl Timer {
    pub(super) fn new(
        context: &Arc<Context>,
        own: &OwnKernels,
        l2_bytes: u64,
        multiprocessors: u32,
        monitor: Option<Monitor>,
    ) -> Result<Self, EngineError> {
        let flag = HostFlag::new(context)?;
        let gate = Launch::own(context, &own.gate, 1, 1, vec![flag.address(), GATE_NS]);
        // More than twice the cache, so that no replacement policy keeps a part of the operands.
        let bytes = (2 * l2_bytes + (8 << 20)) as usize;
        let swept = Buffer::new(context, bytes)?;
        context.fill(swept.pointer, 0, bytes / 4)?;
        let sink = Buffer::new(context, 4)?;
        let arguments = vec![swept.pointer, bytes as u64 / 16, sink.pointer];
        let sweep = Launch::own(context, &own.sweep, multiprocessors * 4, SWEEP_THREADS, arguments);
        let events = (0..MOST_CALLS)
            .map(|_| Ok([Event::new(context)?, Event::new(context)?]))
            .collect::<Result<_, EngineError>>()?;
        context.synchronize()?;
        let context = context.clone();
        Ok(Self { context, flag, gate, sweep, _swept: swept, _sink: sink, events, monitor })
    }

    /// Samples of one call until the effort is spent.
    pub(super) fn time(
        &mut self,
        call: &Call,
        effort: &Effort,
        policy: L2Policy,
    ) -> Result<Timing, EngineError> {
        // It was verified before, so the kernel is loaded and its operands are on the device: one call suffices for an
        // estimate.
        let first = self.batch(&[call], policy)?.us;
        if first.iter().any(|us| effort.gives_up_at(*us)) {
            return Timing::of(first, 0)
                .ok_or_else(|| EngineError::Refused("no sample was taken".to_owned()));
        }
        self.warm_up(call, effort.warmups, policy)?;
        let most = effort.max_samples.max(effort.min_samples).max(1) as usize;
        let least = effort.min_samples.max(1) as usize;
        let estimate_us = self.batch(&[call], policy)?.us.first().copied().unwrap_or(0.0);
        let calls = calls_per_batch(estimate_us, call.most());
        let (mut kept, mut dropped) = (Vec::with_capacity(most), 0usize);
        let mut spent_us = 0.0;
        // A device that throttles continuously is given twice the samples to recover, then this ends.
        while kept.len() < most && kept.len() + dropped < 2 * most {
            let budget_us = effort.budget_ms * 1e3;
            let enough = kept.len() >= least && spent_us >= budget_us;
            let hopeless = kept.len() + dropped >= least && spent_us >= 2.0 * budget_us;
            if enough || hopeless {
                break;
            }
            let calls = calls.min(most - kept.len());
            let batch = self.batch(&vec![call; calls], policy)?;
            spent_us += batch.us.iter().sum::<f64>();
            match batch.throttled {
                true => dropped += batch.us.len(),
                false => kept.extend(batch.us),
            }
        }
        timing(kept, dropped)
    }

    /// Samples of several calls in rotation: A B C A B C ..., `rounds` kept of each; a throttled round is discarded as a
    /// whole.
    pub(super) fn pair(
        &mut self,
        calls: &[Call],
        rounds: u32,
        policy: L2Policy,
    ) -> Result<Vec<Timing>, EngineError> {
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        for call in calls {
            self.warm_up(call, 2, policy)?;
        }
        let round: Vec<&Call> = calls.iter().collect();
        let most = calls.iter().map(Call::most).min().unwrap_or(MOST_CALLS);
        let probe = self.batch(&round[..round.len().min(most)], policy)?.us;
        let mean_us = probe.iter().sum::<f64>() / probe.len() as f64;
        let turns_per_batch = calls_per_batch(mean_us, most) / round.len();
        let rounds = rounds.max(1) as usize;
        let mut kept = vec![Vec::with_capacity(rounds); calls.len()];
        let (mut done, mut dropped) = (0, 0);
        while done < rounds && done + dropped < 2 * rounds {
            let fitting = turns_per_batch.clamp(1, rounds - done);
            let mut us = Vec::with_capacity(round.len() * fitting);
            let mut throttled = false;
            // Each round begins with another call, so that none always runs after the same other one, on what it left in L2.
            let order: Vec<usize> = (0..round.len() * fitting)
                .map(|turn| (turn + (done + turn / round.len())) % round.len())
                .collect();
            let turns: Vec<&Call> = order.iter().map(|&at| round[at]).collect();
            for part in turns.chunks(most) {
                let batch = self.batch(part, policy)?;
                throttled |= batch.throttled;
                us.extend(batch.us);
            }
            if throttled {
                dropped += fitting;
                continue;
            }
            done += fitting;
            for (at, sample) in order.into_iter().zip(us) {
                kept[at].push(sample);
            }
        }
        kept.into_iter().map(|samples| timing(samples, dropped)).collect()
    }

    fn warm_up(&self, call: &Call, times: u32, policy: L2Policy) -> Result<(), EngineError> {
        // At least once even without warm-ups: the driver loads code lazily, which must not happen behind the gate.
        for _ in 0..times.max(1) {
            if policy == L2Policy::Cold {
                self.sweep.enqueue()?;
            }
            call.enqueue()?;
            self.context.synchronize()?;
        }
        Ok(())
    }

    /// Queues up to `MOST_CALLS` calls behind the gate, opens it, and reads each call's time.
    fn batch(&mut self, calls: &[&Call], policy: L2Policy) -> Result<Batch, EngineError> {
        let before = self.throttled();
        self.flag.set(0);
        self.gate.enqueue()?;
        let queued = self.queue(calls, policy);
        self.flag.set(1);
        queued?;
        self.context.synchronize()?;
        watch(calls)?;
        let throttled = before || self.throttled();
        let us = self.events.iter().zip(calls).map(|([start, end], _)| end.since_us(start));
        Ok(Batch { us: us.collect::<Result<_, _>>()?, throttled })
    }

    fn queue(&self, calls: &[&Call], policy: L2Policy) -> Result<(), EngineError> {
        for ([start, end], call) in self.events.iter().zip(calls) {
            if policy == L2Policy::Cold {
                self.sweep.enqueue()?;
            }
            start.record()?;
            call.enqueue()?;
            end.record()?;
        }
        Ok(())
    }

    fn throttled(&self) -> bool {
        self.monitor.as_ref().is_some_and(Monitor::throttled)
    }
}

/// Whether each call of a batch completed. Each distinct one is checked, also after one that did not complete: it has to be
/// reset, too.
fn watch(calls: &[&Call]) -> Result<(), EngineError> {
    let mut all = Ok(());
    for (at, call) in calls.iter().enumerate() {
        if !calls[..at].iter().any(|earlier| std::ptr::eq(*earlier, *call)) {
            all = all.and(call.watch());
        }
    }
    all
}

/// How many calls of this many launches a batch holds.
fn most_calls(launches: usize) -> usize {
    (MOST_ENTRIES / (launches + OWN_ENTRIES)).clamp(1, MOST_CALLS)
}

fn calls_per_batch(estimate_us: f64, most: usize) -> usize {
    ((BATCH_US / estimate_us.max(1.0)) as usize).clamp(1, most)
}

fn timing(kept: Vec<f64>, dropped: usize) -> Result<Timing, EngineError> {
    Timing::of(kept, dropped as u32)
        .ok_or_else(|| refused("the device throttled during every sample".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_bounded_both_ways() {
        assert_eq!(calls_per_batch(0.0, MOST_CALLS), MOST_CALLS);
        assert_eq!(calls_per_batch(2_000.0, MOST_CALLS), 5);
        assert_eq!(calls_per_batch(1e9, MOST_CALLS), 1);
        assert_eq!(calls_per_batch(2_000.0, 3), 3);
    }

    #[test]
    fn long_programs_share_the_queue() {
        assert_eq!(most_calls(1), MOST_CALLS);
        assert_eq!(most_calls(45), 10);
        assert_eq!(most_calls(100_000), 1);
    }

    #[test]
    fn nothing_but_throttled_samples_is_refused() {
        assert!(timing(Vec::new(), 7).unwrap_err().to_string().contains("throttled"));
        assert_eq!(timing(vec![2.0], 1).unwrap().dropped, 1);
    }
}
