//! What a bundle says of itself must agree: plan, arrays, maps, launches.

use super::super::operand::{
    self, COL_IDX, DIAGONAL, MATRIX_COL_IDX, MATRIX_ROW_PTR, ROW_PTR, VALUES,
};
use super::{Bundle, BundleError, contradiction};
use crate::domain::bundle::{
    Argument, BundleArray, CudaForward, CudaModule, Forward, NO_ENTRY, ONE, UpdateValues,
};
use crate::domain::element::Element;
use crate::domain::plan::{PLAN_VERSION, PREDICTED_VERSION};
use crate::domain::recipe::ArrayData;
use crate::domain::{DeviceKind, Matrix, Plan};
use crate::sparse::Csr;
use rayon::prelude::*;
use std::collections::BTreeSet;

/// Most scratch memory that a plan may ask for.
const MOST_SCRATCH: u64 = 1 << 40;
/// Most launches, arrays and arguments that a bundle may list.
const MOST_LISTED: usize = 1 << 16;
/// Longest name of a matrix, as for uploads.
const LONGEST_NAME: usize = 200;

impl Bundle {
    /// Everything that is not a hash.
    pub(super) fn verify(&self) -> Result<(), BundleError> {
        verify_kept(&self.plan, &self.facts)?;
        self.verify_plan()?;
        self.verify_arrays()?;
        self.verify_forward()
    }

    /// What the manifest repeats of the plan must be the plan's.
    fn verify_plan(&self) -> Result<(), BundleError> {
        let (manifest, plan) = (&self.manifest, &self.plan);
        let matrix = &manifest.matrix;
        let (device, facts) = (&plan.device, &self.facts);
        let sizes = [(facts.rows, matrix.rows), (facts.cols, matrix.cols), (facts.nnz, matrix.nnz)];
        let same = [
            ("size of the matrix", sizes.iter().all(|(facts, matrix)| facts == matrix)),
            ("plan", manifest.plan == plan.id),
            ("matrix", matrix.digest == plan.matrix),
            ("pattern", matrix.pattern_digest == plan.pattern_digest),
            ("problem", manifest.problem == plan.problem),
            ("candidate", manifest.candidate == plan.candidate),
            ("kind of device", manifest.target.kind == device.kind),
            ("target", manifest.target.compute_capability == device.compute_capability),
            ("call", manifest.call == operand::call(plan, matrix.rows, matrix.cols)),
        ];
        if let Some((what, _)) = same.iter().find(|(_, same)| !same) {
            return Err(contradiction(format!("the manifest and the plan differ in the {what}")));
        }
        Ok(())
    }

    fn verify_arrays(&self) -> Result<(), BundleError> {
        let manifest = &self.manifest;
        if manifest.arrays.len() > MOST_LISTED || manifest.scratch.len() > MOST_LISTED {
            return Err(contradiction("it lists more arrays than any plan has"));
        }
        let mut names = BTreeSet::new();
        for array in &manifest.arrays {
            let name = &array.name;
            if !names.insert(name.as_str()) {
                return Err(contradiction(format!("array `{name}` is listed twice")));
            }
            self.verify_element(array)?;
            self.verify_tensor(name, array.element, array.length, array.included)?;
            if array.equality {
                self.verify_equality(array)?;
            }
            let Some(values) = &array.values else {
                if array.included {
                    continue;
                }
                return Err(contradiction(format!("array `{name}` is left out without values")));
            };
            match &values.map {
                None if array.length == manifest.matrix.nnz && values.divisors.is_none() => {}
                None => return Err(contradiction(format!("array `{name}` has no map"))),
                Some(map) => {
                    let divides = values.divisors.is_some();
                    for (map, one) in [(Some(map), divides), (values.divisors.as_ref(), false)] {
                        let Some(map) = map else { continue };
                        names.insert(map);
                        self.verify_tensor(map, Element::U32, array.length, true)?;
                        self.verify_map(map, one)?;
                    }
                }
            }
        }
        if let Some(name) = self.tensors.keys().find(|name| !names.contains(name.as_str())) {
            return Err(contradiction(format!("tensor `{name}` belongs to no array")));
        }
        let scratch = manifest.scratch.iter().map(|it| u128::from(it.bytes)).sum::<u128>();
        if scratch > u128::from(MOST_SCRATCH) {
            return Err(contradiction(format!("it asks for {scratch} bytes of scratch memory")));
        }
        Ok(())
    }

