//! Triangular solves: refused at submission with the reason, filled in with their own defaults, found by their key.

use crate::world::*;
use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::*;
use sparsetune::service::{JobFilter, LookupQuery, PageRequest, ServiceError};

const SOLVE: Sptrsv = Sptrsv {
    rhs: 1,
    dtype: Dtype::F64,
    triangle: Triangle::Lower,
    diagonal: Diagonal::NonUnit,
    transpose: false,
    ..Sptrsv::PLAIN
};

fn solve(matrix: &Matrix, solve: Sptrsv) -> JobRequest {
    let problem = Problem::Sptrsv(solve);
    let strategy = SearchStrategy::default_for(&problem);
    JobRequest { problem, search: Search { strategy, ..Search::default() }, ..request(matrix, 1) }
}

async fn world() -> World {
    let world = World::new().await;
    world.service.register(device()).await.unwrap();
    world
}

#[tokio::test]
async fn rows_without_a_diagonal_are_named_before_anything_is_queued() {
    let world = world().await;
    // Row 0 lacks its diagonal, row 2 holds a zero there.
    let text = "%%MatrixMarket matrix coordinate real general\n4 4 5\n2 1 1.0\n2 2 3.0\n3 3 0.0\n4 1 1.0\n4 4 2.0\n";
    let matrix = world.upload(text).await.matrix;
    assert!(!matrix.has_full_diagonal);
    for (triangle, transpose) in [(Triangle::Lower, false), (Triangle::Upper, true)] {
        let asked = solve(&matrix, Sptrsv { triangle, transpose, ..SOLVE });
        match world.service.submit(&asked, None).await {
            Err(ServiceError::Invalid { pointer, message }) => {
                assert_eq!(pointer, "/problem/diagonal");
                for part in ["2 rows", "[0, 2]", "counted from 0"] {
                    assert!(message.contains(part), "{part}: {message}");
                }
            }
            other => panic!("{other:?}"),
        }
    }
    let unit = solve(&matrix, Sptrsv { diagonal: Diagonal::Unit, ..SOLVE });
    assert!(world.service.submit(&unit, None).await.unwrap().created);
}

#[tokio::test]
async fn a_diagonal_that_its_type_cannot_hold_is_refused() {
    let world = world().await;
    for (text, part) in [("1e-60", "or that f32 rounds to zero"), ("1e40", "outside the range")] {
        let text =
            format!("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1.0\n2 2 {text}\n");
        let matrix = world.upload(&text).await.matrix;
        assert!(matrix.has_full_diagonal);
        let asked = solve(&matrix, Sptrsv { dtype: Dtype::F32, ..SOLVE });
        match world.service.submit(&asked, None).await {
            Err(
                ServiceError::Invalid { message, .. } | ServiceError::Unsupported { message, .. },
            ) => {
                assert!(message.contains(part), "{part}: {message}");
            }
            other => panic!("{other:?}"),
        }
        assert!(world.service.submit(&solve(&matrix, SOLVE), None).await.unwrap().created);
    }
}

#[tokio::test]
async fn what_no_solve_can_be_is_refused_with_the_reason() {
    let world = world().await;
    let square = world.upload(&tridiagonal(9)).await.matrix;
    let text = "%%MatrixMarket matrix coordinate real general\n2 3 2\n1 1 1.0\n2 2 3.0\n";
    let wide = world.upload(text).await.matrix;
    let cases = [
        (&wide, SOLVE, "2 x 3"),
        (&wide, Sptrsv { diagonal: Diagonal::Unit, ..SOLVE }, "square"),
        (&square, Sptrsv { dtype: Dtype::F16, ..SOLVE }, "f16"),
        (&square, Sptrsv { dtype: Dtype::Bf16, ..SOLVE }, "bf16"),
        (&square, Sptrsv { rhs: 0, ..SOLVE }, "1 to 64"),
        (&square, Sptrsv { rhs: 65, ..SOLVE }, "1 to 64, not 65"),
    ];
    for (matrix, asked, part) in cases {
        let refused = world.service.submit(&solve(matrix, asked), None).await;
        let Err(ServiceError::Invalid { message, .. } | ServiceError::Unsupported { message, .. }) =
            refused
        else {
            panic!("{asked:?}: {refused:?}");
        };
        assert!(message.contains(part), "{part}: {message}");
    }
    for rhs in [1, 64] {
        for dtype in [Dtype::F32, Dtype::F64] {
            let asked = solve(&square, Sptrsv { rhs, dtype, ..SOLVE });
            assert!(world.service.submit(&asked, None).await.unwrap().created);
        }
    }
}

