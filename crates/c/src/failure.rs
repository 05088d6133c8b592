//! Statuses, and the sentence that explains the last one that was not [`OK`].

use sparsetune_core::bundle::{BundleError, RunError};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub const OK: i32 = 0;
pub const BAD_ARGUMENT: i32 = 1;
pub const BAD_BUNDLE: i32 = 2;
pub const OTHER_DEVICE: i32 = 3;
pub const STALE: i32 = 4;
pub const NO_VALUES: i32 = 5;
pub const FAILED: i32 = 6;
pub const WRONG_RESULT: i32 = 7;
pub const INTERNAL: i32 = 8;

/// Why a function did not do what it was asked for.
#[derive(Debug)]
pub struct Failure {
    pub status: i32,
    pub message: String,
}

impl Failure {
    pub fn argument(why: &str) -> Self {
        Self { status: BAD_ARGUMENT, message: why.to_owned() }
    }
}

impl From<BundleError> for Failure {
    fn from(error: BundleError) -> Self {
        Self { status: BAD_BUNDLE, message: error.to_string() }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let status = match error {
            RunError::OtherDevice(_) => OTHER_DEVICE,
            RunError::Stale(_) => STALE,
            RunError::Operands(_) => BAD_ARGUMENT,
            RunError::NoValues => NO_VALUES,
            RunError::Engine(_) => FAILED,
        };
        Self { status, message: error.to_string() }
    }
}

/// The failure of an argument that must not be null.
pub fn null(name: &str) -> Failure {
    Failure::argument(&format!("`{name}` is NULL"))
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a function's work; its status, after its sentence has been kept.
pub fn guarded(work: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return OK,
        Ok(Err(failure)) => failure,
        Err(_) => Failure {
            status: INTERNAL,
            message: "a fault of the library; what it said is on standard error".to_owned(),
        },
    };
    let text: Vec<u8> =
        failure.message.into_bytes().into_iter().filter(|&byte| byte != 0).collect();
    // A thread that is ending keeps no sentence.
    let _ = LAST.try_with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
    failure.status
}

/// The sentence of this thread's last failure; empty if there was none.
pub fn last() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn sentence() -> String {
        // SAFETY: no other function fails on this thread meanwhile.
        unsafe { CStr::from_ptr(last()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!((guarded(|| Ok(())), sentence().as_str()), (OK, ""));
        assert_eq!(guarded(|| Err(null("plan"))), BAD_ARGUMENT);
        assert_eq!(sentence(), "`plan` is NULL");
        assert_eq!(guarded(|| panic!("on purpose")), INTERNAL);
        assert!(sentence().starts_with("a fault of the library"));
        assert_eq!(guarded(|| Err(Failure::argument("a\0b"))), BAD_ARGUMENT);
        assert_eq!(sentence(), "ab");
        assert_eq!((guarded(|| Ok(())), sentence().as_str()), (OK, "ab"), "kept by a success");
    }
}
