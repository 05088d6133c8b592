//! NVRTC: source text to cubin, with the registers and spills that ptxas reports. Needs no GPU and no driver.

use super::source::Unit;
use crate::engine::libraries::symbols::symbols;
use crate::engine::libraries::{Library, LibraryError, Search};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::time::Instant;

symbols! {
    Api {
        version: "nvrtcVersion" (*mut c_int, *mut c_int);
        create: "nvrtcCreateProgram" (
            *mut *mut c_void, *const c_char, *const c_char, c_int, *const *const c_char,
            *const *const c_char
        );
        compile: "nvrtcCompileProgram" (*mut c_void, c_int, *const *const c_char);
        cubin_size: "nvrtcGetCUBINSize" (*mut c_void, *mut usize);
        cubin: "nvrtcGetCUBIN" (*mut c_void, *mut c_char);
        ptx_size: "nvrtcGetPTXSize" (*mut c_void, *mut usize);
        ptx: "nvrtcGetPTX" (*mut c_void, *mut c_char);
        log_size: "nvrtcGetProgramLogSize" (*mut c_void, *mut usize);
        log: "nvrtcGetProgramLog" (*mut c_void, *mut c_char);
        destroy: "nvrtcDestroyProgram" (*mut *mut c_void);
    }
}

/// The compiler.
pub struct Nvrtc {
    api: Api,
    version: (u32, u32),
}

/// A compiled program.
#[derive(Clone, Debug, PartialEq)]
pub struct Binary {
    pub cubin: Vec<u8>,
    /// Most registers per thread of any of its kernels.
    pub registers: u32,
    /// Bytes of spill stores and loads, summed over its kernels.
    pub spill_bytes: u32,
    pub log: String,
    pub ms: f64,
}

/// A text that does not compile, with the compiler's log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{log}")]
pub struct CompileError {
    pub log: String,
}

impl Nvrtc {
    pub fn open(search: &Search) -> Result<Self, LibraryError> {
        let api = Api::load(search.open(Library::Nvrtc)?)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: out-pointers to locals.
        match unsafe { (api.version)(&mut major, &mut minor) } {
            0 => Ok(Self { api, version: (major.unsigned_abs(), minor.unsigned_abs()) }),
            code => Err(api.library.call_error("nvrtcVersion", format!("code {code}"))),
        }
    }

    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    pub fn path(&self) -> &std::path::Path {
        self.api.library.path()
    }

    /// Compiles one program; safe to call from many threads at once.
    pub fn compile(&self, unit: &Unit, options: &[String]) -> Result<Binary, CompileError> {
        let started = Instant::now();
        let program = self.built(unit, options)?;
        let cubin = program.output("nvrtcGetCUBIN", self.api.cubin_size, self.api.cubin)?;
        let log = program.log();
        let (registers, spill_bytes) = figures(&log);
        let ms = started.elapsed().as_secs_f64() * 1e3;
        Ok(Binary { cubin, registers, spill_bytes, log, ms })
    }

    /// The PTX of a program, which other drivers can assemble; the options name a virtual architecture (`compute_90`).
    pub fn ptx(&self, unit: &Unit, options: &[String]) -> Result<String, CompileError> {
        let program = self.built(unit, options)?;
        let mut ptx = program.output("nvrtcGetPTX", self.api.ptx_size, self.api.ptx)?;
        // The library counts the terminator of the C string.
        ptx.truncate(ptx.iter().position(|&byte| byte == 0).unwrap_or(ptx.len()));
        String::from_utf8(ptx).map_err(|_| CompileError { log: "the PTX is not UTF-8".to_owned() })
    }

    fn built(&self, unit: &Unit, options: &[String]) -> Result<Program<'_>, CompileError> {
        let program = Program::create(&self.api, unit)?;
        let options = options.iter().map(|o| c_string(o)).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let compile = self.api.compile;
        // SAFETY: `pointers` are as many C strings as said and outlive the call.
        let code = unsafe { compile(program.handle, pointers.len() as c_int, pointers.as_ptr()) };
        if code != 0 {
            let log = program.log();
            let log = if log.trim().is_empty() { format!("nvrtc code {code}") } else { log };
            return Err(CompileError { log });
        }
        Ok(program)
    }
}

