//! Timing calls with CUDA events: gated batches, adaptive repetition, cache policy; throttled batches are discarded.
//!
//! An event's time is taken when the stream reaches it. If the host queues event, kernel, event one by one on an idle
//! stream, a short kernel's interval holds the host's launch latency (several microseconds). So each batch starts with
//! a gate: a kernel that waits, bounded, until the host has queued the whole batch. Then the calls run back to back.
//!
//! One sample is the time of a *streak*: of one call (`isolated`), or of several with nothing between them, behind one that
//! is not counted (`pipelined`).

use super::baseline::{Factors, Routine};
use super::batches::{
    MOST_SAMPLES, OWN_ENTRIES, VENDOR_ENTRIES, fitting_calls, fitting_times, portions, turns,
};
use super::context::{Buffer, Context, Event, HostFlag};
use super::launch::{Launch, refused};
use super::nvml::Monitor;
use super::own::OwnKernels;
use super::steps::Steps;
use crate::domain::clock::lead;
use crate::domain::protocol::Effort;
use crate::domain::{Clock, L2Policy, Timing};
use crate::engine::EngineError;
use std::sync::Arc;
use std::time::Instant;

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

    /// Approximate number of entries in the driver's queue that one call takes.
    fn entries(&self) -> usize {
        match self {
            Self::Steps(steps) => steps.entries(),
            Self::Vendor(..) => VENDOR_ENTRIES,
        }
    }

    /// One sample by this clock, of a call of about `estimate_us`.
    fn streak(&self, clock: Clock, estimate_us: f64) -> Streak<'_> {
        Streak { call: self, calls: fitting_calls(clock.calls(estimate_us), self.entries()) }
    }
}

/// What one sample spans: `calls` calls, behind an uncounted one where there are several.
#[derive(Clone, Copy)]
struct Streak<'c> {
    call: &'c Call,
    calls: u32,
}

impl Streak<'_> {
    fn entries(&self) -> usize {
        OWN_ENTRIES + (self.calls + lead(self.calls)) as usize * self.call.entries()
    }

    /// Its time, of calls that take about this long.
    fn us(&self, call_us: f64) -> f64 {
        f64::from(self.calls + lead(self.calls)) * call_us
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
    /// Start and end of each sample of a batch.
    events: Vec<[Event; 2]>,
    monitor: Option<Monitor>,
}

