//! The C interface of plans for the host CPU; `include/sparsetune.h` describes it, and a test keeps the two equal.
//!
//! Nothing unwinds into the caller: a panic becomes [`INTERNAL`]. Pointers are checked for null, and operands for overlap; that
//! they are valid otherwise is the caller's part, as in C.

#![cfg_attr(
    not(test),
    warn(clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::unwrap_used)
)]

mod failure;
mod plan;

pub use failure::{
    BAD_ARGUMENT, BAD_BUNDLE, FAILED, INTERNAL, NO_VALUES, OK, OTHER_DEVICE, STALE, WRONG_RESULT,
};
pub use plan::{COLUMN_MAJOR, F32, F64, Operand, Plan, ROW_MAJOR};

use failure::{Failure, guarded, null};
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;

/// `SPARSETUNE_ABI`.
pub const ABI: u32 = 1;

#[unsafe(no_mangle)]
pub extern "C" fn sparsetune_abi() -> u32 {
    ABI
}

#[unsafe(no_mangle)]
pub extern "C" fn sparsetune_error() -> *const c_char {
    failure::last()
}

/// # Safety
/// `path` is null or a string; `plan` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsetune_plan_open(path: *const c_char, plan: *mut *mut Plan) -> i32 {
    guarded(|| {
        if plan.is_null() {
            return Err(null("plan"));
        }
        // SAFETY: the caller's; it is not null.
        unsafe { *plan = std::ptr::null_mut() };
        if path.is_null() {
            return Err(null("path"));
        }
        // SAFETY: the caller's; it is not null.
        let path = path_of(unsafe { CStr::from_ptr(path) })?;
        let opened = Box::into_raw(Box::new(Plan::open(path)?));
        // SAFETY: as above.
        unsafe { *plan = opened };
        Ok(())
    })
}

/// # Safety
/// `plan` is null or from `sparsetune_plan_open`, not closed yet, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsetune_plan_close(plan: *mut Plan) {
    guarded(|| {
        if !plan.is_null() {
            // SAFETY: it was made by `Box::into_raw`, and the caller gives it up.
            drop(unsafe { Box::from_raw(plan) });
        }
        Ok(())
    });
}

/// # Safety
/// `plan` is null or open; `operand` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsetune_plan_input(plan: *const Plan, operand: *mut Operand) -> i32 {
    // SAFETY: the caller's.
    unsafe { put_operand(plan, operand, |plan| plan.input) }
}

/// # Safety
/// `plan` is null or open; `operand` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsetune_plan_output(plan: *const Plan, operand: *mut Operand) -> i32 {
    // SAFETY: the caller's.
    unsafe { put_operand(plan, operand, |plan| plan.output) }
}

/// # Safety
/// `plan` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsetune_plan_entries(plan: *const Plan) -> u64 {
    // SAFETY: the caller's.
    unsafe { plan.as_ref() }.map_or(0, |plan| plan.entries)
}

/// # Safety
/// `plan` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsetune_plan_accumulates(plan: *const Plan) -> i32 {
    // SAFETY: the caller's.
    unsafe { plan.as_ref() }.map_or(0, |plan| i32::from(plan.accumulates))
}

/// # Safety
/// `plan` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsetune_plan_warning(plan: *const Plan, index: usize) -> *const c_char {
    // SAFETY: the caller's.
    let warning = unsafe { plan.as_ref() }.and_then(|plan| plan.warnings.get(index));
    warning.map_or(std::ptr::null(), |warning| warning.as_ptr())
}

/// # Safety
/// `plan` is null or open; `b` and `c` are null or have the bytes that `sparsetune_plan_input` and `sparsetune_plan_output`
/// state, and nobody else uses those of `c` during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsetune_plan_run(
    plan: *const Plan,
    b: *const c_void,
    c: *mut c_void,
    alpha: f64,
    beta: f64,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's.
        let plan = unsafe { plan.as_ref() }.ok_or_else(|| null("plan"))?;
        let (b_bytes, c_bytes) = (plan.input.length()?, plan.output.length()?);
        let (b, c) = (b.cast::<u8>(), c.cast::<u8>());
        let overlap = (b as usize) < (c as usize).saturating_add(c_bytes)
            && (c as usize) < (b as usize).saturating_add(b_bytes);
        if overlap && b_bytes > 0 && c_bytes > 0 {
            return Err(Failure::argument("b and c overlap"));
        }
        let b = match (b.is_null(), b_bytes) {
            (_, 0) => &[],
            (true, _) => return Err(null("b")),
            // SAFETY: the caller's; it is not null.
            (false, _) => unsafe { std::slice::from_raw_parts(b, b_bytes) },
        };
        let c = match (c.is_null(), c_bytes) {
            (_, 0) => &mut [],
            (true, _) => return Err(null("c")),
            // SAFETY: the caller's; it is not null, and does not overlap b.
            (false, _) => unsafe { std::slice::from_raw_parts_mut(c, c_bytes) },
        };
        plan.run(b, c, alpha, beta)
    })
}

/// # Safety
/// `plan` is null or open; `values` is null or has `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsetune_plan_update_values(
    plan: *mut Plan,
    values: *const f64,
    count: usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's. Calls of other threads have shared references, so this must be one as well.
        let plan = unsafe { plan.as_ref() }.ok_or_else(|| null("plan"))?;
        if count as u64 != plan.entries {
            let why = format!("there are {count} values for {} entries", plan.entries);
            return Err(Failure::argument(&why));
        }
        let values = match (values.is_null(), count) {
            (_, 0) => &[],
            (true, _) => return Err(null("values")),
            // SAFETY: the caller's; it is not null, and as many as a plan in memory has entries.
            (false, _) => unsafe { std::slice::from_raw_parts(values, count) },
        };
        plan.update_values(values)
    })
}

/// # Safety
/// `plan` is null or open; `worst` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsetune_plan_check(plan: *const Plan, worst: *mut f64) -> i32 {
    guarded(|| {
        // SAFETY: the caller's.
        let plan = unsafe { plan.as_ref() }.ok_or_else(|| null("plan"))?;
        let report = plan.check()?;
        // SAFETY: the caller's.
        if let Some(worst) = unsafe { worst.as_mut() } {
            *worst = report.worst;
        }
        if report.passed() {
            return Ok(());
        }
        let why = format!("a result is wrong by {} times the bound of its error", report.worst);
        Err(Failure { status: WRONG_RESULT, message: why })
    })
}

/// # Safety
/// `plan` is null or open; `operand` is null or writable.
unsafe fn put_operand(
    plan: *const Plan,
    operand: *mut Operand,
    which: impl FnOnce(&Plan) -> Operand,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's.
        let plan = unsafe { plan.as_ref() }.ok_or_else(|| null("plan"))?;
        if operand.is_null() {
            return Err(null("operand"));
        }
        // SAFETY: the caller's; it is not null.
        unsafe { *operand = which(plan) };
        Ok(())
    })
}

#[cfg(unix)]
fn path_of(path: &CStr) -> Result<&Path, Failure> {
    use std::os::unix::ffi::OsStrExt;
    Ok(Path::new(std::ffi::OsStr::from_bytes(path.to_bytes())))
}

#[cfg(not(unix))]
fn path_of(path: &CStr) -> Result<&Path, Failure> {
    path.to_str().map(Path::new).map_err(|_| Failure::argument("the path is not in UTF-8"))
}
