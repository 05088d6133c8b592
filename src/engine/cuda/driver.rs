//! The CUDA driver as the engine uses it: every code is checked and classified by its meaning for the caller.

use crate::engine::EngineError;
use crate::engine::libraries::symbols::symbols;
use crate::engine::libraries::{Library, LibraryError, Search};
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphExec, CUlaunchConfig, CUmodule, CUresult, CUstream,
};
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

symbols! {
    /// The driver functions in use, by their newest names that every CUDA 12 driver has.
    Api {
        init: "cuInit" (c_uint);
        driver_version: "cuDriverGetVersion" (*mut c_int);
        error_name: "cuGetErrorName" (c_uint, *mut *const c_char);
        error_string: "cuGetErrorString" (c_uint, *mut *const c_char);
        device_count: "cuDeviceGetCount" (*mut c_int);
        device_get: "cuDeviceGet" (*mut CUdevice, c_int);
        device_name: "cuDeviceGetName" (*mut c_char, c_int, CUdevice);
        device_attribute: "cuDeviceGetAttribute" (*mut c_int, c_uint, CUdevice);
        device_memory: "cuDeviceTotalMem_v2" (*mut usize, CUdevice);
        device_bus_id: "cuDeviceGetPCIBusId" (*mut c_char, c_int, CUdevice);
        device_uuid: "cuDeviceGetUuid_v2" (*mut c_uchar, CUdevice);
        context_retain: "cuDevicePrimaryCtxRetain" (*mut CUcontext, CUdevice);
        context_release: "cuDevicePrimaryCtxRelease_v2" (CUdevice);
        context_get: "cuCtxGetCurrent" (*mut CUcontext);
        context_set: "cuCtxSetCurrent" (CUcontext);
        memory_info: "cuMemGetInfo_v2" (*mut usize, *mut usize);
        memory_alloc: "cuMemAlloc_v2" (*mut CUdeviceptr, usize);
        memory_free: "cuMemFree_v2" (CUdeviceptr);
        host_alloc: "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
        host_free: "cuMemFreeHost" (*mut c_void);
        copy_to_device: "cuMemcpyHtoDAsync_v2" (CUdeviceptr, *const c_void, usize, CUstream);
        copy_to_host: "cuMemcpyDtoHAsync_v2" (*mut c_void, CUdeviceptr, usize, CUstream);
        copy_on_device: "cuMemcpyDtoDAsync_v2" (CUdeviceptr, CUdeviceptr, usize, CUstream);
        fill: "cuMemsetD32Async" (CUdeviceptr, c_uint, usize, CUstream);
        fill_bytes: "cuMemsetD8Async" (CUdeviceptr, c_uchar, usize, CUstream);
        stream_create: "cuStreamCreate" (*mut CUstream, c_uint);
        stream_synchronize: "cuStreamSynchronize" (CUstream);
        stream_destroy: "cuStreamDestroy_v2" (CUstream);
        stream_capturing: "cuStreamIsCapturing" (CUstream, *mut c_uint);
        exchange_capture_mode: "cuThreadExchangeStreamCaptureMode" (*mut c_uint);
        event_create: "cuEventCreate" (*mut CUevent, c_uint);
        event_record: "cuEventRecord" (CUevent, CUstream);
        event_elapsed: "cuEventElapsedTime" (*mut f32, CUevent, CUevent);
        event_destroy: "cuEventDestroy_v2" (CUevent);
        module_load: "cuModuleLoadData" (*mut CUmodule, *const c_void);
        module_unload: "cuModuleUnload" (CUmodule);
        module_function: "cuModuleGetFunction" (*mut CUfunction, CUmodule, *const c_char);
        function_attribute: "cuFuncGetAttribute" (*mut c_int, c_uint, CUfunction);
        set_function_attribute: "cuFuncSetAttribute" (CUfunction, c_uint, c_int);
        occupancy: "cuOccupancyMaxActiveBlocksPerMultiprocessor"
            (*mut c_int, CUfunction, c_int, usize);
        launch: "cuLaunchKernel" (
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
            *mut *mut c_void, *mut *mut c_void
        );
        launch_configured: "cuLaunchKernelEx" (
            *const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void
        );
        active_clusters: "cuOccupancyMaxActiveClusters"
            (*mut c_int, CUfunction, *const CUlaunchConfig);
        capture_begin: "cuStreamBeginCapture_v2" (CUstream, c_uint);
        capture_end: "cuStreamEndCapture" (CUstream, *mut CUgraph);
        graph_instantiate: "cuGraphInstantiateWithFlags" (*mut CUgraphExec, CUgraph, c_ulonglong);
        graph_destroy: "cuGraphDestroy" (CUgraph);
        graph_upload: "cuGraphUpload" (CUgraphExec, CUstream);
        graph_launch: "cuGraphLaunch" (CUgraphExec, CUstream);
        graph_exec_destroy: "cuGraphExecDestroy" (CUgraphExec);
    }
}