/// One NVRTC program, destroyed on drop.
struct Program<'a> {
    api: &'a Api,
    handle: *mut c_void,
}

impl<'a> Program<'a> {
    fn create(api: &'a Api, unit: &Unit) -> Result<Self, CompileError> {
        let text = c_string(&unit.text)?;
        let mut names = Vec::new();
        let mut bodies = Vec::new();
        for header in &unit.headers {
            names.push(c_string(&header.name)?);
            bodies.push(c_string(&header.text)?);
        }
        let name_pointers: Vec<*const c_char> = names.iter().map(|n| n.as_ptr()).collect();
        let body_pointers: Vec<*const c_char> = bodies.iter().map(|b| b.as_ptr()).collect();
        let mut handle = std::ptr::null_mut();
        // SAFETY: all are C strings that outlive the call, which copies them.
        let code = unsafe {
            (api.create)(
                &mut handle,
                text.as_ptr(),
                c"program.cu".as_ptr(),
                names.len() as c_int,
                body_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        match code {
            0 => Ok(Self { api, handle }),
            code => Err(CompileError { log: format!("nvrtcCreateProgram: code {code}") }),
        }
    }

    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: out-pointer to a local; then a buffer of the size the library asked for.
        unsafe {
            if (self.api.log_size)(self.handle, &mut size) != 0 || size == 0 {
                return String::new();
            }
            let mut log = vec![0u8; size];
            if (self.api.log)(self.handle, log.as_mut_ptr().cast()) != 0 {
                return String::new();
            }
            let text = CStr::from_bytes_until_nul(&log).map_or_else(|_| &log[..], CStr::to_bytes);
            String::from_utf8_lossy(text).into_owned()
        }
    }

    /// What the library made, by the function that gives its length and the one, called `name`, that copies it.
    fn output(
        &self,
        name: &str,
        length: unsafe extern "C" fn(*mut c_void, *mut usize) -> u32,
        copy: unsafe extern "C" fn(*mut c_void, *mut c_char) -> u32,
    ) -> Result<Vec<u8>, CompileError> {
        let failed = |code| CompileError { log: format!("{name}: code {code}") };
        let mut size = 0;
        // SAFETY: out-pointer to a local; then a buffer of the size the library asked for.
        unsafe {
            match length(self.handle, &mut size) {
                0 if size > 0 => {}
                code => return Err(failed(code)),
            }
            let mut bytes = vec![0u8; size];
            match copy(self.handle, bytes.as_mut_ptr().cast()) {
                0 => Ok(bytes),
                code => Err(failed(code)),
            }
        }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.api.destroy)(&mut self.handle) };
    }
}

fn c_string(text: &str) -> Result<CString, CompileError> {
    CString::new(text)
        .map_err(|_| CompileError { log: "the text holds a NUL character".to_owned() })
}

/// Registers and spill bytes from ptxas' report (`--ptxas-options=-v`).
fn figures(log: &str) -> (u32, u32) {
    let (mut registers, mut spills) = (0, 0);
    for line in log.lines() {
        let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        for window in words.windows(3) {
            if let ["Used", count, "registers"] = window {
                registers = registers.max(count.parse().unwrap_or(0));
            }
            if let [bytes, "bytes", "spill"] = window {
                spills += bytes.parse::<u32>().unwrap_or(0);
            }
        }
    }
    (registers, spills)
}

#[cfg(test)]
mod tests {
    use super::figures;

    #[test]
    fn reads_the_report_of_two_kernels() {
        let log = "\
ptxas info    : Compiling entry function 'a' for 'sm_90'
ptxas info    : Function properties for a
    8 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers, 400 bytes cmem[0]
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers";
        assert_eq!(figures(log), (40, 12));
        assert_eq!(figures(""), (0, 0));
    }
}