/// The samples of one batch: microseconds per call.
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
        let events = (0..MOST_SAMPLES)
            .map(|_| Ok([Event::new(context)?, Event::new(context)?]))
            .collect::<Result<_, EngineError>>()?;
        context.synchronize()?;
        let context = context.clone();
        Ok(Self { context, flag, gate, sweep, _swept: swept, _sink: sink, events, monitor })
    }

    /// Samples of one call by the effort's clock until the effort is spent.
    pub(super) fn time(
        &mut self,
        call: &Call,
        effort: &Effort,
        policy: L2Policy,
    ) -> Result<Timing, EngineError> {
        let clock = effort.clock.under(policy);
        let began = Instant::now();
        let once = Streak { call, calls: 1 };
        // It was verified before, so the kernel is loaded and its operands are on the device: one call suffices for an
        // estimate.
        let first = self.batch(&[once], policy)?.us;
        let alone = |dropped| {
            timing(first.clone(), dropped, Clock::Isolated).map(|timing| {
                // A sample of a long call is that call alone by either clock.
                let clock = if timing.tells(clock) { clock } else { Clock::Isolated };
                timing.by(clock)
            })
        };
        if first.iter().any(|us| effort.gives_up_at(*us)) {
            return alone(0);
        }
        let slowest = first.iter().copied().fold(0.0, f64::max);
        // Warming up, an estimate, and one sample.
        if !effort.fits(began, slowest * f64::from(effort.warmups + 2)) {
            return alone(0).map(|timing| timing.cut_if(true));
        }
        self.warm_up(call, effort.warmups, policy)?;
        let most = effort.max_samples.max(effort.min_samples).max(1) as usize;
        let least = effort.min_samples.max(1) as usize;
        let estimate_us = self.batch(&[once], policy)?.us.first().copied().unwrap_or(0.0);
        let streak = call.streak(clock, estimate_us);
        let fitting = fitting_times(streak.us(estimate_us), streak.entries(), 1);
        let (mut kept, mut dropped) = (Vec::with_capacity(most), 0usize);
        let (mut spent_us, mut cut) = (0.0, false);
        // A device that throttles continuously is given twice the samples to recover, then this ends.
        while kept.len() < most && kept.len() + dropped < 2 * most {
            let budget_us = effort.budget_ms * 1e3;
            let enough = kept.len() >= least && spent_us >= budget_us;
            let hopeless = kept.len() + dropped >= least && spent_us >= 2.0 * budget_us;
            if enough || hopeless {
                break;
            }
            let sample_us = streak.us(estimate_us);
            if ends(kept.len(), dropped, effort.fits(began, sample_us)) {
                cut = true;
                break;
            }
            let within = (1..=fitting).rev().find(|n| effort.fits(began, sample_us * *n as f64));
            let samples = within.unwrap_or(1).min(most - kept.len());
            let batch = self.batch(&vec![streak; samples], policy)?;
            spent_us += batch.us.iter().map(|us| streak.us(*us)).sum::<f64>();
            match batch.throttled {
                true => dropped += batch.us.len(),
                false => kept.extend(batch.us),
            }
        }
        if cut && kept.is_empty() {
            return alone(dropped).map(|timing| timing.cut_if(true));
        }
        timing(kept, dropped, clock).map(|timing| timing.cut_if(cut))
    }

    /// Samples of several calls in rotation, by one clock: A B C A B C ..., `rounds` kept of each; a throttled round is
    /// discarded as a whole.
    pub(super) fn pair(
        &mut self,
        calls: &[Call],
        rounds: u32,
        clock: Clock,
        policy: L2Policy,
    ) -> Result<Vec<Timing>, EngineError> {
        let clock = clock.under(policy);
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        for call in calls {
            self.warm_up(call, 2, policy)?;
        }
        let once: Vec<Streak<'_>> = calls.iter().map(|call| Streak { call, calls: 1 }).collect();
        let estimates = self.batches(&once, policy)?.us;
        let round: Vec<Streak<'_>> =
            calls.iter().zip(&estimates).map(|(call, us)| call.streak(clock, *us)).collect();
        let round_us = round.iter().zip(&estimates).map(|(streak, us)| streak.us(*us)).sum();
        let entries = round.iter().map(Streak::entries).sum();
        let rounds_per_batch = fitting_times(round_us, entries, round.len());
        let rounds = rounds.max(1) as usize;
        let mut kept = vec![Vec::with_capacity(rounds); calls.len()];
        let (mut done, mut dropped) = (0, 0);
        while done < rounds && done + dropped < 2 * rounds {
            let fitting = rounds_per_batch.min(rounds - done);
            let order = turns(round.len(), done, fitting);
            let streaks: Vec<Streak<'_>> = order.iter().map(|&at| round[at]).collect();
            let batch = self.batches(&streaks, policy)?;
            if batch.throttled {
                dropped += fitting;
                continue;
            }
            done += fitting;
            for (at, sample) in order.into_iter().zip(batch.us) {
                kept[at].push(sample);
            }
        }
        kept.into_iter().map(|samples| timing(samples, dropped, clock)).collect()
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

    /// As many batches as the samples need.
    fn batches(&mut self, streaks: &[Streak<'_>], policy: L2Policy) -> Result<Batch, EngineError> {
        let mut all = Batch { us: Vec::with_capacity(streaks.len()), throttled: false };
        let entries: Vec<usize> = streaks.iter().map(Streak::entries).collect();
        let mut rest = streaks;
        for length in portions(&entries) {
            let (part, later) = rest.split_at(length);
            let batch = self.batch(part, policy)?;
            all.us.extend(batch.us);
            all.throttled |= batch.throttled;
            rest = later;
        }
        Ok(all)
    }

    /// Queues up to [`MOST_SAMPLES`] samples behind the gate, opens it, and reads each one's time.
    fn batch(&mut self, streaks: &[Streak<'_>], policy: L2Policy) -> Result<Batch, EngineError> {
        let before = self.throttled();
        self.flag.set(0);
        self.gate.enqueue()?;
        let queued = self.queue(streaks, policy);
        self.flag.set(1);
        queued?;
        self.context.synchronize()?;
        watch(streaks)?;
        let throttled = before || self.throttled();
        let us = self.events.iter().zip(streaks).map(|([start, end], streak)| {
            end.since_us(start).map(|us| us / f64::from(streak.calls))
        });
        Ok(Batch { us: us.collect::<Result<_, _>>()?, throttled })
    }

    fn queue(&self, streaks: &[Streak<'_>], policy: L2Policy) -> Result<(), EngineError> {
        for ([start, end], Streak { call, calls }) in self.events.iter().zip(streaks) {
            if policy == L2Policy::Cold {
                self.sweep.enqueue()?;
            }
            for _ in 0..lead(*calls) {
                call.enqueue()?;
            }
            start.record()?;
            for _ in 0..*calls {
                call.enqueue()?;
            }
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
fn watch(streaks: &[Streak<'_>]) -> Result<(), EngineError> {
    let mut all = Ok(());
    for (at, Streak { call, .. }) in streaks.iter().enumerate() {
        if !streaks[..at].iter().any(|earlier| std::ptr::eq(earlier.call, *call)) {
            all = all.and(call.watch());
        }
    }
    all
}

/// Whether sampling ends for want of time: where the next sample does not fit, unless it is the first. One that the device throttled
/// counts as a first, or a device that always throttles would take twice the samples whatever the time.
fn ends(kept: usize, dropped: usize, fits: bool) -> bool {
    kept + dropped > 0 && !fits
}

fn timing(kept: Vec<f64>, dropped: usize, clock: Clock) -> Result<Timing, EngineError> {
    Timing::of(kept, dropped as u32)
        .map(|timing| timing.by(clock))
        .ok_or_else(|| refused("the device throttled during every sample".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_throttles_is_not_sampled_beyond_the_time() {
        assert!(!ends(0, 0, false) && ends(1, 0, false) && ends(0, 1, false));
        assert!(!ends(0, 1, true) && !ends(1, 1, true));
    }

    #[test]
    fn nothing_but_throttled_samples_is_refused() {
        let clock = Clock::Pipelined;
        assert!(timing(Vec::new(), 7, clock).unwrap_err().to_string().contains("throttled"));
        let kept = timing(vec![2.0], 1, clock).unwrap();
        assert_eq!((kept.dropped, kept.clock), (1, clock));
    }
}
