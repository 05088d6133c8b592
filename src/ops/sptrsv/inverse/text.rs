//! The text of a scheme's program, and the operands of its kernels.

use super::scheme::{Scheme, THREADS};
use crate::domain::Sptrsv;
use crate::domain::recipe::Arg;
use crate::ops::program::{EntryPoint, Setting, aggregate, number, parameter, program, settings};
use crate::ops::sptrsv::operands::value;

/// A launch: a product with a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Whether the vector is added to what the matrix makes of it.
    pub adds: bool,
    /// The matrix's first array of three.
    pub array: usize,
    pub from: Arg,
    pub to: Arg,
    pub rows: u32,
}

/// What serves if only the text is needed.
const UNBOUND: Product = Product { adds: false, array: 0, from: Arg::NULL, to: Arg::NULL, rows: 0 };

impl Product {
    /// Names of the kernel and of its settings.
    const fn names(&self) -> (&'static str, &'static str) {
        if self.adds { ("correct", "Corrects") } else { ("multiply", "Multiplies") }
    }
}

/// The program of a scheme. The matrices are data, so one text serves all.
pub fn source(scheme: &Scheme, problem: &Sptrsv) -> String {
    let kinds = if scheme.map.steps > 1 { &[false, true][..] } else { &[false] };
    let products: Vec<Product> = kinds.iter().map(|&adds| Product { adds, ..UNBOUND }).collect();
    let definitions: String = products
        .iter()
        .map(|product| {
            let members = [
                ("Value", Setting::Type(value(problem))),
                ("kThreads", THREADS.into()),
                ("kLanes", scheme.lanes.into()),
                ("kAdds", product.adds.into()),
            ];
            settings(product.names().1, &members)
        })
        .collect();
    let kernels: Vec<EntryPoint> =
        products.iter().map(|product| kernel(problem, product)).collect();
    program(&["sptrsv/inverse.cuh"], &definitions, &kernels)
}

/// The kernel of a launch.
pub fn kernel(problem: &Sptrsv, product: &Product) -> EntryPoint {
    let value = value(problem);
    let values = || format!("const {value}*");
    let (name, set) = product.names();
    let members = vec![
        parameter("const u32*", "row_ptr", Arg::Array(product.array)),
        parameter("const u32*", "cols", Arg::Array(product.array + 1)),
        parameter(values(), "vals", Arg::Array(product.array + 2)),
        parameter(values(), "from", product.from),
        parameter(format!("{value}*"), "to", product.to),
        number("rows", product.rows),
    ];
    EntryPoint {
        name,
        launch_bounds: Some(THREADS.to_string()),
        cluster: 1,
        function: format!("inverse<InverseConfig<{set}>>"),
        operands: vec![aggregate(format!("Product<{value}>"), members)],
    }
}