#[tokio::test]
async fn a_solve_that_fits_nowhere_is_refused() {
    // 9 rows, 25 entries: 44 bytes an entry, 80 a row and one more, and 32 for each element of b in f64.
    let of = |rhs: u64| 44 * 25 + 80 * 10 + 32 * 9 * rhs;
    let world = World::with(|settings| settings.max_host_bytes = of(3)).await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(9)).await.matrix;
    let submit =
        async |rhs| world.service.submit(&solve(&matrix, Sptrsv { rhs, ..SOLVE }), None).await;
    submit(3).await.unwrap();
    match submit(4).await {
        Err(ServiceError::TooLarge { message }) => {
            assert!(message.contains(&of(4).to_string()), "{message}");
        }
        other => panic!("{other:?}"),
    }
    // A GPU holds the system with its diagonal, two right-hand sides and x.
    let on_gpu = |rhs: u64| 12 * 25 + 12 * 10 + 24 * 9 * rhs;
    world.service.register(Device { memory_bytes: on_gpu(2), ..gpu(0, 1e3) }).await.unwrap();
    assert_eq!(submit(2).await.unwrap().job.device.0, "cuda:0");
    assert!(matches!(submit(3).await, Err(ServiceError::TooLarge { .. })));
}

#[tokio::test]
async fn halving_has_its_own_number_of_trials() {
    let world = world().await;
    let matrix = world.upload(&tridiagonal(9)).await.matrix;
    let job = world.service.submit(&solve(&matrix, SOLVE), None).await.unwrap().job;
    let search = &job.request.search;
    assert_eq!((search.strategy, search.trials), (SearchStrategy::Halving, Some(64)));
    let mut asked = solve(&matrix, SOLVE);
    asked.search.trials = Some(7);
    let job = world.service.submit(&asked, None).await.unwrap().job;
    assert_eq!(job.request.search.trials, Some(7));
}

#[tokio::test]
async fn a_plan_is_found_by_its_whole_key_and_else_the_difference_is_named() {
    let world = world().await;
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    assert!(world.service.submit(&solve(&matrix, SOLVE), None).await.unwrap().created);
    let claim = world.claim().await;
    let made = plan(&device(), &matrix, &claim.job);
    let finish = ended(&claim.job, Some(made.clone()));
    world.service.store().finish(&claim.fence, &finish).await.unwrap();
    let look = async |problem: Problem| {
        let query = LookupQuery {
            matrix: matrix.digest,
            problem,
            device: None,
            l2_policy: None,
            neighbour: false,
            predicted: false,
        };
        world.service.lookup(&query).await.unwrap()
    };
    let exact = look(Problem::Sptrsv(SOLVE)).await;
    assert_eq!((exact.grade, exact.plan), (Grade::Exact, Some(made)));
    let others = [
        (Sptrsv { rhs: 2, ..SOLVE }, "its rhs is 1, not 2"),
        (Sptrsv { dtype: Dtype::F32, ..SOLVE }, "its dtype is f64, not f32"),
        (Sptrsv { triangle: Triangle::Upper, ..SOLVE }, "its triangle is lower, not upper"),
        (Sptrsv { diagonal: Diagonal::Unit, ..SOLVE }, "its diagonal is non-unit, not unit"),
        (Sptrsv { transpose: true, ..SOLVE }, "its transpose is false, not true"),
    ];
    for (other, difference) in others {
        let none = look(Problem::Sptrsv(other)).await;
        assert_eq!((none.grade, none.plan), (Grade::None, None));
        assert!(none.reasons[0].ends_with(difference), "{:?}", none.reasons);
    }
    let product = look(problem(32)).await;
    assert_eq!(product.grade, Grade::None);
    assert!(product.reasons[0].contains("its problem is sptrsv;"), "{:?}", product.reasons);
}

fn both(diagonal: Diagonal, transpose: bool) -> Sptrsv {
    Sptrsv { triangle: Triangle::Both, diagonal, transpose, ..SOLVE }
}