    /// A word that says that the values are equal is right, or the results would be wrong.
    fn verify_equality(&self, array: &BundleArray) -> Result<(), BundleError> {
        let name = &array.name;
        let word = match self.array_data(name) {
            Some(ArrayData::U32(data)) if data.len() == 1 && array.values.is_none() => data[0],
            _ => return Err(contradiction(format!("array `{name}` is no word"))),
        };
        let size = Element::from(self.manifest.problem.dtype()).bytes() as usize;
        let equal = match self.array(VALUES) {
            Some(values) if values.len() >= size => {
                values.chunks_exact(size).all(|value| value == &values[..size])
            }
            Some(_) | None => false,
        };
        match word {
            0 => Ok(()),
            1 if equal => Ok(()),
            _ => Err(contradiction(format!("array `{name}` says that other values are equal"))),
        }
    }

    /// Arrays with a fixed meaning have a fixed type, and values are of the problem's type, or its bits among other words.
    fn verify_element(&self, array: &BundleArray) -> Result<(), BundleError> {
        let values = Element::from(self.manifest.problem.dtype());
        let right = match array.name.as_str() {
            ROW_PTR | COL_IDX | MATRIX_ROW_PTR | MATRIX_COL_IDX => array.element == Element::U32,
            VALUES | DIAGONAL => array.element == values,
            _ => true,
        };
        let divided = array.divisors().is_some();
        let bits = values == Element::F32 && array.element == Element::U32 && !divided;
        let right = right && (!divided || matches!(values, Element::F32 | Element::F64));
        if right && (array.values.is_none() || array.element == values || bits) {
            return Ok(());
        }
        let (name, element) = (&array.name, array.element.name());
        Err(contradiction(format!("array `{name}` cannot be of {element}")))
    }

    /// What a vendor's routine reads is a sparse matrix: it trusts its pointers and columns.
    fn verify_operand(&self) -> Result<(), BundleError> {
        let words = |name: &str| match self.array_data(name) {
            Some(ArrayData::U32(data)) => Ok(data),
            _ => Err(contradiction(format!("a vendor's routine needs the array `{name}`"))),
        };
        let (pointers, columns) = (words(ROW_PTR)?, words(COL_IDX)?);
        let call = &self.manifest.call;
        let values = self.manifest.arrays.iter().find(|array| array.name == VALUES);
        let fits = pointers.len() as u64 == call.c.rows + 1
            && pointers.first() == Some(&0)
            && pointers.is_sorted()
            && pointers.last().map(|&end| end as usize) == Some(columns.len())
            && columns.par_iter().all(|&column| u64::from(column) < call.b.rows)
            && values.is_some_and(|values| values.length == columns.len() as u64);
        match fits {
            true => Ok(()),
            false => Err(contradiction("row_ptr, col_idx and values are no sparse matrix")),
        }
    }

    fn verify_tensor(
        &self,
        name: &str,
        element: Element,
        length: u64,
        included: bool,
    ) -> Result<(), BundleError> {
        match self.tensors.get(name) {
            None if !included => Ok(()),
            None => Err(contradiction(format!("there is no tensor `{name}`"))),
            Some(_) if !included => Err(contradiction(format!("tensor `{name}` is there"))),
            Some((found, place)) => {
                let bytes = length.checked_mul(element.bytes());
                if *found == element && bytes == Some(place.len() as u64) {
                    return Ok(());
                }
                Err(contradiction(format!("tensor `{name}` is not as the manifest describes it")))
            }
        }
    }

    /// Every place holds one of the matrix's entries, or none, or where it may be, 1.
    fn verify_map(&self, name: &str, may_be_one: bool) -> Result<(), BundleError> {
        let Some(ArrayData::U32(map)) = self.array_data(name) else {
            return Err(contradiction(format!("there is no map `{name}`")));
        };
        let nnz = self.manifest.matrix.nnz;
        let fits = |&entry: &u32| {
            entry == NO_ENTRY || u64::from(entry) < nnz || (may_be_one && entry == ONE)
        };
        match map.par_iter().all(fits) {
            true => Ok(()),
            false => Err(contradiction(format!("`{name}` names entries that the matrix lacks"))),
        }
    }

