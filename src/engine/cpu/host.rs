//! Properties of the host CPU, from /proc and /sys if available, and its measured copy bandwidth and hop latency.

use super::buffer::Buffer;
use super::simd::Isa;
use super::thread_team::{CachePadded, ThreadTeam, wait_until};
use crate::domain::{Device, DeviceClass, DeviceId, DeviceKind};
use rayon::prelude::*;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Assumed cache size if the operating system does not report one; large enough that a sweep evicts.
const UNKNOWN_CACHE: u64 = 32 << 20;

const LARGEST_COPY: u64 = 256 << 20;
const COPY_TIME: Duration = Duration::from_millis(200);

const HOP_TIME: Duration = Duration::from_millis(3);
/// Round trips per batch: few, since on a busy host each may take a time slice of the scheduler.
const HOP_ROUNDS: u32 = 32;

/// Describes this host, without kernel digests and MKL; `copy_gbps` is the result of `copy_bandwidth`.
pub fn describe(isa: Isa, threads: usize, copy_gbps: f64) -> Device {
    let private = cache_bytes(2).unwrap_or(1 << 20);
    Device {
        id: DeviceId("cpu".to_owned()),
        kind: DeviceKind::Cpu,
        name: processor_name(),
        compute_capability: isa.name().to_owned(),
        multiprocessors: threads as u32,
        warp_size: isa.lanes(),
        max_threads_per_block: 1,
        max_threads_per_multiprocessor: 1,
        max_blocks_per_multiprocessor: 1,
        registers_per_thread: isa.registers(),
        registers_per_block: isa.registers(),
        registers_per_multiprocessor: isa.registers(),
        shared_bytes_per_block: private,
        shared_bytes_per_multiprocessor: private,
        l2_bytes: last_level_cache(),
        memory_bytes: memory_bytes(),
        copy_gbps,
        hop_ns: 0.0,
        driver: operating_system(),
        compiler: env!("SPARSETUNE_RUSTC").to_owned(),
        vendor: None,
        vendor_file: None,
        uuid: None,
        place: None,
        dense_vendor: None,
        kernels: Default::default(),
    }
}

/// The class of this host, as its engine with this many threads has it; measures nothing.
pub fn device_class(threads: usize) -> DeviceClass {
    describe(Isa::best(), threads, 0.0).class()
}

/// Size of the last-level cache in bytes.
pub fn last_level_cache() -> u64 {
    (2..=4).rev().find_map(cache_bytes).unwrap_or(UNKNOWN_CACHE)
}

/// Bytes read plus bytes written per nanosecond (GB/s) of a copy on all threads of the current pool, best of several,
/// between buffers that together are four times the last-level cache, but at most 256 MiB each. 0 if there is not
/// enough memory.
pub fn copy_bandwidth() -> f64 {
    let bytes = (2 * last_level_cache()).clamp(64 << 20, LARGEST_COPY);
    let len = bytes as usize / 4;
    let (Some(mut to), Some(mut from)) = (Buffer::<f32>::zeroed(len), Buffer::<f32>::zeroed(len))
    else {
        return 0.0;
    };
    // Every page is written once, since pages never written may share one page of zeros.
    from.as_mut_slice().par_chunks_mut(1 << 20).for_each(|chunk| chunk.fill(1.0));
    let share = len.div_ceil(rayon::current_num_threads());
    let mut best = 0f64;
    let begun = Instant::now();
    for round in 0..20 {
        let start = Instant::now();
        let pieces = to.as_mut_slice().par_chunks_mut(share).zip(from.as_slice().par_chunks(share));
        pieces.for_each(|(to, from)| to.copy_from_slice(from));
        best = best.max(2.0 * bytes as f64 / start.elapsed().as_nanos() as f64);
        if round >= 2 && begun.elapsed() > COPY_TIME {
            break;
        }
    }
    std::hint::black_box(to.as_slice());
    best
}

