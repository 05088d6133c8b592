//! The dense operands of a call: their sizes, and which addresses and factors a plan takes.

use super::super::launch::refused;
use super::bind::Call;
use crate::domain::bundle::{self, DenseOperand};
use crate::engine::EngineError;

/// What is checked at every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operands {
    pub(super) b: Side,
    pub(super) c: Side,
    accumulate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) bytes: usize,
    alignment: u64,
}

impl Operands {
    pub(super) fn of(call: &bundle::Call) -> Result<Self, EngineError> {
        let (b, c) = (Side::of("b", &call.b)?, Side::of("c", &call.c)?);
        Ok(Self { b, c, accumulate: call.accumulate })
    }

    /// Refuses a call that the plan's kernels were not made for. False if there is nothing to do.
    pub(super) fn check(&self, call: &Call) -> Result<bool, EngineError> {
        if !self.accumulate && (call.alpha != 1.0 || call.beta != 0.0) {
            return Err(refused(format!(
                "This plan computes c from b alone: alpha must be 1 and beta 0, not {} and {}.",
                call.alpha, call.beta
            )));
        }
        if self.c.bytes == 0 {
            return Ok(false);
        }
        self.b.check("b", call.b)?;
        self.c.check("c", call.c)?;
        let end = |address: u64, side: Side| address.saturating_add(side.bytes as u64);
        if call.b < end(call.c, self.c) && call.c < end(call.b, self.b) {
            return Err(refused("b and c overlap.".to_owned()));
        }
        Ok(true)
    }
}

impl Side {
    fn of(name: &str, operand: &DenseOperand) -> Result<Self, EngineError> {
        let DenseOperand { rows, cols, element, alignment, .. } = *operand;
        let bytes = rows.checked_mul(cols).and_then(|count| count.checked_mul(element.bytes()));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| refused(format!("{name} is {rows} x {cols}.")))?;
        if alignment == 0 {
            return Err(refused(format!("{name} is aligned to 0 bytes.")));
        }
        Ok(Self { bytes, alignment: u64::from(alignment) })
    }

    fn check(&self, name: &str, address: u64) -> Result<(), EngineError> {
        if self.bytes > 0 && address == 0 {
            return Err(refused(format!("The address of {name} is null.")));
        }
        if !address.is_multiple_of(self.alignment) {
            let alignment = self.alignment;
            return Err(refused(format!("{name} must begin at a multiple of {alignment} bytes.")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Layout;
    use crate::domain::element::Element;

    fn operand(rows: u64, alignment: u32) -> DenseOperand {
        DenseOperand { rows, cols: 3, element: Element::F32, layout: Layout::Row, alignment }
    }

    fn operands(accumulate: bool) -> Operands {
        let (b, c) = (operand(4, 16), operand(2, 8));
        Operands::of(&bundle::Call { b, c, accumulate, b_must_be_finite: false }).unwrap()
    }

    const CALL: Call = Call { b: 1024, c: 2048, stream: 0, alpha: 1.0, beta: 0.0 };

    #[test]
    fn addresses_must_be_there_aligned_and_apart() {
        let operands = operands(false);
        let why = |b, c| operands.check(&Call { b, c, ..CALL }).unwrap_err().to_string();
        assert_eq!(operands.check(&CALL), Ok(true));
        assert_eq!(why(0, 8), "The address of b is null.");
        assert_eq!(why(16, 0), "The address of c is null.");
        assert_eq!(why(24, 2048), "b must begin at a multiple of 16 bytes.");
        assert_eq!(why(16, 2052), "c must begin at a multiple of 8 bytes.");
        assert_eq!(why(1024, 1024), "b and c overlap.");
        assert_eq!(why(1024, 1024 + 40), "b and c overlap.");
        assert_eq!(why(1024, 1024 - 16), "b and c overlap.");
        let beside = Call { c: 1024 + 48, ..CALL };
        assert_eq!(operands.check(&beside), Ok(true));
        assert_eq!(operands.check(&Call { c: 1024 - 24, ..CALL }), Ok(true));
    }

    #[test]
    fn factors_are_for_plans_that_add() {
        let scaled = Call { alpha: 2.0, ..CALL };
        let error = operands(false).check(&scaled).unwrap_err().to_string();
        assert!(error.ends_with("alpha must be 1 and beta 0, not 2 and 0."), "{error}");
        assert!(operands(false).check(&Call { beta: 1.0, ..CALL }).is_err());
        assert_eq!(operands(true).check(&Call { beta: -0.5, ..scaled }), Ok(true));
    }

    #[test]
    fn an_empty_output_needs_no_call_and_an_empty_input_no_address() {
        let of = |b, c| {
            let call = bundle::Call { b, c, accumulate: false, b_must_be_finite: false };
            Operands::of(&call)
        };
        let none = of(operand(4, 16), operand(0, 4)).unwrap();
        assert_eq!(none.check(&Call { b: 0, c: 0, ..CALL }), Ok(false));
        let empty = of(operand(0, 16), operand(1, 4)).unwrap();
        assert_eq!(empty.check(&Call { b: 0, ..CALL }), Ok(true));
        assert!(of(operand(1 << 62, 4), operand(1, 4)).is_err());
        assert!(of(operand(1, 0), operand(1, 4)).is_err());
    }
}
