//! The arguments of a plan's launches: each a word by its role, and what is put into it at each call.

use super::super::launch::{MOST_ARGUMENTS, Varying, refused};
use crate::domain::bundle::{Argument, BundleStep};
use crate::domain::element::Element;
use crate::engine::EngineError;
use crate::sparse::operand::{bf16_bits, half_bits};

/// What a caller gives for one call: device addresses, its stream, and the factors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) b: u64,
    pub(super) c: u64,
    pub(super) stream: u64,
    pub(super) alpha: f64,
    pub(super) beta: f64,
}

/// The words of one launch's arguments.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Arguments {
    pub(super) words: Box<[u64]>,
    /// Places of words that each call sets.
    patches: Box<[(usize, Patch)]>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Patch {
    B,
    C,
    Alpha(Element),
    Beta(Element),
    Varying(Varying),
}

/// Where the addresses of arguments come from.
pub(super) struct Addresses<'a> {
    pub(super) array: &'a dyn Fn(&str) -> Result<u64, EngineError>,
    pub(super) scratch: &'a dyn Fn(usize) -> Result<u64, EngineError>,
    pub(super) status: &'a dyn Fn() -> Result<u64, EngineError>,
    pub(super) max_wait_ns: u64,
}

impl Arguments {
    pub(super) fn of(step: &BundleStep, addresses: &Addresses<'_>) -> Result<Self, EngineError> {
        if step.arguments.len() > MOST_ARGUMENTS {
            let (symbol, count) = (&step.symbol, step.arguments.len());
            return Err(refused(format!("kernel `{symbol}` is given {count} arguments")));
        }
        let mut words = Vec::with_capacity(step.arguments.len());
        let mut patches = Vec::new();
        for (at, argument) in step.arguments.iter().enumerate() {
            match addresses.word(argument)? {
                Word::Constant(word) => words.push(word),
                Word::Patched(patch) => {
                    patches.push((at, patch));
                    words.push(0);
                }
            }
        }
        Ok(Self { words: words.into(), patches: patches.into() })
    }

    /// Sets what differs from call to call; `number` counts the calls from 0.
    pub(super) fn set(&mut self, call: &Call, number: u64) {
        for &(at, patch) in &self.patches {
            self.words[at] = match patch {
                Patch::B => call.b,
                Patch::C => call.c,
                Patch::Alpha(element) => factor(call.alpha, element),
                Patch::Beta(element) => factor(call.beta, element),
                Patch::Varying(varying) => varying.word(number),
            };
        }
    }
}

enum Word {
    Constant(u64),
    Patched(Patch),
}

impl Addresses<'_> {
    fn word(&self, argument: &Argument) -> Result<Word, EngineError> {
        let scratch = |index: u32| (self.scratch)(index as usize);
        Ok(match argument {
            Argument::Array { name } => Word::Constant((self.array)(name)?),
            Argument::B => Word::Patched(Patch::B),
            Argument::C => Word::Patched(Patch::C),
            Argument::Scratch { index } => Word::Constant(scratch(*index)?),
            Argument::Turn { even, odd } => {
                let turn = Varying::Turn { even: scratch(*even)?, odd: scratch(*odd)? };
                Word::Patched(Patch::Varying(turn))
            }
            Argument::Epoch => Word::Patched(Patch::Varying(Varying::Epoch)),
            Argument::MaxWaitNs => Word::Constant(self.max_wait_ns),
            Argument::Status => Word::Constant((self.status)()?),
            Argument::U32 { value } => Word::Constant(u64::from(*value)),
            Argument::U64 { value } => Word::Constant(*value),
            Argument::F32 { value } => Word::Constant(u64::from(value.to_bits())),
            Argument::Alpha { element } => Word::Patched(Patch::Alpha(floating(*element)?)),
            Argument::Beta { element } => Word::Patched(Patch::Beta(floating(*element)?)),
        })
    }
}

fn floating(element: Element) -> Result<Element, EngineError> {
    match element {
        Element::F16 | Element::Bf16 | Element::F32 | Element::F64 => Ok(element),
        Element::U16 | Element::U32 | Element::U64 => {
            Err(refused(format!("a factor of the type {}", element.name())))
        }
    }
}

fn factor(value: f64, element: Element) -> u64 {
    match element {
        Element::F16 => u64::from(half_bits(value)),
        Element::Bf16 => u64::from(bf16_bits(value)),
        Element::F32 => u64::from((value as f32).to_bits()),
        _ => value.to_bits(),
    }
}

