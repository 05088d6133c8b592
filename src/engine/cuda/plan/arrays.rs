//! The arrays of a plan on the device, and new values in those that hold values of the matrix.

mod check;

use super::super::context::{Buffer, Context};
use super::super::launch::{LoadedKernel, refused};
use super::values::{Bits, map_entries};
use crate::domain::bundle::{BundleArray, Manifest, NO_ENTRY, ONE, UpdateValues};
use crate::domain::element::Element;
use crate::engine::{EngineError, PlanFiles};
use check::check_array;
use cudarc::driver::sys::CUstream;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// The kernels that put values in place.
#[derive(Clone)]
pub(super) struct Gather {
    pub(super) kernel: Arc<LoadedKernel>,
    /// For arrays of quotients.
    pub(super) quotients: Option<Arc<LoadedKernel>>,
    /// Threads per block.
    pub(super) block: u32,
}

/// The arrays that a plan's calls read.
pub(super) struct Arrays {
    held: HashMap<String, Held>,
    /// Names in the manifest's order.
    names: Vec<String>,
    /// Entries of the matrix.
    entries: usize,
    /// Type of the matrix's values in the arrays.
    element: Element,
    gather: Option<Gather>,
    /// New values that came from the host, for the kernel to read; allocated when first needed.
    staged: Option<Buffer>,
    /// Entries that others are divided by, in ascending order.
    divisors: Vec<u32>,
    /// Why new values cannot be put in place, if so.
    fixed: Option<String>,
}

struct Held {
    buffer: Buffer,
    length: u64,
    element: Element,
    /// Whether the array holds what it should.
    filled: bool,
    values: Option<Place>,
    /// Whether it is the word that says whether all values are equal.
    equality: bool,
}

/// How new values get into an array.
enum Place {
    /// Entry i is at place i.
    Identity,
    /// The kernel reads the map.
    Device(Buffer),
    /// The kernel for quotients reads the map and that of the divisors.
    Quotients(Buffer, Buffer),
    /// There is no kernel. With the array as it was, since places without a value keep what they hold.
    Host(Vec<u32>, Bits),
}

impl Arrays {
    /// Uploads the arrays that `wanted` names.
    pub(super) fn upload(
        context: &Arc<Context>,
        manifest: &Manifest,
        files: &dyn PlanFiles,
        wanted: &[&str],
        gather: Option<Gather>,
    ) -> Result<Self, EngineError> {
        let entries = usize::try_from(manifest.matrix.nnz)
            .map_err(|_| refused(format!("{} entries", manifest.matrix.nnz)))?;
        let mut arrays = Self {
            held: HashMap::new(),
            names: Vec::new(),
            entries,
            element: manifest.call.b.element,
            gather,
            staged: None,
            divisors: Vec::new(),
            fixed: match &manifest.update_values {
                UpdateValues::Gather(_) => None,
                UpdateValues::Host(_) => Some(
                    "The arrays of this plan are functions of all values: they must be made again."
                        .to_owned(),
                ),
                UpdateValues::Impossible { reason } => Some(reason.clone()),
            },
        };
        for &name in wanted {
            if arrays.held.contains_key(name) {
                continue;
            }
            let array = manifest.arrays.iter().find(|array| array.name == name);
            let array = array.ok_or_else(|| {
                refused(format!("The plan uses the array `{name}`, which it does not contain."))
            })?;
            let held = arrays.hold(context, array, files)?;
            arrays.held.insert(name.to_owned(), held);
            arrays.names.push(name.to_owned());
        }
        arrays.divisors.par_sort_unstable();
        arrays.divisors.dedup();
        Ok(arrays)
    }