/// `cuFuncGetParamInfo`, of drivers from 12.4 on.
type ParamInfo = unsafe extern "C" fn(CUfunction, usize, *mut usize, *mut usize) -> u32;

/// The driver, initialised.
pub struct Driver {
    pub(super) api: Api,
    param_info: Option<ParamInfo>,
}

impl Driver {
    /// Loads and initialises the driver. Creates no context.
    pub fn open(search: &Search) -> Result<Self, LibraryError> {
        let api = Api::load(search.open(Library::Driver)?)?;
        // SAFETY: the signature is the vendor's; the pointer lives as long as `api.library`, its neighbour.
        let param_info = unsafe { api.library.symbol::<ParamInfo>("cuFuncGetParamInfo") }.ok();
        let driver = Self { api, param_info };
        // SAFETY: cuInit takes no memory of ours.
        match unsafe { (driver.api.init)(0) } {
            0 => Ok(driver),
            code => Err(driver.api.library.call_error("cuInit", driver.describe(code))),
        }
    }

    /// Checks the result of the named call.
    pub(super) fn check(&self, call: &str, code: u32) -> Result<(), EngineError> {
        if code == 0 {
            return Ok(());
        }
        let message = format!("{call}: {}", self.describe(code));
        Err(match code {
            code if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 => {
                EngineError::OutOfMemory(message)
            }
            code if is_sticky(code) => EngineError::Lost(message),
            _ => EngineError::Refused(message),
        })
    }

