//! Kernels on the device and their launches: limits checked before, arguments marshalled from a recipe.

use super::compile::Done;
use super::context::{Context, Module};
use super::operands::Loaded;
use crate::domain::Resources;
use crate::domain::recipe::{Arg, Recipe, Step};
use crate::engine::EngineError;
use cudarc::driver::sys::{CUdevice_attribute as Limit, CUfunction, CUfunction_attribute as Fact};
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// A kernel of a loaded module.
pub(super) struct Kernel {
    function: CUfunction,
    /// Of the compiler or the cache.
    pub(super) done: Done,
    registers: u32,
    local_bytes: u32,
    static_shared: u32,
    max_threads: u32,
    /// Where the driver can tell.
    parameter_sizes: Option<Vec<usize>>,
    _module: Module,
}

// SAFETY: a function handle is usable from any thread that has its context bound; see `Context`.
unsafe impl Send for Kernel {}
// SAFETY: nothing in it changes.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Loads the cubin, and opts in to all the dynamic shared memory that the device lets a block have.
    pub(super) fn load(
        context: &Arc<Context>,
        done: Done,
        entry: &str,
    ) -> Result<Self, EngineError> {
        let name =
            CString::new(entry).map_err(|_| refused("the entry's name holds a NUL".into()))?;
        let module = Module::load(context, &done.binary.cubin)?;
        let function = module.function(&name)?;
        let driver = &context.driver;
        let fact = |fact| driver.function_attribute(function, fact);
        let static_shared = fact(Fact::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let opt_in = driver.attribute(
            context.device,
            Limit::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?;
        let most = opt_in.saturating_sub(static_shared) as i32;
        let attribute = Fact::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as u32;
        // SAFETY: the function's module is loaded.
        let code = unsafe { (driver.api.set_function_attribute)(function, attribute, most) };
        driver.check("cuFuncSetAttribute", code)?;
        Ok(Self {
            function,
            registers: fact(Fact::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: fact(Fact::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            static_shared,
            max_threads: fact(Fact::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            parameter_sizes: driver.parameter_sizes(function),
            done,
            _module: module,
        })
    }

    /// Figures of this kernel launched as the program asks; refused where not one block would be resident.
    pub(super) fn resources(
        &self,
        context: &Context,
        program: &Step,
    ) -> Result<Resources, EngineError> {
        let threads = self.check_limits(context, program)?;
        let mut blocks = 0;
        let occupancy = context.driver.api.occupancy;
        let shared = program.shared_bytes as usize;
        // SAFETY: out-pointer to a local; the function's module is loaded.
        let code = unsafe { occupancy(&mut blocks, self.function, threads as i32, shared) };
        context.driver.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        if blocks < 1 {
            return Err(refused(format!(
                "not one block of {threads} threads fits a multiprocessor ({} registers a thread, {} bytes of \
                 shared memory a block)",
                self.registers,
                self.static_shared + program.shared_bytes
            )));
        }
        let most = context
            .driver
            .attribute(context.device, Limit::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
        Ok(Resources {
            registers: self.registers,
            local_bytes: self.local_bytes,
            shared_bytes: self.static_shared + program.shared_bytes,
            blocks_per_multiprocessor: blocks.unsigned_abs(),
            occupancy: f64::from(blocks) * f64::from(threads) / f64::from(most.max(1)),
        })
    }

    /// Checks the geometry against device and kernel; gives the threads of a block.
    fn check_limits(&self, context: &Context, program: &Step) -> Result<u32, EngineError> {
        let limit = |limit| context.driver.attribute(context.device, limit);
        let grid = [
            limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
            limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ];
        let block = [
            limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
            limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
            limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
        ];
        within("grid", program.grid, grid)?;
        within("block", program.block, block)?;
        let threads = program.block.iter().map(|&side| u64::from(side)).product::<u64>();
        if threads > u64::from(self.max_threads) {
            return Err(refused(format!(
                "a block of {threads} threads; this kernel takes at most {} ({} registers a thread)",
                self.max_threads, self.registers
            )));
        }
        let opt_in = limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let shared = u64::from(self.static_shared) + u64::from(program.shared_bytes);
        if shared > u64::from(opt_in) {
            return Err(refused(format!(
                "a block asks for {shared} bytes of shared memory; the device has {opt_in}"
            )));
        }
        Ok(threads as u32)
    }
}

fn within(what: &str, asked: [u32; 3], most: [u32; 3]) -> Result<(), EngineError> {
    match asked.iter().zip(&most).position(|(&asked, &most)| asked == 0 || asked > most) {
        None => Ok(()),
        Some(axis) => Err(refused(format!(
            "{what}.{} is {}; it must be 1 to {}",
            ["x", "y", "z"][axis],
            asked[axis],
            most[axis]
        ))),
    }
}

/// One launch, ready to be queued any number of times.
pub(super) struct Launch {
    context: Arc<Context>,
    kernel: Arc<Kernel>,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    /// Each argument in the low bytes of a word (every CUDA host is little-endian).
    arguments: Vec<u64>,
    /// Pointer and words of what must be zeroed before each call.
    zero: Option<(u64, usize)>,
}

impl Launch {
    /// A launch of one of the engine's own kernels, whose geometry is right by construction.
    pub(super) fn own(
        context: &Arc<Context>,
        kernel: &Arc<Kernel>,
        grid: u32,
        block: u32,
        arguments: Vec<u64>,
    ) -> Self {
        let (context, kernel) = (context.clone(), kernel.clone());
        let (grid, block) = ([grid, 1, 1], [block, 1, 1]);
        Self { context, kernel, grid, block, shared_bytes: 0, arguments, zero: None }
    }

    /// The launch of a recipe's program on the loaded operands; its arrays must have been uploaded.
    pub(super) fn of(
        context: &Arc<Context>,
        kernel: &Arc<Kernel>,
        program: &Step,
        zero_output: bool,
        recipe: &Recipe,
        loaded: &Loaded,
    ) -> Result<Self, EngineError> {
        let mut arguments = Vec::with_capacity(program.args.len());
        let mut sizes = Vec::with_capacity(program.args.len());
        for arg in &program.args {
            let (word, size) = match *arg {
                Arg::RowPtr => (loaded.row_ptr.pointer, 8),
                Arg::ColIdx => (loaded.col_idx.pointer, 8),
                Arg::Values => (loaded.values.pointer, 8),
                Arg::B => (loaded.b.pointer, 8),
                Arg::C => (loaded.c.pointer, 8),
                Arg::Diagonal => match &loaded.diagonal {
                    Some(diagonal) => (diagonal.pointer, 8),
                    None => return Err(refused("a product has no diagonal".to_owned())),
                },
                Arg::Array(index) => (loaded.array(recipe, index)?, 8),
                Arg::U32(value) => (u64::from(value), 4),
                Arg::U64(value) => (value, 8),
                Arg::F32(value) => (u64::from(value.to_bits()), 4),
                other => return Err(refused(format!("the engine has no {other:?} yet"))),
            };
            arguments.push(word);
            sizes.push(size);
        }
        if let Some(expected) = &kernel.parameter_sizes
            && *expected != sizes
        {
            // Launched so, the driver would read past the arguments.
            return Err(refused(format!(
                "kernel `{}` takes arguments of {expected:?} bytes; the recipe passes {sizes:?}",
                program.entry
            )));
        }
        Ok(Self {
            context: context.clone(),
            kernel: kernel.clone(),
            grid: program.grid,
            block: program.block,
            shared_bytes: program.shared_bytes,
            arguments,
            zero: zero_output.then(|| (loaded.c.pointer, loaded.words())),
        })
    }

    /// Queues one call, with the zeroing it needs.
    pub(super) fn enqueue(&self) -> Result<(), EngineError> {
        if let Some((pointer, words)) = self.zero {
            self.context.fill(pointer, 0, words)?;
        }
        let mut pointers: Vec<*mut c_void> =
            self.arguments.iter().map(|word| std::ptr::from_ref(word).cast_mut().cast()).collect();
        let ([gx, gy, gz], [bx, by, bz]) = (self.grid, self.block);
        // SAFETY: `pointers` points at as many words as the kernel has parameters, copied during the call; what the
        // kernel does with device memory is the device's to check.
        let code = unsafe {
            (self.context.driver.api.launch)(
                self.kernel.function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                self.shared_bytes,
                self.context.stream,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.context.driver.check("cuLaunchKernel", code)
    }
}

pub(super) fn refused(message: String) -> EngineError {
    EngineError::Refused(message)
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn geometry_beyond_the_device_is_refused_by_name() {
        let most = [2_147_483_647, 65_535, 65_535];
        assert!(within("grid", [1, 65_535, 1], most).is_ok());
        let error = within("grid", [1, 65_536, 1], most).unwrap_err().to_string();
        assert_eq!(error, "grid.y is 65536; it must be 1 to 65535");
        assert!(within("grid", [0, 1, 1], most).is_err());
    }
}
