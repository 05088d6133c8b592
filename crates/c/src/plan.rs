//! The plan behind a handle.

use crate::failure::Failure;
use sparsetune_core::bundle::{CheckReport, LoadedPlan, Opened, Place};
use sparsetune_core::domain::Layout;
use sparsetune_core::domain::bundle::DenseOperand;
use sparsetune_core::domain::element::Element;
use std::ffi::CString;
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

pub const F32: i32 = 1;
pub const F64: i32 = 2;
pub const ROW_MAJOR: i32 = 1;
pub const COLUMN_MAJOR: i32 = 2;

/// `sparsetune_operand`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Operand {
    pub rows: u64,
    pub cols: u64,
    pub bytes: u64,
    pub element: i32,
    pub layout: i32,
}

impl Operand {
    fn of(operand: &DenseOperand) -> Result<Self, Failure> {
        let &DenseOperand { rows, cols, element, layout, .. } = operand;
        let bytes = rows.checked_mul(cols).and_then(|len| len.checked_mul(element.bytes()));
        let bytes = bytes.ok_or_else(|| Failure::argument("the operands exceed any memory"))?;
        let element = match element {
            Element::F32 => F32,
            Element::F64 => F64,
            other => {
                let why = format!("operands of {} are not for the host", other.name());
                return Err(Failure::argument(&why));
            }
        };
        let layout = match layout {
            Layout::Row => ROW_MAJOR,
            Layout::Col => COLUMN_MAJOR,
        };
        Ok(Self { rows, cols, bytes, element, layout })
    }

    /// Bytes, if they can be addressed.
    pub fn length(&self) -> Result<usize, Failure> {
        let length =
            usize::try_from(self.bytes).ok().filter(|&bytes| isize::try_from(bytes).is_ok());
        length.ok_or_else(|| Failure::argument("the operands exceed this host's addresses"))
    }
}

/// `sparsetune_plan`: what it says of itself, and the plan, which new values have to themselves.
pub struct Plan {
    pub input: Operand,
    pub output: Operand,
    pub entries: u64,
    pub accumulates: bool,
    pub warnings: Vec<CString>,
    loaded: RwLock<LoadedPlan>,
}

// Handles are shared by the threads of a program.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Plan>();
};

impl Plan {
    /// Opens, verifies and prepares a bundle of a plan for this host's CPU, or two in one file.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let loaded = LoadedPlan::open(&Opened::open(path)?, &Place::Host)?;
        let call = loaded.call();
        let warning = |text: &String| CString::new(text.as_str()).ok();
        Ok(Self {
            input: Operand::of(&call.b)?,
            output: Operand::of(&call.c)?,
            entries: loaded.entries(),
            accumulates: call.accumulate,
            warnings: loaded.warnings().iter().filter_map(warning).collect(),
            loaded: RwLock::new(loaded),
        })
    }

    pub fn run(&self, b: &[u8], c: &mut [u8], alpha: f64, beta: f64) -> Result<(), Failure> {
        Ok(self.read().run_on_host(b, c, alpha, beta)?)
    }

    pub fn update_values(&self, values: &[f64]) -> Result<(), Failure> {
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        Ok(loaded.update_values(values)?)
    }

    pub fn check(&self) -> Result<CheckReport, Failure> {
        Ok(self.read().check()?)
    }

    fn read(&self) -> RwLockReadGuard<'_, LoadedPlan> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner)
    }
}