    /// Name and description of a driver code; codes newer than the driver have neither.
    fn describe(&self, code: u32) -> String {
        let text = |function: unsafe extern "C" fn(c_uint, *mut *const c_char) -> u32| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: `text` is valid for writes, and the driver's strings are static.
            unsafe {
                if function(code, &mut text) != 0 || text.is_null() {
                    return None;
                }
                Some(CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        match (text(self.api.error_name), text(self.api.error_string)) {
            (Some(name), Some(sentence)) => format!("{name} ({sentence})"),
            _ => format!("driver code {code}"),
        }
    }

    /// The context that is current on this thread; null if none is.
    pub(super) fn current(&self) -> Result<CUcontext, EngineError> {
        let mut current: CUcontext = std::ptr::null_mut();
        // SAFETY: out-pointer to a local.
        let code = unsafe { (self.api.context_get)(&mut current) };
        self.check("cuCtxGetCurrent", code)?;
        Ok(current)
    }

    /// `(13, 0)` for the CUDA version the driver supports.
    pub fn version(&self) -> Result<(u32, u32), EngineError> {
        let mut version = 0;
        // SAFETY: out-pointer to a local.
        self.check("cuDriverGetVersion", unsafe { (self.api.driver_version)(&mut version) })?;
        let version = version.unsigned_abs();
        Ok((version / 1000, version % 1000 / 10))
    }

    pub fn device_count(&self) -> Result<u32, EngineError> {
        let mut count = 0;
        // SAFETY: out-pointer to a local.
        self.check("cuDeviceGetCount", unsafe { (self.api.device_count)(&mut count) })?;
        Ok(count.unsigned_abs())
    }

    pub(super) fn device(&self, ordinal: u32) -> Result<CUdevice, EngineError> {
        let mut device = 0;
        // SAFETY: out-pointer to a local.
        let code = unsafe { (self.api.device_get)(&mut device, ordinal as c_int) };
        self.check("cuDeviceGet", code)?;
        Ok(device)
    }

    pub(super) fn name(&self, device: CUdevice) -> Result<String, EngineError> {
        let mut name = [0 as c_char; 256];
        // SAFETY: the buffer is as long as said.
        let code = unsafe { (self.api.device_name)(name.as_mut_ptr(), 256, device) };
        self.check("cuDeviceGetName", code)?;
        Ok(text(&name))
    }

    /// `0000:3b:00.0`, the name by which NVML identifies the same device.
    pub(super) fn bus_id(&self, device: CUdevice) -> Result<String, EngineError> {
        let mut name = [0 as c_char; 32];
        // SAFETY: the buffer is as long as said.
        let code = unsafe { (self.api.device_bus_id)(name.as_mut_ptr(), 32, device) };
        self.check("cuDeviceGetPCIBusId", code)?;
        Ok(text(&name))
    }

    /// `GPU-` and the number, as the vendor's tools write it.
    pub(super) fn uuid(&self, device: CUdevice) -> Result<String, EngineError> {
        let mut bytes = [0; 16];
        // SAFETY: the number has as many bytes.
        let code = unsafe { (self.api.device_uuid)(bytes.as_mut_ptr(), device) };
        self.check("cuDeviceGetUuid", code)?;
        Ok(format!("GPU-{}", uuid::Uuid::from_bytes(bytes)))
    }

    pub(super) fn attribute(
        &self,
        device: CUdevice,
        attribute: CUdevice_attribute,
    ) -> Result<u32, EngineError> {
        let mut value = 0;
        // SAFETY: out-pointer to a local.
        let code = unsafe { (self.api.device_attribute)(&mut value, attribute as u32, device) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(value.unsigned_abs())
    }

    pub(super) fn memory_bytes(&self, device: CUdevice) -> Result<u64, EngineError> {
        let mut bytes = 0;
        // SAFETY: out-pointer to a local.
        let code = unsafe { (self.api.device_memory)(&mut bytes, device) };
        self.check("cuDeviceTotalMem", code)?;
        Ok(bytes as u64)
    }

    pub(super) fn function_attribute(
        &self,
        function: CUfunction,
        attribute: CUfunction_attribute,
    ) -> Result<u32, EngineError> {
        let mut value = 0;
        // SAFETY: out-pointer to a local; the function's module is loaded.
        let code = unsafe { (self.api.function_attribute)(&mut value, attribute as u32, function) };
        self.check("cuFuncGetAttribute", code)?;
        Ok(value.unsigned_abs())
    }

    /// Sizes of a kernel's parameters in order, if the driver can report them.
    pub(super) fn parameter_sizes(&self, function: CUfunction) -> Option<Vec<usize>> {
        let param_info = self.param_info?;
        let mut sizes = Vec::new();
        // A kernel has at most 32764 bytes of parameters, so this ends even if the driver never reports an error.
        for index in 0..32_764 {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: out-pointers to locals; an index past the last is answered with an error.
            if unsafe { param_info(function, index, &mut offset, &mut size) } != 0 {
                break;
            }
            sizes.push(size);
        }
        Some(sizes)
    }
}

/// Codes after which the context returns only this code, so the process has to end.
fn is_sticky(code: u32) -> bool {
    use CUresult::*;
    const CONTAINED: u32 = 226;
    const TENSOR_MEMORY_LEAK: u32 = 721;
    let sticky = [
        CUDA_ERROR_DEINITIALIZED,
        CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_NVLINK_UNCORRECTABLE,
        CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_LAUNCH_TIMEOUT,
        CUDA_ERROR_CONTEXT_IS_DESTROYED,
        CUDA_ERROR_ASSERT,
        CUDA_ERROR_HARDWARE_STACK_ERROR,
        CUDA_ERROR_ILLEGAL_INSTRUCTION,
        CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_INVALID_ADDRESS_SPACE,
        CUDA_ERROR_INVALID_PC,
        CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_UNKNOWN,
    ];
    sticky.iter().any(|&known| known as u32 == code)
        || [CONTAINED, TENSOR_MEMORY_LEAK].contains(&code)
}

/// A C string in a fixed buffer; without a terminator, the whole buffer.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sticky_codes_are_those_that_kill_a_context() {
        assert!([700, 702, 716, 719, 214, 226, 999].into_iter().all(is_sticky));
        assert!(![0, 1, 2, 200, 209, 500, 701, 801].into_iter().any(is_sticky));
    }

    #[test]
    fn without_a_terminator_the_whole_buffer_is_the_text() {
        assert_eq!(text(&[b'a' as c_char, 0, b'b' as c_char]), "a");
        assert_eq!(text(&[b'a' as c_char, b'b' as c_char]), "ab");
    }
}
