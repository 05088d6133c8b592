//! Kernel programs: one list of operands gives a kernel's C++ parameters, the call that passes them on, and the arguments
//! of its launch.

use crate::domain::recipe::{Arg, Step};

/// What a kernel passes on to the template that does the work, in the template's order.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A parameter of the kernel.
    Parameter(Parameter),
    /// Operands passed on together as one aggregate of a C++ type.
    Aggregate { ctype: String, members: Vec<Operand> },
    /// A C++ expression written into the text; the kernel has no parameter for it.
    Expression(&'static str),
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its C++ type.
    pub ctype: String,
    pub name: &'static str,
    /// What the host passes.
    pub argument: Arg,
    /// The expression that the call passes on: mostly the name; empty where only other expressions use the parameter.
    pub passed: String,
}

/// An `extern "C"` kernel that calls one instance of a template.
#[derive(Clone, Debug, PartialEq)]
pub struct EntryPoint {
    pub name: &'static str,
    /// Arguments of `__launch_bounds__`: threads per block, and optionally the least blocks per multiprocessor.
    pub launch_bounds: Option<String>,
    /// Blocks per cluster along x, compiled in, so that an ordinary launch has them; 1 without clusters.
    pub cluster: u32,
    /// The template's instance, for example `resident<ResidentConfig<Settings>>`.
    pub function: String,
    pub operands: Vec<Operand>,
}

/// What a program sets in a template's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    Type(&'static str),
    Int(u32),
    Bool(bool),
    /// An enumerator with its type, for example `Take` and `kTicket`.
    Enumerator(&'static str, &'static str),
}

impl From<u32> for Setting {
    fn from(value: u32) -> Self {
        Self::Int(value)
    }
}

impl From<bool> for Setting {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

/// The struct `name` with these settings as its members, as the `Config` templates of the headers read them.
pub fn settings(name: &str, members: &[(&str, Setting)]) -> String {
    let mut text = format!("struct {name} {{\n");
    for (member, setting) in members {
        let (ctype, value) = match *setting {
            Setting::Type(value) => {
                text += &format!("    using {member} = {value};\n");
                continue;
            }
            Setting::Int(value) => ("int", value.to_string()),
            Setting::Bool(value) => ("bool", value.to_string()),
            Setting::Enumerator(ctype, value) => (ctype, format!("{ctype}::{value}")),
        };
        text += &format!("    static constexpr {ctype} {member} = {value};\n");
    }
    text + "};\n"
}

/// A parameter of type `ctype`, passed on as it is.
pub fn parameter(ctype: impl Into<String>, name: &'static str, argument: Arg) -> Operand {
    parameter_as(ctype, name, argument, name)
}

/// A parameter of type `ctype`, passed on as an expression.
pub fn parameter_as(
    ctype: impl Into<String>,
    name: &'static str,
    argument: Arg,
    passed: impl Into<String>,
) -> Operand {
    let (ctype, passed) = (ctype.into(), passed.into());
    Operand::Parameter(Parameter { ctype, name, argument, passed })
}

/// A parameter that is a 32-bit number.
pub fn number(name: &'static str, value: u32) -> Operand {
    parameter("u32", name, Arg::U32(value))
}

/// An aggregate of operands.
pub fn aggregate(ctype: impl Into<String>, members: Vec<Operand>) -> Operand {
    Operand::Aggregate { ctype: ctype.into(), members }
}

/// A program of kernels that are instances of the templates of `headers` (paths below `kernels/`), with definitions that
/// they use, such as `settings`.
pub fn program(headers: &[&str], definitions: &str, kernels: &[EntryPoint]) -> String {
    let includes: String =
        headers.iter().map(|header| format!("#include \"{header}\"\n")).collect();
    let kernels: String = kernels.iter().map(EntryPoint::text).collect();
    format!("{includes}using namespace sparsetune;\n{definitions}{kernels}")
}

impl EntryPoint {
    /// The kernel's definition. Every kernel waits for the ones before it as its first act, so that its launch may overlap them.
    pub fn text(&self) -> String {
        let Self { name, launch_bounds, cluster, function, operands } = self;
        let mut bounds = String::new();
        if *cluster > 1 {
            bounds += &format!(" __cluster_dims__({cluster}, 1, 1)");
        }
        if let Some(launch_bounds) = launch_bounds {
            bounds += &format!(" __launch_bounds__({launch_bounds})");
        }
        let declared = parameters(operands)
            .iter()
            .map(|parameter| format!("{} {}", parameter.ctype, parameter.name))
            .collect::<Vec<_>>();
        let (declared, passed) = (declared.join(", "), passed(operands));
        format!(
            "extern \"C\" __global__ void{bounds} {name}({declared}) {{\n    after_earlier_kernels();\n    {function}({passed});\n}}\n"
        )
    }

