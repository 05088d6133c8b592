//! Sparse triangular solve.

use super::spmm::DTYPE;
use super::{Choice, Field, Kind, Limit, Op, Operation, Phrase, Tuned, Value};
use crate::domain::{SearchStrategy, Sptrsv};

const LOWER: Value = Value::Choice("lower");
const UPPER: Value = Value::Choice("upper");
const UNIT: Value = Value::Choice("unit");
const NON_UNIT: Value = Value::Choice("non-unit");
const WINDOWED: Value = Value::Choice("windowed");
const ROW_WISE: Value = Value::Choice("row_wise");
const ONE: Value = Value::Integer(1);
const FALSE: Value = Value::Boolean(false);

pub(super) static OPERATION: Operation = Operation {
    op: Op::Sptrsv,
    name: "sptrsv",
    title: "SpTRSV",
    formula: "T x = b",
    sentence: "Solves a triangular system whose matrix T is a triangle of a sparse matrix A.",
    fields: &[
        Field {
            name: "rhs",
            label: "Right-hand sides",
            kind: Kind::Integer { min: 1, max: Sptrsv::MAX_RHS, tuned_max: Sptrsv::MAX_RHS },
            default: None,
            usual: ONE,
            in_key_at_default: true,
            sentence: "Number of right-hand sides.",
        },
        DTYPE,
        Field {
            name: "triangle",
            label: "Triangle",
            kind: Kind::Choice(&[
                Choice {
                    name: "lower",
                    label: "lower",
                    sentence: "Entries on and below the diagonal.",
                },
                Choice {
                    name: "upper",
                    label: "upper",
                    sentence: "Entries on and above the diagonal.",
                },
                Choice {
                    name: "both",
                    label: "both",
                    sentence: "L y = b, then U x = y: the factors of one combined matrix, each with a plan of its own. The diagonal of U is stored; `diagonal` says of L's. Transposed: U^T y = b, then L^T x = y.",
                },
            ]),
            default: None,
            usual: LOWER,
            in_key_at_default: true,
            sentence: "The triangle of A that T is; entries of the other one are ignored.",
        },
        Field {
            name: "diagonal",
            label: "Diagonal",
            kind: Kind::Choice(&[
                Choice {
                    name: "unit",
                    label: "unit",
                    sentence: "All ones, whatever A holds there.",
                },
                Choice {
                    name: "non-unit",
                    label: "non-unit",
                    sentence: "The diagonal of A, every element of which must be stored and not zero.",
                },
            ]),
            default: None,
            usual: NON_UNIT,
            in_key_at_default: true,
            sentence: "Whether the diagonal of T is all ones or the diagonal of A.",
        },
        Field {
            name: "transpose",
            label: "transposed",
            kind: Kind::Boolean,
            default: Some(FALSE),
            usual: FALSE,
            in_key_at_default: true,
            sentence: "Solve with the transpose of that triangle.",
        },
        Field {
            name: "stability",
            label: "Stability",
            kind: Kind::Choice(&[
                Choice {
                    name: "windowed",
                    label: "of windows",
                    sentence: "Equations may be rewritten within windows of levels where coefficients stay small, or further if the solution is refined; the error of a window is small beside the largest of its terms.",
                },
                Choice {
                    name: "row_wise",
                    label: "row by row",
                    sentence: "No equation is rewritten: the error of each row is small beside its own terms, as with substitution.",
                },
            ]),
            default: Some(WINDOWED),
            usual: WINDOWED,
            in_key_at_default: false,
            sentence: "Whether each row has to be as exact as substitution makes it, or windows of rows may be.",
        },
        Field {
            name: "approximate",
            label: "approximate",
            kind: Kind::Boolean,
            default: Some(FALSE),
            usual: FALSE,
            in_key_at_default: false,
            sentence: "Consent to an approximate x, for preconditioners: the largest residual |T x - b| of a right-hand side at random is at most 1/8 of the largest element of b. x is a linear map of b, the same in each call.",
        },
    ],
    limits: &[
        Limit {
            field: "dtype",
            value: Value::Choice("f16"),
            only: Tuned::Nowhere,
            why: "sptrsv in f16 is not tuned: each level adds its rounding to the next, so f32 and f64 are",
        },
        Limit {
            field: "dtype",
            value: Value::Choice("bf16"),
            only: Tuned::Nowhere,
            why: "sptrsv in bf16 is not tuned: each level adds its rounding to the next, so f32 and f64 are",
        },
    ],
    strategy: SearchStrategy::Halving,
    columns: "rhs",
    columns_words: "The number of right-hand sides",
    dense: "b",
    has_levels: true,
    arrays_follow_matrix: true,
    rate: "2 × entries of the triangle × right-hand sides / time; padding and rewritten equations do not count",
    suite: &[
        ("rhs", ONE),
        ("dtype", Value::Choice("f64")),
        ("triangle", LOWER),
        ("diagonal", NON_UNIT),
    ],
    brief: &[
        Phrase::value("triangle", "{}"),
        Phrase::value("diagonal", "{}"),
        Phrase::value("dtype", "{}"),
        Phrase::value("rhs", "rhs={}").unless("rhs", ONE),
        Phrase::when_true("transpose", "transposed"),
        Phrase::value("stability", "{label}").only_if("stability", ROW_WISE),
        Phrase::when_true("approximate", "approximate"),
    ],
    full: &[
        Phrase::value("triangle", "{label} triangle"),
        Phrase::value("diagonal", "{label} diagonal"),
        Phrase::when_true("transpose", "transposed"),
        Phrase::value("rhs", "1 right-hand side").only_if("rhs", ONE),
        Phrase::value("rhs", "{} right-hand sides").unless("rhs", ONE),
        Phrase::value("dtype", "{}"),
        Phrase::value("stability", "stable {label}").only_if("stability", ROW_WISE),
        Phrase::when_true("approximate", "approximate"),
    ],
    bench: &[
        Phrase::value("dtype", "{}"),
        Phrase::value("rhs", "x{}"),
        Phrase::value("stability", "{label}").only_if("stability", ROW_WISE),
        Phrase::when_true("approximate", "approximate"),
    ],
    bench_marks: &[
        Phrase::value("triangle", "up").only_if("triangle", UPPER),
        Phrase::when_true("transpose", "T"),
        Phrase::value("diagonal", "unit").only_if("diagonal", UNIT),
    ],
};
