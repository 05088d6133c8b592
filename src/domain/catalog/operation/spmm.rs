//! Sparse matrix times dense matrix.

use super::{Choice, Field, Kind, Limit, Op, Operation, Phrase, Tuned, Value};
use crate::domain::{DeviceKind, SearchStrategy, Spmm};

const TRUE: Value = Value::Boolean(true);
const FALSE: Value = Value::Boolean(false);
const SAME: Value = Value::Choice("same");
const F32: Value = Value::Choice("f32");
const GPU: Tuned = Tuned::On(DeviceKind::Cuda);

/// Shared with the other operations.
pub(super) const DTYPE: Field = Field {
    name: "dtype",
    label: "Data type",
    kind: Kind::Choice(&[
        Choice { name: "f32", label: "f32", sentence: "IEEE 754 binary32." },
        Choice { name: "f16", label: "f16", sentence: "IEEE 754 binary16, summed in f32." },
        Choice {
            name: "bf16",
            label: "bf16",
            sentence: "The upper half of binary32 (8 bits of fraction, its range), summed in f32.",
        },
        Choice { name: "f64", label: "f64", sentence: "IEEE 754 binary64." },
    ]),
    default: Some(Value::Choice("f32")),
    usual: Value::Choice("f32"),
    in_key_at_default: true,
    sentence: "Type of the elements of A and of the dense operand, and of the result unless that has a type of its own.",
};

pub(super) static OPERATION: Operation = Operation {
    op: Op::Spmm,
    name: "spmm",
    title: "SpMM",
    formula: "C = A B",
    sentence: "Multiplies a sparse matrix A by a dense matrix B.",
    fields: &[
        Field {
            name: "n",
            label: "N (columns of B)",
            kind: Kind::Integer { min: 1, max: u32::MAX, tuned_max: Spmm::MAX_N },
            default: None,
            usual: Value::Integer(32),
            in_key_at_default: true,
            sentence: "Columns of the dense matrix B.",
        },
        DTYPE,
        Field {
            name: "layout",
            label: "Layout of B and C",
            kind: Kind::Choice(&[
                Choice {
                    name: "row",
                    label: "row-major",
                    sentence: "Elements of a row are adjacent.",
                },
                Choice {
                    name: "col",
                    label: "column-major",
                    sentence: "Elements of a column are adjacent.",
                },
            ]),
            default: Some(Value::Choice("row")),
            usual: Value::Choice("row"),
            in_key_at_default: true,
            sentence: "Storage order of B and C, both with tight leading dimensions.",
        },
        Field {
            name: "accumulate",
            label: "C = αAB + βC",
            kind: Kind::Boolean,
            default: Some(FALSE),
            usual: FALSE,
            in_key_at_default: false,
            sentence: "Compute C = alpha A B + beta C, with alpha and beta given at each call.",
        },
        Field {
            name: "tf32",
            label: "allow tf32",
            kind: Kind::Boolean,
            default: Some(FALSE),
            usual: FALSE,
            in_key_at_default: false,
            sentence: "Allow products of f32 operands that are rounded to tf32 (10 bits of fraction).",
        },
        Field {
            name: "transpose",
            label: "transposed",
            kind: Kind::Boolean,
            default: Some(FALSE),
            usual: FALSE,
            in_key_at_default: false,
            sentence: "Multiply with the transpose of A.",
        },
        Field {
            name: "output",
            label: "Type of C",
            kind: Kind::Choice(&[
                Choice { name: "same", label: "as A and B", sentence: "The type of A and B." },
                Choice {
                    name: "f32",
                    label: "f32",
                    sentence: "The type in which f16 and bf16 are summed, without rounding to theirs.",
                },
            ]),
            default: Some(SAME),
            usual: SAME,
            in_key_at_default: false,
            sentence: "Type of the elements of C; f32 is for products of f16 and bf16.",
        },
    ],
    limits: &[
        Limit {
            field: "tf32",
            value: TRUE,
            only: Tuned::With("dtype", &[Value::Choice("f32")]),
            why: "tf32 is a rounding of f32 operands, so it needs dtype f32",
        },
        Limit {
            field: "output",
            value: F32,
            only: Tuned::With("dtype", &[Value::Choice("f16"), Value::Choice("bf16")]),
            why: "output f32 is the type in which f16 and bf16 are summed, so it needs dtype f16 or bf16",
        },
        Limit {
            field: "dtype",
            value: Value::Choice("f16"),
            only: GPU,
            why: "spmm in f16 is for GPUs; a CPU device multiplies in f32 and f64",
        },
        Limit {
            field: "dtype",
            value: Value::Choice("bf16"),
            only: GPU,
            why: "spmm in bf16 is for GPUs; a CPU device multiplies in f32 and f64",
        },
    ],
    strategy: SearchStrategy::Ranked,
    columns: "n",
    columns_words: "The width N of B",
    dense: "B",
    has_levels: false,
    arrays_follow_matrix: false,
    rate: "2 × nonzeros × N / time",
    suite: &[],
    brief: &[
        Phrase::value("n", "N={}"),
        Phrase::value("dtype", "{}"),
        Phrase::value("layout", "{}"),
        Phrase::when_true("accumulate", "accumulate"),
        Phrase::when_true("tf32", "tf32"),
        Phrase::when_true("transpose", "transposed"),
        Phrase::value("output", "C {}").unless("output", SAME),
    ],
    full: &[
        Phrase::value("n", "N = {}"),
        Phrase::value("dtype", "{}"),
        Phrase::value("layout", "{label}"),
        Phrase::when_true("accumulate", "C = αAB + βC"),
        Phrase::when_true("tf32", "tf32 allowed"),
        Phrase::when_true("transpose", "A transposed"),
        Phrase::value("output", "C in {}").unless("output", SAME),
    ],
    bench: &[
        Phrase::value("dtype", "{}").unless("tf32", TRUE),
        Phrase::when_true("tf32", "tf32"),
        Phrase::value("n", "n={}"),
        Phrase::value("layout", "{}"),
        Phrase::when_true("accumulate", "+C"),
        Phrase::when_true("transpose", "T"),
        Phrase::value("output", "C {}").unless("output", SAME),
    ],
    bench_marks: &[],
};