    fn hold(
        &mut self,
        context: &Arc<Context>,
        array: &BundleArray,
        files: &dyn PlanFiles,
    ) -> Result<Held, EngineError> {
        let data = files.array(&array.name);
        let bytes = check_array(array, data, self.entries, self.element)?;
        let buffer = Buffer::new(context, bytes.next_multiple_of(4))?;
        match data {
            Some(data) => buffer.write(data)?,
            // Zeros stay where no value of the matrix stands.
            None => context.fill(buffer.pointer, 0, buffer.bytes / 4)?,
        }
        let values = match array.values.as_ref().filter(|_| self.fixed.is_none()) {
            None => None,
            Some(placed) => Some(match &placed.map {
                None => Place::Identity,
                Some(map) if placed.divisors.is_some() => {
                    self.divided(context, (map, array), files)?
                }
                Some(map) => self.place(context, (map, array), data, files)?,
            }),
        };
        let (length, element, equality) = (array.length, array.element, array.equality);
        Ok(Held { buffer, length, element, filled: data.is_some(), values, equality })
    }

    fn place(
        &self,
        context: &Arc<Context>,
        (map, array): (&str, &BundleArray),
        data: Option<&[u8]>,
        files: &dyn PlanFiles,
    ) -> Result<Place, EngineError> {
        let entries = self.map(map, array, files)?;
        if let Some(at) = entries.par_iter().position_first(|&entry| entry == ONE) {
            return Err(refused(format!("The map `{map}` names entry {ONE} at place {at}.")));
        }
        Ok(match self.gather {
            Some(_) => Place::Device(Buffer::of(context, &entries)?),
            None => {
                let kept = match data {
                    Some(data) => Bits::of(data, array.element),
                    None => Bits::zeros(entries.len(), array.element),
                };
                Place::Host(entries, kept)
            }
        })
    }

    fn divided(
        &mut self,
        context: &Arc<Context>,
        (map, array): (&str, &BundleArray),
        files: &dyn PlanFiles,
    ) -> Result<Place, EngineError> {
        let name = &array.name;
        if self.gather.as_ref().is_none_or(|gather| gather.quotients.is_none()) {
            let words =
                format!("The plan has no kernel that divides the values of the array `{name}`.");
            return Err(refused(words));
        }
        let divisors = self.map(array.divisors().unwrap_or_default(), array, files)?;
        if let Some(at) = divisors.par_iter().position_first(|&entry| entry == ONE) {
            return Err(refused(format!("The array `{name}` has no divisor {ONE} at place {at}.")));
        }
        let entries = self.map(map, array, files)?;
        self.divisors.par_extend(divisors.par_iter().filter(|&&entry| entry != NO_ENTRY));
        Ok(Place::Quotients(Buffer::of(context, &entries)?, Buffer::of(context, &divisors)?))
    }

    fn map(
        &self,
        name: &str,
        array: &BundleArray,
        files: &dyn PlanFiles,
    ) -> Result<Vec<u32>, EngineError> {
        let bytes = files.array(name);
        let bytes = bytes.ok_or_else(|| refused(format!("The map `{name}` is missing.")))?;
        map_entries(name, bytes, array.length, self.entries as u64)
    }

    /// The device memory of an array.
    pub(super) fn buffer(&self, name: &str) -> Result<&Buffer, EngineError> {
        let held = self.held.get(name).map(|held| &held.buffer);
        held.ok_or_else(|| refused(format!("The plan does not contain the array `{name}`.")))
    }

    /// Elements of an array.
    pub(super) fn length(&self, name: &str) -> Result<usize, EngineError> {
        self.buffer(name)?;
        Ok(self.held.get(name).map_or(0, |held| held.length as usize))
    }

    /// Refuses an array of other elements: whoever reads them as these would read past its end.
    pub(super) fn check_element(&self, name: &str, element: Element) -> Result<(), EngineError> {
        match self.held.get(name) {
            Some(held) if held.element != element => Err(refused(format!(
                "The array `{name}` is of {}, but the plan reads {}.",
                held.element.name(),
                element.name()
            ))),
            _ => Ok(()),
        }
    }

    /// An array whose values were left out of the bundle and have not been given yet.
    pub(super) fn missing(&self) -> Option<&str> {
        let missing = |name: &&String| self.held.get(*name).is_some_and(|held| !held.filled);
        self.names.iter().find(missing).map(String::as_str)
    }

