//! The order of what one call queues: fills, the zeroing of the output, the launches; single or captured in a graph.

use super::super::context::Context;
use super::super::launch::{Geometry, LoadedKernel};
use super::bind::{Arguments, Call};
use crate::engine::EngineError;
use cudarc::driver::sys::CUstream;
use std::ffi::c_void;
use std::sync::Arc;

/// What calls are queued on. The driver, or a test's record.
pub(super) trait Queue {
    type Kernel;

    /// Whether the stream records a graph instead of running.
    fn capturing(&self, stream: u64) -> Result<bool, EngineError>;

    /// Writes a 32-bit word to `words` places.
    fn fill(&self, stream: u64, fill: Fill) -> Result<(), EngineError>;

    fn zero(&self, stream: u64, pointer: u64, bytes: usize) -> Result<(), EngineError>;

    fn launch(
        &self,
        stream: u64,
        kernel: &Self::Kernel,
        geometry: Geometry,
        arguments: &[u64],
    ) -> Result<(), EngineError>;

    /// Copies a status word to the host, without waiting.
    fn report(&self, stream: u64, report: Report) -> Result<(), EngineError>;
}

/// Where kernels say that they gave up: a word on the device, and its copy in page-locked host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) status: u64,
    pub(super) host: u64,
}

/// The fill of a scratch buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fill {
    pub(super) pointer: u64,
    pub(super) word: u32,
    pub(super) words: usize,
}

/// One launch, ready but for what each call sets.
pub(super) struct Launch<K> {
    pub(super) kernel: K,
    pub(super) geometry: Geometry,
    pub(super) arguments: Arguments,
}

/// The launches on one set of scratch memory.
pub(super) struct Set<K> {
    pub(super) fills: Vec<Fill>,
    pub(super) launches: Vec<Launch<K>>,
    /// What calls bring to the host after their launches, if one of them can give up.
    report: Option<Report>,
    /// Calls queued since the memory was filled.
    calls: u64,
}

/// What one call consists of. It holds everything that a call needs, so that a call takes no memory.
pub(super) struct Sequence<K> {
    /// Bytes of the output that each call zeroes first.
    pub(super) zero_bytes: Option<usize>,
    pub(super) usual: Set<K>,
    /// Where calls pass state on: the set of captured calls, filled by each of them.
    pub(super) captured: Option<Set<K>>,
}

/// A copy to the host ends every call of a chain of solves some 10 us later, so only the first calls, in which whatever is wrong with
/// a plan mostly shows, and then few bring the word. A kernel that gave up leaves it set, so none is missed for long.
const REPORTED_FIRST: u64 = 8;
const REPORTED_EVERY: u64 = 32;

/// Whether this call, counted from 0, brings its word to the host.
const fn reports(number: u64) -> bool {
    number < REPORTED_FIRST || number % REPORTED_EVERY == REPORTED_EVERY - 1
}

impl<K> Set<K> {
    pub(super) fn new(fills: Vec<Fill>, launches: Vec<Launch<K>>, report: Option<Report>) -> Self {
        Self { fills, launches, report, calls: 0 }
    }
}

impl<K> Sequence<K> {
    /// Queues one call.
    pub(super) fn run<Q: Queue<Kernel = K>>(
        &mut self,
        queue: &Q,
        call: &Call,
    ) -> Result<(), EngineError> {
        let stream = call.stream;
        if let Some(set) = &mut self.captured
            && queue.capturing(stream)?
        {
            // Whenever the graph runs, it is as a first call.
            set.refill(queue, stream)?;
            return set.queue(queue, call, self.zero_bytes, 0);
        }
        let number = self.usual.calls;
        self.usual.calls += 1;
        let queued = self.usual.queue(queue, call, self.zero_bytes, number);
        let report = self.usual.report.filter(|_| reports(number));
        let queued = match (queued, report) {
            (Ok(()), Some(report)) => queue.report(stream, report),
            (queued, _) => queued,
        };
        if queued.is_err() {
            // Some of its launches may run: what they leave behind is useless to the next call. The error of the launch is
            // the one to report.
            let _ = self.usual.refill(queue, stream);
            self.usual.calls = 0;
        }
        queued
    }

    /// Counts from the first call again: the memory was filled.
    pub(super) fn restart(&mut self) {
        self.usual.calls = 0;
    }
}

impl<K> Set<K> {
    fn refill<Q: Queue<Kernel = K>>(&self, queue: &Q, stream: u64) -> Result<(), EngineError> {
        self.fills.iter().try_for_each(|&fill| queue.fill(stream, fill))
    }

