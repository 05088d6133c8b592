//! The check that a bundle brings along, and that of a pair.

use super::super::check::{CheckReport, Inputs};
use super::pair::Linked;
use super::{LoadedPlan, RunError, Runner};
use crate::bundle::Bundle;
use crate::domain::bundle::DenseOperand;
use crate::domain::element::Element;
use crate::domain::recipe::ArrayData;
use crate::engine::EngineError;
use std::sync::Arc;

/// Most elements that a check draws: 64 GiB of f64. A bundle may name any shape.
const MOST_DRAWN: u64 = 1 << 33;

impl LoadedPlan {
    /// Runs the bundle's own check: its inputs are drawn, and sampled outputs compared with those that were computed in
    /// float64. Of a pair both are checked, and then one call of both is compared with one call of each.
    ///
    /// # Errors
    /// There is nothing to compare with, since the plan is untuned or has other values by now; or the call failed.
    pub fn check(&self) -> Result<CheckReport, RunError> {
        if let (Runner::Pair(pair), Some(_)) = (&self.runner, &self.pair) {
            return pair.check();
        }
        let (bundle, inputs) = self.drawn()?;
        let check = &bundle.manifest().check;
        let mut c = inputs.c.bytes().to_vec();
        self.run_on_host(inputs.b.bytes(), &mut c, check.alpha, check.beta)?;
        self.not_given_up()?;
        let element = self.call.c.element;
        let c = super::super::open::array_data(element, &c);
        let c = c.unwrap_or(ArrayData::U16(Arc::from([])));
        let rhs = self.problem.columns() as usize;
        Ok(bundle.samples().compare(check, &inputs.b, &c, rhs))
    }

    /// The inputs of the bundle's check.
    fn drawn(&self) -> Result<(&Bundle, Inputs), RunError> {
        let Some(bundle) = self.bundle.as_ref().filter(|_| !self.updated) else {
            let why = "the check is for the values that the bundle was made with";
            return Err(RunError::Operands(why.to_owned()));
        };
        let manifest = bundle.manifest();
        let len = |operand: &DenseOperand| (operand.rows * operand.cols) as usize;
        let (b_len, c_len) = (len(&self.call.b), len(&self.call.c));
        if (b_len + c_len) as u64 > MOST_DRAWN {
            let why = "the operands of this plan are too large to be drawn for a check";
            return Err(RunError::Operands(why.to_owned()));
        }
        let inputs = Inputs::draw(&manifest.check, &self.problem, b_len, c_len);
        if super::super::check::sha256(inputs.b.bytes()) != manifest.check.b_sha256 {
            let why = "the inputs of the check came out differently than when the bundle was made";
            return Err(RunError::Operands(why.to_owned()));
        }
        Ok((bundle, inputs))
    }

    fn not_given_up(&self) -> Result<(), RunError> {
        match self.gave_up()? {
            false => Ok(()),
            true => Err(EngineError::Watchdog(
                "a kernel waited for longer than its limit and ended itself; the device is unharmed".to_owned(),
            )
            .into()),
        }
    }
}

impl Linked {
    fn check(&self) -> Result<CheckReport, RunError> {
        let (first, second) = (self.first.check()?, self.second.check()?);
        let worst = first.worst.max(second.worst).max(self.differs()?);
        Ok(CheckReport { samples: first.samples + second.samples, worst })
    }

    /// How far a call of both is from a call of each, as a share of what two orders of rounding may make of it: what is between the plans
    /// is in nobody's samples.
    fn differs(&self) -> Result<f64, RunError> {
        let (_, inputs) = self.first.drawn()?;
        let b = inputs.b.bytes();
        let [mut between, mut apart, mut both] = [(); 3].map(|()| vec![0; b.len()]);
        self.first.run_on_host(b, &mut between, 1.0, 0.0)?;
        self.second.run_on_host(&between, &mut apart, 1.0, 0.0)?;
        self.run_on_host(b, &mut both)?;
        Ok(difference(self.second.call.c.element, &apart, &both))
    }
}

/// The largest difference of two results, as a share of the fourth root of the rounding error of the largest element: a system may be
/// badly conditioned, and a vendor may sum in any order, but a wrong vector between two plans makes another result altogether.
fn difference(element: Element, one: &[u8], other: &[u8]) -> f64 {
    let (epsilon, one, other) = match element {
        Element::F64 => (f64::EPSILON, f64s(one), f64s(other)),
        _ => (f64::from(f32::EPSILON), f32s(one), f32s(other)),
    };
    let apart = || one.iter().zip(&other).map(|(x, y)| (x - y).abs());
    if apart().any(f64::is_nan) {
        return f64::INFINITY;
    }
    let largest = one.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    match apart().fold(0.0, f64::max) {
        0.0 => 0.0,
        worst => worst / (largest * epsilon.sqrt().sqrt()),
    }
}

fn f64s(bytes: &[u8]) -> Vec<f64> {
    bytemuck::pod_collect_to_vec(bytes)
}

fn f32s(bytes: &[u8]) -> Vec<f64> {
    bytemuck::pod_collect_to_vec::<u8, f32>(bytes).into_iter().map(f64::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_result_is_not_of_one_rounding() {
        let of = |numbers: [f64; 2]| numbers.map(f64::to_le_bytes).concat();
        let right = of([1.0, -3.0]);
        assert_eq!(difference(Element::F64, &right, &right), 0.0);
        assert!(difference(Element::F64, &right, &of([1.0 + 1e-9, -3.0])) < 1.0);
        assert!(difference(Element::F64, &right, &of([1.0, -2.9])) > 1.0);
        assert!(difference(Element::F64, &right, &of([f64::NAN, -3.0])) > 1.0);
        let single = |numbers: [f32; 2]| numbers.map(f32::to_le_bytes).concat();
        assert!(difference(Element::F32, &single([1.0, 2.0]), &single([1.0, 2.001])) < 1.0);
        assert!(difference(Element::F32, &single([1.0, 2.0]), &single([2.0, 2.0])) > 1.0);
    }
}