/// Bytes of an argument as kernels declare it.
pub(super) fn size(argument: &Argument) -> usize {
    match argument {
        Argument::Epoch | Argument::U32 { .. } | Argument::F32 { .. } => 4,
        Argument::Alpha { element } | Argument::Beta { element } => element.bytes() as usize,
        Argument::MaxWaitNs | Argument::U64 { .. } => 8,
        // Addresses.
        Argument::Array { .. }
        | Argument::B
        | Argument::C
        | Argument::Scratch { .. }
        | Argument::Turn { .. }
        | Argument::Status => 8,
    }
}

/// Refuses a step whose arguments are not what its kernel declares, where the driver can tell: it would read past them.
pub(super) fn check_sizes(
    step: &BundleStep,
    declared: Option<&[usize]>,
) -> Result<(), EngineError> {
    let passed: Vec<usize> = step.arguments.iter().map(size).collect();
    match declared {
        Some(declared) if declared != passed => Err(refused(format!(
            "kernel `{}` takes arguments of {declared:?} bytes, but the plan passes {passed:?}",
            step.symbol
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(arguments: Vec<Argument>) -> BundleStep {
        let (grid, block) = ([1, 1, 1], [32, 1, 1]);
        let symbol = "k".to_owned();
        BundleStep { symbol, grid, block, cluster: 1, shared_bytes: 0, overlaps: false, arguments }
    }

    fn bound(arguments: Vec<Argument>) -> Result<Arguments, EngineError> {
        let addresses = Addresses {
            array: &|name| match name {
                "cols" => Ok(64),
                _ => Err(refused(format!("no array `{name}`"))),
            },
            scratch: &|index| match index {
                0 | 1 => Ok(1000 + index as u64),
                _ => Err(refused(format!("no scratch {index}"))),
            },
            status: &|| Ok(7),
            max_wait_ns: 1_000_000,
        };
        Arguments::of(&step(arguments), &addresses)
    }

    #[test]
    fn every_role_has_its_word_and_size() {
        let element = Element::F32;
        let arguments = vec![
            Argument::Array { name: "cols".to_owned() },
            Argument::B,
            Argument::C,
            Argument::Scratch { index: 1 },
            Argument::Turn { even: 0, odd: 1 },
            Argument::Epoch,
            Argument::MaxWaitNs,
            Argument::Status,
            Argument::U32 { value: 3 },
            Argument::U64 { value: 1 << 40 },
            Argument::F32 { value: 1.5 },
            Argument::Alpha { element },
            Argument::Beta { element: Element::F64 },
            Argument::Alpha { element: Element::F16 },
        ];
        let sizes: Vec<usize> = arguments.iter().map(size).collect();
        assert_eq!(sizes, [8, 8, 8, 8, 8, 4, 8, 8, 4, 8, 4, 4, 8, 2]);
        let mut made = bound(arguments).unwrap();
        let call = Call { b: 256, c: 512, stream: 0, alpha: 1.25, beta: -0.5 };
        made.set(&call, 0);
        let constants = [1_000_000, 7, 3, 1 << 40, 0x3fc0_0000];
        let factors = [0x3fa0_0000, (-0.5f64).to_bits(), 0x3d00];
        assert_eq!(made.words[..6], [64, 256, 512, 1001, 1000, 1]);
        assert_eq!(made.words[6..11], constants);
        assert_eq!(made.words[11..], factors);
        made.set(&Call { b: 1, ..call }, 5);
        assert_eq!(made.words[..6], [64, 1, 512, 1001, 1001, 6]);
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let why = |argument| bound(vec![argument]).unwrap_err().to_string();
        assert_eq!(why(Argument::Array { name: "rows".to_owned() }), "no array `rows`");
        assert_eq!(why(Argument::Turn { even: 0, odd: 2 }), "no scratch 2");
        assert_eq!(why(Argument::Beta { element: Element::U32 }), "a factor of the type u32");
        assert!(bound(vec![Argument::B; MOST_ARGUMENTS + 1]).is_err());
    }

    #[test]
    fn sizes_are_compared_where_they_are_known() {
        let step = step(vec![Argument::B, Argument::U32 { value: 1 }]);
        assert!(check_sizes(&step, None).is_ok());
        assert!(check_sizes(&step, Some(&[8, 4])).is_ok());
        let error = check_sizes(&step, Some(&[8, 8])).unwrap_err().to_string();
        let words = "kernel `k` takes arguments of [8, 8] bytes, but the plan passes [8, 4]";
        assert_eq!(error, words);
        assert!(check_sizes(&step, Some(&[8])).is_err());
    }
}