    fn verify_forward(&self) -> Result<(), BundleError> {
        let manifest = &self.manifest;
        let on = match &manifest.forward {
            Forward::Cuda(forward) => {
                self.verify_launches(forward)?;
                DeviceKind::Cuda
            }
            Forward::Host(_) => DeviceKind::Cpu,
            Forward::Vendor(_) => {
                self.verify_operand()?;
                manifest.target.kind
            }
        };
        if on != manifest.target.kind {
            return Err(contradiction("its program is of another kind of device than its target"));
        }
        let kernel = match &manifest.update_values {
            UpdateValues::Gather(gather) => gather.kernel.as_ref(),
            UpdateValues::Host(_) | UpdateValues::Impossible { .. } => None,
        };
        if let Some(kernel) = kernel {
            self.verify_module(&kernel.module)?;
            if kernel.block == 0 || kernel.block > 1024 {
                return Err(contradiction("its update kernel has an impossible block"));
            }
        }
        let divided = manifest.arrays.iter().find(|array| array.divisors().is_some());
        match divided {
            Some(array) if kernel.is_none_or(|kernel| kernel.quotients.is_none()) => {
                let name = &array.name;
                Err(contradiction(format!("no kernel divides the values of array `{name}`")))
            }
            _ => Ok(()),
        }
    }

    fn verify_module(&self, module: &CudaModule) -> Result<(), BundleError> {
        let files = [Some(&module.cubin), module.ptx.as_ref(), module.source.as_ref()];
        let missing = files.into_iter().flatten().find(|path| !self.members.contains_key(*path));
        missing.map_or(Ok(()), |path| Err(BundleError::Missing(path.clone())))
    }

    fn verify_launches(&self, forward: &CudaForward) -> Result<(), BundleError> {
        self.verify_module(&forward.module)?;
        let arguments: usize = forward.steps.iter().map(|step| step.arguments.len()).sum();
        if forward.steps.is_empty() || forward.steps.len() + arguments > MOST_LISTED {
            return Err(contradiction(format!("a call has {} launches", forward.steps.len())));
        }
        let arrays: BTreeSet<&str> =
            self.manifest.arrays.iter().map(|array| array.name.as_str()).collect();
        let scratch = self.manifest.scratch.len() as u64;
        for step in &forward.steps {
            let geometry = step.grid.iter().chain(&step.block).chain([&step.cluster]);
            if geometry.clone().any(|&count| count == 0) {
                return Err(contradiction(format!("kernel `{}` has no threads", step.symbol)));
            }
            for argument in &step.arguments {
                let known = match argument {
                    Argument::Array { name } => arrays.contains(name.as_str()),
                    Argument::Scratch { index } => u64::from(*index) < scratch,
                    Argument::Turn { even, odd } => u64::from(*even.max(odd)) < scratch,
                    Argument::F32 { value } => value.is_finite(),
                    _ => true,
                };
                if !known {
                    let kernel = &step.symbol;
                    return Err(contradiction(format!(
                        "kernel `{kernel}` has an argument that is not there: {argument:?}"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// What a service stores of a bundle, whoever says that it is of one. Lookups and models read the properties of every plan's matrix.
pub(in crate::bundle) fn verify_kept(plan: &Plan, facts: &Matrix) -> Result<(), BundleError> {
    if plan.version == 0 || plan.version > PLAN_VERSION {
        return Err(contradiction(format!("its plan has version {}", plan.version)));
    }
    if (plan.version == PREDICTED_VERSION) != plan.is_predicted() {
        return Err(contradiction("its plan is measured in one place and predicted in another"));
    }
    if !uuid::Uuid::parse_str(&plan.id.0).is_ok_and(|id| id.to_string() == plan.id.0) {
        return Err(contradiction("the plan's id is not a UUID in its usual form"));
    }
    let same = [
        ("properties of the matrix", facts.digest == plan.matrix),
        ("pattern of the matrix", facts.pattern_digest == plan.pattern_digest),
    ];
    if let Some((what, _)) = same.iter().find(|(_, same)| !same) {
        return Err(contradiction(format!("the manifest and the plan differ in the {what}")));
    }
    if plan.problem.parts().is_some() {
        return Err(contradiction("a plan is of one triangle, and its problem names both"));
    }
    let most = Csr::MAX_DIMENSION;
    if facts.rows > most || facts.cols > most || facts.nnz > u64::from(u32::MAX) {
        return Err(contradiction("the matrix is larger than any that is tuned"));
    }
    let plain =
        |name: &String| name.chars().count() <= LONGEST_NAME && !name.chars().any(char::is_control);
    if !facts.name.as_ref().is_none_or(plain) {
        return Err(contradiction("the matrix's name is too long, or has control characters"));
    }
    let features = serde_json::to_value(&facts.features);
    match features.is_ok_and(|features| no_negative(&features)) {
        true => Ok(()),
        false => Err(contradiction("the matrix has features that no matrix has")),
    }
}

/// Features are counts, sizes and their ratios.
fn no_negative(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::Number(number) => number.as_f64().is_some_and(|number| number >= 0.0),
        Value::Array(items) => items.iter().all(no_negative),
        Value::Object(members) => members.values().all(no_negative),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}