#[tokio::test]
async fn both_triangles_are_one_request_whose_job_names_the_other_part() {
    let world = world().await;
    let matrix = world.upload(&tridiagonal(9)).await.matrix;
    for transpose in [false, true] {
        let mut asked = solve(&matrix, both(Diagonal::Unit, transpose));
        (asked.search.seconds, asked.search.trials) = (Some(9.0), Some(11));
        let submitted = world.service.submit(&asked, Some(format!("k{transpose}"))).await.unwrap();
        let job = &submitted.job;
        let [first, second] = asked.problem.parts().unwrap();
        assert_eq!((job.request.problem, job.request.search.then), (first, Some(second)));
        // One budget, a half for each.
        let search = &job.request.search;
        assert_eq!((search.seconds, search.trials), (Some(4.5), Some(5)));
        // An equal request is the same job, with and without a key; one of the first part alone is another.
        let again = world.service.submit(&asked, None).await.unwrap();
        assert_eq!((again.created, &again.job.id), (false, &job.id));
        let again = world.service.submit(&asked, Some(format!("k{transpose}"))).await.unwrap();
        assert_eq!((again.created, &again.job.id), (false, &job.id));
        let mut alone = JobRequest { problem: first, ..asked.clone() };
        (alone.search.seconds, alone.search.trials) = (Some(4.5), Some(5));
        assert!(world.service.submit(&alone, None).await.unwrap().created);
    }
    // One trial has no half.
    let mut asked = solve(&matrix, both(Diagonal::Unit, false));
    asked.search.trials = Some(1);
    match world.service.submit(&asked, None).await {
        Err(ServiceError::Invalid { pointer, message }) => {
            assert_eq!(pointer, "/search/trials");
            assert!(message.contains("2 or more"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    let mut asked = solve(&matrix, both(Diagonal::Unit, false));
    (asked.search.strategy, asked.search.measure) = (SearchStrategy::Predicted, true);
    match world.service.submit(&asked, None).await {
        Err(ServiceError::Invalid { pointer, .. }) => assert_eq!(pointer, "/search/measure"),
        other => panic!("{other:?}"),
    }
}

/// Neither job is queued: not even that of L, whose diagonal is all ones.
#[tokio::test]
async fn a_zero_pivot_of_the_upper_factor_is_named_before_anything_is_queued() {
    let world = world().await;
    let text = "%%MatrixMarket matrix coordinate real general\n3 3 4\n1 1 1.0\n2 1 3.0\n2 2 0.0\n3 3 2.0\n";
    let matrix = world.upload(text).await.matrix;
    for transpose in [false, true] {
        let asked = solve(&matrix, both(Diagonal::Unit, transpose));
        match world.service.submit(&asked, None).await {
            Err(ServiceError::Invalid { pointer, message }) => {
                assert_eq!(pointer, "/problem/diagonal");
                assert!(message.contains("[1]"), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
    let (filter, page) = (JobFilter::default(), PageRequest::first(9));
    assert!(world.service.jobs(&filter, &page).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn both_plans_are_found_by_one_lookup_or_neither() {
    let world = world().await;
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    let asked = both(Diagonal::Unit, false);
    let query = LookupQuery {
        matrix: matrix.digest,
        problem: Problem::Sptrsv(asked),
        device: None,
        l2_policy: None,
        neighbour: false,
        predicted: false,
    };
    let mut made = Vec::new();
    for part in query.problem.parts().unwrap() {
        let none = world.service.lookup(&query).await.unwrap();
        assert_eq!((none.grade, none.plan, none.second), (Grade::None, None, None));
        let upper = none.reasons.iter().find(|why| why.starts_with("upper triangle: "));
        assert!(upper.is_some(), "{:?}", none.reasons);
        let Problem::Sptrsv(part) = part else { unreachable!() };
        assert!(world.service.submit(&solve(&matrix, part), None).await.unwrap().created);
        let claim = world.claim().await;
        let plan = plan(&device(), &matrix, &claim.job);
        let finish = ended(&claim.job, Some(plan.clone()));
        world.service.store().finish(&claim.fence, &finish).await.unwrap();
        made.push(plan);
    }
    let found = world.service.lookup(&query).await.unwrap();
    let second = made.pop();
    assert_eq!((found.grade, found.plan, found.second), (Grade::Exact, made.pop(), second));
    // A later plan of the same pattern and of other values holds for both matrices, but is no pair with the other plan.
    let other = world.upload(&tridiagonal(20).replace(".5", ".25")).await.matrix;
    assert_eq!(
        (other.pattern_digest, other.digest == matrix.digest),
        (matrix.pattern_digest, false)
    );
    let Problem::Sptrsv(upper) = query.problem.parts().unwrap()[1] else { unreachable!() };
    world.service.submit(&solve(&other, upper), None).await.unwrap();
    let claim = world.claim().await;
    let plan = plan(&device(), &other, &claim.job);
    world.service.store().finish(&claim.fence, &ended(&claim.job, Some(plan))).await.unwrap();
    for asked in [other.digest, matrix.pattern_digest] {
        let query = LookupQuery { matrix: asked, ..query.clone() };
        let found = world.service.lookup(&query).await.unwrap();
        assert_eq!((found.grade, found.plan, found.second), (Grade::None, None, None));
        let why = found.reasons.last().unwrap();
        assert!(why.contains("cannot be run as a pair"), "{why}");
    }
}
