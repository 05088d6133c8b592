//! NVML: the driver's release, and why clocks are reduced. Without NVML only these facts are missing.

use crate::engine::libraries::symbols::symbols;
use crate::engine::libraries::{Library, LibraryError, Search};
use std::ffi::{CString, c_char, c_uint, c_ulonglong, c_void};

symbols! {
    Api {
        init: "nvmlInit_v2" ();
        driver_version: "nvmlSystemGetDriverVersion" (*mut c_char, c_uint);
        by_bus_id: "nvmlDeviceGetHandleByPciBusId_v2" (*const c_char, *mut *mut c_void);
        throttle_reasons: "nvmlDeviceGetCurrentClocksThrottleReasons"
            (*mut c_void, *mut c_ulonglong);
    }
}

/// Reasons that make a sample worthless, since the hardware protects itself: hardware slowdown, software and hardware thermal
/// slowdown, power brake. Others are the device's normal state and not included: idle, application clocks, the software power
/// cap (a busy H100 reaches it in every long kernel), sync boost, display clocks.
const WORTHLESS: u64 = 0x8 | 0x20 | 0x40 | 0x80;

pub(super) struct Nvml {
    api: Api,
}

impl Nvml {
    pub(super) fn open(search: &Search) -> Result<Self, LibraryError> {
        let api = Api::load(search.open(Library::Nvml)?)?;
        // SAFETY: takes nothing. Never shut down: the process ends soon after its use of NVML does.
        match unsafe { (api.init)() } {
            0 => Ok(Self { api }),
            code => Err(api.library.call_error("nvmlInit", format!("code {code}"))),
        }
    }

    pub(super) fn path(&self) -> &std::path::Path {
        self.api.library.path()
    }

    /// `580.159.04`.
    pub(super) fn driver_release(&self) -> Option<String> {
        let mut text = [0 as c_char; 96];
        // SAFETY: the buffer is as long as said.
        let code = unsafe { (self.api.driver_version)(text.as_mut_ptr(), 96) };
        let bytes: Vec<u8> = text.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
        (code == 0).then(|| String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Monitors one device for throttling.
pub(super) struct Monitor {
    nvml: Nvml,
    device: *mut c_void,
}

// SAFETY: NVML is thread-safe and its handles are process-wide.
unsafe impl Send for Monitor {}

impl Monitor {
    pub(super) fn new(nvml: Nvml, bus_id: &str) -> Option<Self> {
        let bus_id = CString::new(bus_id).ok()?;
        let mut device = std::ptr::null_mut();
        // SAFETY: a C string and an out-pointer to a local.
        let code = unsafe { (nvml.api.by_bus_id)(bus_id.as_ptr(), &mut device) };
        (code == 0).then_some(Self { nvml, device })
    }

    /// Whether the device currently runs slower than in its normal state; `false` if NVML does not report it.
    pub(super) fn throttled(&self) -> bool {
        let mut reasons = 0;
        // SAFETY: out-pointer to a local; the handle is valid until NVML is shut down, which it never is.
        let code = unsafe { (self.nvml.api.throttle_reasons)(self.device, &mut reasons) };
        code == 0 && reasons & WORTHLESS != 0
    }
}