    fn queue<Q: Queue<Kernel = K>>(
        &mut self,
        queue: &Q,
        call: &Call,
        zero_bytes: Option<usize>,
        number: u64,
    ) -> Result<(), EngineError> {
        if let Some(bytes) = zero_bytes {
            queue.zero(call.stream, call.c, bytes)?;
        }
        for Launch { kernel, geometry, arguments } in &mut self.launches {
            arguments.set(call, number);
            queue.launch(call.stream, kernel, *geometry, &arguments.words)?;
        }
        Ok(())
    }
}

impl Queue for Context {
    type Kernel = Arc<LoadedKernel>;

    fn capturing(&self, stream: u64) -> Result<bool, EngineError> {
        let mut state = 0;
        // SAFETY: out-pointer to a local; the caller of the plan vouches for the stream.
        let code = unsafe { (self.driver.api.stream_capturing)(stream as CUstream, &mut state) };
        self.driver.check("cuStreamIsCapturing", code)?;
        Ok(state != 0)
    }

    fn fill(&self, stream: u64, fill: Fill) -> Result<(), EngineError> {
        self.fill_on(stream as CUstream, fill.pointer, fill.word, fill.words)
    }

    fn zero(&self, stream: u64, pointer: u64, bytes: usize) -> Result<(), EngineError> {
        if bytes.is_multiple_of(4) && pointer.is_multiple_of(4) {
            return self.fill_on(stream as CUstream, pointer, 0, bytes / 4);
        }
        // An odd number of 16-bit elements, or an output that begins between two words.
        // SAFETY: the caller of the plan vouches for the output.
        let code = unsafe { (self.driver.api.fill_bytes)(pointer, 0, bytes, stream as CUstream) };
        self.driver.check("cuMemsetD8Async", code)
    }

    fn launch(
        &self,
        stream: u64,
        kernel: &Self::Kernel,
        geometry: Geometry,
        arguments: &[u64],
    ) -> Result<(), EngineError> {
        kernel.queue(&self.driver, geometry, stream as CUstream, arguments)
    }

    fn report(&self, stream: u64, report: Report) -> Result<(), EngineError> {
        let host = report.host as usize as *mut c_void;
        // SAFETY: both words are the plan's, which waits for its calls before it frees them.
        let code =
            unsafe { (self.driver.api.copy_to_host)(host, report.status, 4, stream as CUstream) };
        self.driver.check("cuMemcpyDtoHAsync", code)
    }
}

#[cfg(test)]
mod tests {
    use super::super::bind::Addresses;
    use super::*;
    use crate::domain::bundle::{Argument, BundleStep};
    use crate::engine::cuda::launch::refused;
    use std::cell::{Cell, RefCell};

    #[derive(Debug, PartialEq)]
    enum Queued {
        Fill(u64, Fill),
        Zero(u64, u64, usize),
        Launch(u64, &'static str, Vec<u64>),
        Report(u64, Report),
    }

    #[derive(Default)]
    struct Record {
        queued: RefCell<Vec<Queued>>,
        captures: Cell<bool>,
        asked: Cell<u32>,
        fails_at: Cell<Option<&'static str>>,
    }

    impl Record {
        fn taken(&self) -> Vec<Queued> {
            self.queued.take()
        }
    }

    impl Queue for Record {
        type Kernel = &'static str;

        fn capturing(&self, _: u64) -> Result<bool, EngineError> {
            self.asked.set(self.asked.get() + 1);
            Ok(self.captures.get())
        }

        fn fill(&self, stream: u64, fill: Fill) -> Result<(), EngineError> {
            self.queued.borrow_mut().push(Queued::Fill(stream, fill));
            Ok(())
        }

        fn zero(&self, stream: u64, pointer: u64, bytes: usize) -> Result<(), EngineError> {
            self.queued.borrow_mut().push(Queued::Zero(stream, pointer, bytes));
            Ok(())
        }

        fn launch(
            &self,
            stream: u64,
            kernel: &&'static str,
            _: Geometry,
            arguments: &[u64],
        ) -> Result<(), EngineError> {
            if self.fails_at.get() == Some(*kernel) {
                return Err(refused(format!("{kernel} failed")));
            }
            self.queued.borrow_mut().push(Queued::Launch(stream, kernel, arguments.to_vec()));
            Ok(())
        }

        fn report(&self, stream: u64, report: Report) -> Result<(), EngineError> {
            self.queued.borrow_mut().push(Queued::Report(stream, report));
            Ok(())
        }
    }