/// Nanoseconds from one thread's store to another thread's dependent store, the best of several batches of round trips;
/// takes a few milliseconds. 0 if there is only one thread.
pub fn hop_ns(threads: usize) -> f64 {
    if threads < 2 {
        return 0.0;
    }
    let Ok(pair) = ThreadTeam::of(2) else { return 0.0 };
    let (ball, best) = (CachePadded(AtomicU64::new(0)), Mutex::new(f64::INFINITY));
    let ball = &ball.0;
    let answer = |from: u64| wait_until(|| ball.load(Ordering::Acquire) >= from);
    pair.run(|me| {
        if me == 1 {
            // Odd numbers are for this thread; the last number ends the exchange.
            let mut next = 1;
            loop {
                answer(next);
                let seen = ball.load(Ordering::Acquire);
                if seen == u64::MAX {
                    return;
                }
                ball.store(seen + 1, Ordering::Release);
                next = seen + 2;
            }
        }
        let (begun, mut next) = (Instant::now(), 1);
        let mut least = f64::INFINITY;
        while begun.elapsed() < HOP_TIME {
            let start = Instant::now();
            for _ in 0..HOP_ROUNDS {
                ball.store(next, Ordering::Release);
                answer(next + 1);
                next += 2;
            }
            let hops = f64::from(2 * HOP_ROUNDS);
            least = least.min(start.elapsed().as_nanos() as f64 / hops);
        }
        ball.store(u64::MAX, Ordering::Release);
        *best.lock().unwrap_or_else(PoisonError::into_inner) = least;
    });
    let best = best.into_inner().unwrap_or_else(PoisonError::into_inner);
    if best.is_finite() { best } else { 0.0 }
}

pub fn processor_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    };
    let name = text.lines().find_map(field).filter(|name| !name.is_empty());
    name.unwrap_or_else(|| format!("unnamed {} processor", std::env::consts::ARCH))
}

/// Size of the first processor's data (or unified) cache of a level.
fn cache_bytes(level: u32) -> Option<u64> {
    (0..8).find_map(|index| {
        let read = |what: &str| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{what}");
            fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
        };
        let is_it = read("level")?.parse() == Ok(level) && read("type")? != "Instruction";
        if is_it { parse_size(&read("size")?) } else { None }
    })
}

/// Parses sizes such as `32768K`, as in /sys.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok().and_then(|size| size.checked_mul(unit)).filter(|&size| size > 0)
}

/// Memory available to this process: the machine's, or its control group's if that is less. 0 if neither is known.
fn memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| {
        let kilobytes = line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?;
        kilobytes.trim().parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
    });
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group = group.and_then(|text| text.trim().parse::<u64>().ok());
    total.into_iter().chain(group).min().unwrap_or(0)
}

fn operating_system() -> String {
    let read = |what: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{what}")).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let kind = read("ostype").unwrap_or_else(|| std::env::consts::OS.to_owned());
    match read("osrelease") {
        Some(release) => format!("{kind} {release}"),
        None => kind,
    }
}

#[cfg(test)]
mod tests {
    use super::{describe, hop_ns, parse_size};
    use crate::engine::cpu::simd::Isa;

    #[test]
    fn parses_cache_sizes() {
        assert_eq!(parse_size("32768K"), Some(32 << 20));
        assert_eq!(parse_size("512"), Some(512));
        assert_eq!(parse_size("2M"), Some(2 << 20));
        assert_eq!((parse_size("K"), parse_size("0K"), parse_size("3X")), (None, None, None));
    }

    #[test]
    fn a_hop_is_measured_only_between_two_threads() {
        assert_eq!(hop_ns(1), 0.0);
        let hop = hop_ns(2);
        assert!(hop > 0.0 && hop < 1e7, "{hop}");
    }

    #[test]
    fn describes_the_host() {
        let device = describe(Isa::Scalar, 3, 20.0);
        assert_eq!(device.class().0, format!("cpu/{}/scalar/3t", device.name));
        assert!(device.compiler.starts_with("rustc 1."), "{}", device.compiler);
        assert!(device.l2_bytes > 0 && !device.driver.is_empty());
    }
}