    /// Whether new values must pass through the host.
    pub(super) fn gathers_on_host(&self) -> bool {
        self.held.values().any(|held| matches!(held.values, Some(Place::Host(..))))
    }

    fn check_updatable(&self) -> Result<(), EngineError> {
        self.fixed.clone().map_or(Ok(()), |reason| Err(refused(reason)))
    }

    /// New values as they would be put in place.
    ///
    /// # Errors
    /// `Refused` if they cannot be: there are more or fewer than entries, one is out of range, or a quotient of them is.
    pub(super) fn accepted(&self, values: &[f64]) -> Result<Bits, EngineError> {
        self.check_updatable()?;
        if values.len() != self.entries {
            return Err(refused(format!(
                "{} values for a matrix of {} entries.",
                values.len(),
                self.entries
            )));
        }
        let bits = Bits::rounded(values, self.element)?;
        if !self.divisors.is_empty() {
            self.check_quotients(&bits.numbers(self.element))?;
        }
        Ok(bits)
    }

    /// Refuses values whose quotients are not finite in the type.
    fn check_quotients(&self, values: &[f64]) -> Result<(), EngineError> {
        let name = self.element.name();
        let divisor = |&entry: &u32| values.get(entry as usize).copied().unwrap_or(0.0).abs();
        if let Some(at) = self.divisors.par_iter().position_first(|entry| divisor(entry) == 0.0) {
            let entry = self.divisors[at];
            let words =
                format!("The value of entry {entry}, which is on the diagonal, is zero in {name}.");
            return Err(refused(words));
        }
        let fits = |quotient: f64| match self.element {
            Element::F32 => (quotient as f32).is_finite(),
            _ => quotient.is_finite(),
        };
        let largest = values.par_iter().map(|value| value.abs()).reduce(|| 1.0, f64::max);
        let smallest = self.divisors.par_iter().map(divisor).reduce(|| f64::INFINITY, f64::min);
        if fits(largest / smallest) {
            return Ok(());
        }
        // The largest is mostly not divided by the smallest.
        let places = self.held.values().filter_map(|held| match &held.values {
            Some(Place::Quotients(map, divisors)) => Some((held.length as usize, map, divisors)),
            _ => None,
        });
        for (length, map, divisors) in places {
            let [mut above, mut below] = [vec![0u32; length], vec![0u32; length]];
            map.read(0, &mut above)?;
            divisors.read(0, &mut below)?;
            let number = |entry: u32| values.get(entry as usize).copied();
            let over = |i: usize| {
                let numerator = if above[i] == ONE { Some(1.0) } else { number(above[i]) };
                let quotient = numerator.unwrap_or(0.0) / number(below[i]).unwrap_or(1.0);
                !fits(quotient)
            };
            if let Some(i) = (0..length).into_par_iter().find_first(|&i| over(i)) {
                let entry = below[i];
                return Err(refused(format!(
                    "A coefficient, divided by the value of entry {entry}, which is on its row's diagonal, is beyond the range of {name}."
                )));
            }
        }
        Ok(())
    }

    /// Puts new values in place, in the entry order of the uploaded matrix. The caller's memory may be reused on return.
    pub(super) fn update_from_host(
        &mut self,
        context: &Arc<Context>,
        values: &[f64],
        stream: CUstream,
    ) -> Result<(), EngineError> {
        let bits = self.accepted(values)?;
        let by_kernel =
            |held: &Held| matches!(held.values, Some(Place::Device(_) | Place::Quotients(..)));
        if self.held.values().any(by_kernel) {
            if self.staged.is_none() {
                let bytes = self.entries * self.element.bytes() as usize;
                self.staged = Some(Buffer::new(context, bytes)?);
            }
            let staged = self.staged.as_ref().ok_or_else(|| refused("no memory".to_owned()))?;
            bits.write(staged, stream)?;
            let pointer = staged.pointer;
            self.update_on_device(context, pointer, stream)?;
            return self.say_equal(context, bits.are_equal(), stream);
        }
        self.write(context, &bits, stream)
    }