    /// Two launches, one of which passes state on by turns and epochs, on scratch memory from `base` on.
    fn set(base: u64) -> Set<&'static str> {
        let arguments = [
            ("first", vec![Argument::Turn { even: 0, odd: 1 }, Argument::Epoch]),
            ("second", vec![Argument::B, Argument::C, Argument::Scratch { index: 1 }]),
        ];
        let (grid, block) = ([1, 1, 1], [32, 1, 1]);
        let geometry = Geometry { grid, block, shared_bytes: 0, overlaps: false };
        let launches = arguments.into_iter().map(|(kernel, arguments)| {
            let addresses = Addresses {
                array: &|_| Err(refused("no array".to_owned())),
                scratch: &|index| Ok(base + index as u64),
                status: &|| Err(refused("no status".to_owned())),
                max_wait_ns: 0,
            };
            let step = BundleStep {
                symbol: kernel.to_owned(),
                grid,
                block,
                cluster: 1,
                shared_bytes: 0,
                overlaps: false,
                arguments,
            };
            Launch { kernel, geometry, arguments: Arguments::of(&step, &addresses).unwrap() }
        });
        Set::new(vec![Fill { pointer: base, word: 9, words: 2 }], launches.collect(), None)
    }

    const CALL: Call = Call { b: 16, c: 32, stream: 5, alpha: 1.0, beta: 0.0 };

    fn launches(base: u64, turn: u64, epoch: u64) -> [Queued; 2] {
        [
            Queued::Launch(5, "first", vec![base + turn, epoch]),
            Queued::Launch(5, "second", vec![16, 32, base + 1]),
        ]
    }

    #[test]
    fn calls_alternate_and_count_and_captured_ones_begin_anew() {
        let queue = Record::default();
        let mut sequence = Sequence { zero_bytes: None, usual: set(100), captured: Some(set(200)) };
        sequence.run(&queue, &CALL).unwrap();
        assert_eq!(queue.taken(), launches(100, 0, 1));
        sequence.run(&queue, &CALL).unwrap();
        assert_eq!(queue.taken(), launches(100, 1, 2));
        queue.captures.set(true);
        for _ in 0..2 {
            sequence.run(&queue, &CALL).unwrap();
            let fill = Fill { pointer: 200, word: 9, words: 2 };
            let expected = [Queued::Fill(5, fill)].into_iter().chain(launches(200, 0, 1));
            assert_eq!(queue.taken(), expected.collect::<Vec<_>>());
        }
        queue.captures.set(false);
        sequence.run(&queue, &CALL).unwrap();
        assert_eq!(queue.taken(), launches(100, 0, 3));
        sequence.restart();
        sequence.run(&queue, &CALL).unwrap();
        assert_eq!(queue.taken(), launches(100, 0, 1));
    }

    #[test]
    fn calls_that_are_alike_ask_nothing_and_zero_their_own_output() {
        let queue = Record::default();
        let mut sequence = Sequence { zero_bytes: Some(6), usual: set(0), captured: None };
        sequence.run(&queue, &CALL).unwrap();
        assert_eq!(queue.taken()[0], Queued::Zero(5, 32, 6));
        assert_eq!(queue.asked.get(), 0);
    }

    #[test]
    fn a_call_that_can_give_up_reports_last_on_its_own_stream() {
        let queue = Record::default();
        let reporting = |base| {
            let report = Some(Report { status: base + 7, host: base + 8 });
            Set { report, ..set(base) }
        };
        let captured = Some(reporting(200));
        let mut sequence = Sequence { zero_bytes: None, usual: reporting(100), captured };
        let report = Queued::Report(5, Report { status: 107, host: 108 });
        let brings = |captures, sequence: &mut Sequence<_>| {
            queue.captures.set(captures);
            sequence.run(&queue, &CALL).unwrap();
            queue.taken().last() == Some(&report)
        };
        let brought: Vec<bool> = (0..64).map(|_| brings(false, &mut sequence)).collect();
        assert!(brought[..8].iter().all(|&it| it) && brought[31] && brought[63]);
        assert_eq!(brought.iter().filter(|&&it| it).count(), 10);
        assert!(!brings(true, &mut sequence));
    }

    #[test]
    fn after_a_failed_launch_the_next_call_is_a_first_one() {
        let queue = Record::default();
        let mut sequence = Sequence { zero_bytes: None, usual: set(100), captured: None };
        sequence.run(&queue, &CALL).unwrap();
        queue.taken();
        queue.fails_at.set(Some("second"));
        assert_eq!(sequence.run(&queue, &CALL).unwrap_err().to_string(), "second failed");
        let fill = Queued::Fill(5, Fill { pointer: 100, word: 9, words: 2 });
        assert_eq!(queue.taken().last(), Some(&fill));
        queue.fails_at.set(None);
        sequence.run(&queue, &CALL).unwrap();
        assert_eq!(queue.taken(), launches(100, 0, 1));
    }
}