    /// A launch of `blocks` blocks along x, of `threads` threads each, without dynamic shared memory.
    pub fn step(&self, blocks: u32, threads: u32) -> Step {
        let arguments = parameters(&self.operands).into_iter().map(|it| it.argument).collect();
        let step = Step::of(self.name, blocks, threads, arguments);
        Step { cluster: self.cluster, overlaps: true, ..step }
    }
}

/// All parameters, in the order in which they are passed on.
fn parameters(operands: &[Operand]) -> Vec<&Parameter> {
    let mut list = Vec::new();
    for operand in operands {
        match operand {
            Operand::Parameter(parameter) => list.push(parameter),
            Operand::Aggregate { members, .. } => list.extend(parameters(members)),
            Operand::Expression(_) => {}
        }
    }
    list
}

/// The list between the call's parentheses.
fn passed(operands: &[Operand]) -> String {
    let each = |operand: &Operand| match operand {
        Operand::Parameter(parameter) => parameter.passed.clone(),
        Operand::Aggregate { ctype, members } => format!("{ctype}{{{}}}", passed(members)),
        Operand::Expression(expression) => (*expression).to_owned(),
    };
    let passed = operands.iter().map(each).filter(|expression| !expression.is_empty());
    passed.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_members_of_a_struct() {
        let members = [
            ("Value", Setting::Type("float")),
            ("kLanes", 4.into()),
            ("kFull", true.into()),
            ("kTake", Setting::Enumerator("Take", "kBlock")),
        ];
        assert_eq!(
            settings("Settings", &members),
            "struct Settings {\n    using Value = float;\n    static constexpr int kLanes = 4;\n    \
             static constexpr bool kFull = true;\n    static constexpr Take kTake = Take::kBlock;\n};\n"
        );
    }

    #[test]
    fn one_list_gives_parameters_call_and_arguments() {
        let kernel = EntryPoint {
            name: "spmm",
            launch_bounds: Some("256, 1".to_owned()),
            cluster: 1,
            function: "product<float>".to_owned(),
            operands: vec![
                Operand::Expression("blockIdx.x"),
                parameter("const u32*", "row_ptr", Arg::RowPtr),
                aggregate(
                    "Dense<float>",
                    vec![
                        parameter("const float*", "b", Arg::B),
                        parameter_as("u32", "stride", Arg::U32(8), "2 * stride"),
                        parameter_as("u32", "unused", Arg::U32(9), ""),
                    ],
                ),
                aggregate("Scale<float, false>", Vec::new()),
            ],
        };
        assert_eq!(
            program(&["spmm/product.cuh"], "", std::slice::from_ref(&kernel)),
            "#include \"spmm/product.cuh\"\nusing namespace sparsetune;\n\
             extern \"C\" __global__ void __launch_bounds__(256, 1) spmm(const u32* row_ptr, const float* b, u32 stride, u32 unused) {\n    \
             after_earlier_kernels();\n    product<float>(blockIdx.x, row_ptr, Dense<float>{b, 2 * stride}, Scale<float, false>{});\n}\n"
        );
        let step = kernel.step(7, 256);
        assert_eq!(step.args, [Arg::RowPtr, Arg::B, Arg::U32(8), Arg::U32(9)]);
        assert_eq!((step.entry.as_str(), step.grid, step.block), ("spmm", [7, 1, 1], [256, 1, 1]));
        assert!(step.cluster == 1 && step.overlaps);
        let clustered = EntryPoint { cluster: 16, ..kernel };
        assert!(clustered.text().starts_with(
            "extern \"C\" __global__ void __cluster_dims__(16, 1, 1) __launch_bounds__(256, 1) spmm("
        ));
        assert_eq!(clustered.step(32, 256).cluster, 16);
    }
}