    /// Sets the word that says whether all values are equal, where there is one. Before values change it says no, in case only some
    /// of them do.
    fn say_equal(
        &self,
        context: &Arc<Context>,
        equal: bool,
        stream: CUstream,
    ) -> Result<(), EngineError> {
        // Each is written once, so their order does not matter.
        #[allow(clippy::iter_over_hash_type)]
        for held in self.held.values().filter(|held| held.equality) {
            context.fill_on(stream, held.buffer.pointer, equal.into(), 1)?;
        }
        Ok(())
    }

    /// As above, from device memory in the element type. Where the plan has no kernel for it, the values are copied to the
    /// host, put in place there and copied back, which waits for the stream.
    pub(super) fn update_on_device(
        &mut self,
        context: &Arc<Context>,
        values: u64,
        stream: CUstream,
    ) -> Result<(), EngineError> {
        self.check_updatable()?;
        if self.gathers_on_host() {
            let bits = self.download(context, values, stream)?;
            return self.write(context, &bits, stream);
        }
        // Nobody has compared them.
        self.say_equal(context, false, stream)?;
        let (entries, element) = (self.entries as u64, self.element);
        let gather = self.gather.clone();
        let queue = |kernel: &LoadedKernel, block: u32, length: u64, arguments: &[u64]| {
            let blocks = length.div_ceil(u64::from(block));
            let blocks =
                u32::try_from(blocks).map_err(|_| refused(format!("{length} places of values")))?;
            match blocks {
                0 => Ok(()),
                _ => {
                    let geometry = context.geometry([blocks, 1, 1], [block, 1, 1], 0, false);
                    kernel.queue(&context.driver, geometry, stream, arguments)
                }
            }
        };
        for held in self.placed() {
            let (length, packed) = (held.length, held.buffer.pointer);
            match (&held.values, &gather) {
                (Some(Place::Device(map)), Some(Gather { kernel, block, .. })) => {
                    queue(kernel, *block, length, &[values, map.pointer, packed, length])?;
                }
                (
                    Some(Place::Quotients(map, divisors)),
                    Some(Gather { quotients: Some(kernel), block, .. }),
                ) => {
                    let maps = [map.pointer, divisors.pointer];
                    queue(kernel, *block, length, &[values, maps[0], maps[1], packed, length])?;
                }
                _ => {
                    let bytes = ((entries * element.bytes()) as usize).min(held.buffer.bytes);
                    context.copy_on(stream, held.buffer.pointer, values, bytes)?;
                }
            }
            held.filled = true;
        }
        Ok(())
    }

    /// The arrays that hold values.
    fn placed(&mut self) -> impl Iterator<Item = &mut Held> {
        // Each array is written once, so their order does not matter.
        #[allow(clippy::iter_over_hash_type)]
        self.held.values_mut().filter(|held| held.values.is_some())
    }

    fn write(
        &mut self,
        context: &Arc<Context>,
        bits: &Bits,
        stream: CUstream,
    ) -> Result<(), EngineError> {
        self.say_equal(context, false, stream)?;
        for held in self.placed() {
            match &held.values {
                Some(Place::Host(map, kept)) => {
                    bits.gathered(map, kept).write(&held.buffer, stream)?;
                }
                _ => bits.write(&held.buffer, stream)?,
            }
            held.filled = true;
        }
        self.say_equal(context, bits.are_equal(), stream)
    }

    /// Values in device memory as numbers. Waits for all work on the context.
    pub(super) fn numbers(
        &self,
        context: &Arc<Context>,
        values: u64,
        stream: CUstream,
    ) -> Result<Vec<f64>, EngineError> {
        Ok(self.download(context, values, stream)?.numbers(self.element))
    }

    fn download(
        &self,
        context: &Arc<Context>,
        values: u64,
        stream: CUstream,
    ) -> Result<Bits, EngineError> {
        let bytes = self.entries * self.element.bytes() as usize;
        let copy = Buffer::new(context, bytes)?;
        context.copy_on(stream, copy.pointer, values, bytes)?;
        context.synchronize_all()?;
        Bits::read(&copy, self.element, self.entries)
    }
}
